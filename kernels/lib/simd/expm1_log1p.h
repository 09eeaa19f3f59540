// e^x - 1 and log(1 + x), which keep their precision where x is small. Largest errors, in units of the last place of the
// result: 2 and 3.
// The float polynomial is a minimax fit made by tests/slow/derive_polynomials.py; the double one is a Taylor series.
#ifndef MINBUILD_LIB_SIMD_EXPM1_LOG1P_H_
#define MINBUILD_LIB_SIMD_EXPM1_LOG1P_H_

#include "lib/simd/math.h"

namespace minbuild {

template <class T, int N>
MB_INLINE Vec<T, N> expm1(Vec<T, N> x) {
  using V = Vec<T, N>;
  V near;
  if constexpr (sizeof(T) == 4) {
    V p = poly(x, 0.000200854323f, 0.001401074f, 0.00833285414f, 0.041664958f, 0.166666687f, 0.50000006f);
    near = muladd(x * x, p, x);
  } else {
    V p = T(1);  // sum of x^i / (i+1)!
    for (int i = 15; i > 1; --i) p = V(T(1)) + p * x / V(T(i));
    near = x * p;
  }
  return select(abs(x) < V(T(0.5)), near, exp(x) - V(T(1)));
}

// For x >= -1/2 and NaN.
template <class T, int N>
MB_INLINE Vec<T, N> log1p(Vec<T, N> x) {
  using V = Vec<T, N>;
  V u = V(T(1)) + x;
  // The rounding error of the sum is compensated by the slope log(u) / (u - 1), which changes slowly.
  V y = log_of_normal(u) * (x / (u - V(T(1))));
  return select((u == V(T(1))) | (x == infinity<T, N>()), x, y);
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_SIMD_EXPM1_LOG1P_H_
