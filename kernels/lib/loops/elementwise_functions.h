// Functions of one or two elements, over vectors, that several kernels compute: one of their own each, and the merged one
// (ops/arithmetic/merged_elementwise.cc), with the same bits.
#ifndef MINBUILD_LIB_LOOPS_ELEMENTWISE_FUNCTIONS_H_
#define MINBUILD_LIB_LOOPS_ELEMENTWISE_FUNCTIONS_H_

#include "lib/loops/elementwise.h"
#include "lib/simd/math.h"
#include "lib/simd/safe_divide.h"

namespace minbuild {

struct AddOf {
  template <class V>
  MB_INLINE V operator()(V a, V b) const {
    return a + b;
  }
};
struct SubOf {
  template <class V>
  MB_INLINE V operator()(V a, V b) const {
    return a - b;
  }
};
struct MulOf {
  template <class V>
  MB_INLINE V operator()(V a, V b) const {
    return a * b;
  }
  // As int the product could overflow.
  MB_INLINE uint16_t operator()(uint16_t a, uint16_t b) const { return static_cast<uint16_t>(uint32_t{a} * b); }
};
struct DivOf {
  template <class V>
  MB_INLINE V operator()(V a, V b) const {
    return safe_divide(a, b);
  }
};

struct ReluOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return max(V(0), x);  // in this order NaN stays
  }
};
struct ReluGradOf {
  template <class V>
  MB_INLINE V operator()(V dy, V x) const {
    return select(x > V(0), dy, V(0));
  }
};
struct SigmoidGradOf {
  template <class V>
  MB_INLINE V operator()(V dy, V y) const {
    return dy * y * (V(1) - y);
  }
};
struct TanhGradOf {
  template <class V>
  MB_INLINE V operator()(V dy, V y) const {
    return dy * (V(1) - y * y);
  }
};

template <class T>
MB_INLINE T negated(T x) {
  return static_cast<T>(uint64_t{0} - static_cast<uint64_t>(x));
}

struct NegOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    if constexpr (__is_class(V)) {
      return -x;
    } else {
      return negated(x);
    }
  }
};
struct AbsOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    if constexpr (__is_class(V)) {
      return abs(x);
    } else {
      return x < 0 ? negated(x) : x;
    }
  }
};
struct SignOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    if constexpr (__is_class(V)) {
      return select(x > V(0), V(1), select(x < V(0), V(-1), x));  // zero and NaN stay
    } else {
      return static_cast<V>((x > 0) - (x < 0));
    }
  }
};
struct SqrtOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return sqrt(x);
  }
};
struct ReciprocalOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return V(1) / x;
  }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_LOOPS_ELEMENTWISE_FUNCTIONS_H_
