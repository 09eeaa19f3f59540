// Max and Min of two operands, over any shapes that broadcast.
#include "lib/loops/broadcast.h"

namespace minbuild {

// NaN, in either operand, is the result.
struct MaxOf {
  template <class T, int N>
  MB_INLINE Vec<T, N> operator()(Vec<T, N> a, Vec<T, N> b) const {
    return select(a == a, max(a, b), a);
  }
  template <class T>
  MB_INLINE T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};
struct MinOf {
  template <class T, int N>
  MB_INLINE Vec<T, N> operator()(Vec<T, N> a, Vec<T, N> b) const {
    return select(a == a, min(a, b), a);
  }
  template <class T>
  MB_INLINE T operator()(T a, T b) const {
    return a < b ? a : b;
  }
};

// y = the larger of a and b
template <class T>
Status maximum(const Call& call) {
  return binary<T, MaxOf, MB_MIN_MAX_BROADCAST, MB_MIN_MAX_SCALAR>(call);
}

// y = the smaller of a and b
template <class T>
Status minimum(const Call& call) {
  return binary<T, MinOf, MB_MIN_MAX_BROADCAST, MB_MIN_MAX_SCALAR>(call);
}

MB_INSTANTIATE_MIN_MAX

}  // namespace minbuild
