// Add, Sub, Mul, Div and Pow, over any shapes that broadcast.
#include "shared/broadcast.h"
#include "shared/math.h"

namespace minbuild {

template <class T, class F>
MB_INLINE Status arithmetic(const Call& call) {
  return binary<T, F, MB_ARITHMETIC_BROADCAST, MB_ARITHMETIC_SCALAR>(call);
}

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
};
struct DivOf {
  template <class V>
  MB_INLINE V operator()(V a, V b) const {
    return a / b;
  }
};
struct PowOf {
  template <class V>
  MB_INLINE V operator()(V a, V b) const {
    return pow(a, b);
  }
};

// y = a + b
template <class T>
Status add(const Call& call) {
  return arithmetic<T, AddOf>(call);
}

// y = a - b
template <class T>
Status sub(const Call& call) {
  return arithmetic<T, SubOf>(call);
}

// y = a * b
template <class T>
Status mul(const Call& call) {
  return arithmetic<T, MulOf>(call);
}

// y = a / b
template <class T>
Status div(const Call& call) {
  return arithmetic<T, DivOf>(call);
}

// y = a to the power of b
template <class T>
Status pow(const Call& call) {
  return arithmetic<T, PowOf>(call);
}

MB_INSTANTIATE_ARITHMETIC

}  // namespace minbuild
