// Ceil, Floor and Round, over any shape.
#include "lib/loops/elementwise.h"
#include "lib/simd/math.h"

namespace minbuild {

// To the nearest integer, of two the even one. Numbers that have no fraction, infinities and NaN stay.
template <class T, int N>
MB_INLINE Vec<T, N> nearest(Vec<T, N> x) {
  using V = Vec<T, N>;
  V whole = T(typename LaneBits<T>::type(1) << Format<T>::mantissa), a = abs(x);
  return with_sign_of(select(a < whole, (a + whole) - whole, a), x);
}

struct RoundOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return nearest(x);
  }
};
// The sign of zero is that of x.
struct FloorOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    V y = nearest(x);
    return select(y > x, y - V(1), y);
  }
};
struct CeilOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return -FloorOf{}(-x);
  }
};

template <class T>
Status round(const Call& call) {
  return map<kBaseline, T>(call, RoundOf{}, 1);
}
template <class T>
Status floor(const Call& call) {
  return map<kBaseline, T>(call, FloorOf{}, 1);
}
template <class T>
Status ceil(const Call& call) {
  return map<kBaseline, T>(call, CeilOf{}, 1);
}

MB_INSTANTIATE_ROUNDING

}  // namespace minbuild
