// Functions of one element, over any shape.
#include "shared/elementwise.h"
#include "shared/math.h"
#include "shared/slow_map.h"

namespace minbuild {

struct NegOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return -x;
  }
};
struct AbsOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return abs(x);
  }
};
struct SignOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return select(x > V(0), V(1), select(x < V(0), V(-1), x));  // zero and NaN stay
  }
};
struct LogOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return log(x);
  }
};
struct SqrtOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return sqrt(x);
  }
};
struct ExpOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return exp(x);
  }
};
struct ReciprocalOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return V(1) / x;
  }
};

template <class T>
Status neg(const Call& call) {
  return stream<T>(call, NegOf{}, 1);
}
template <class T>
Status abs(const Call& call) {
  return stream<T>(call, AbsOf{}, 1);
}
template <class T>
Status sign(const Call& call) {
  return stream<T>(call, SignOf{}, 1);
}
template <class T>
Status log(const Call& call) {
  return map_slow<T>(call, LogOf{});
}
template <class T>
Status sqrt(const Call& call) {
  return stream<T>(call, SqrtOf{}, 1);
}
template <class T>
Status exp(const Call& call) {
  return map_slow<T>(call, ExpOf{});
}
template <class T>
Status reciprocal(const Call& call) {
  return stream<T>(call, ReciprocalOf{}, 1);
}

MB_INSTANTIATE_UNARY

}  // namespace minbuild
