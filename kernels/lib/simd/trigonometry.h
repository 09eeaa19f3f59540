// Sine, cosine, tangent and arc tangent on vectors of float or double, without libm. Largest errors, in units of the
// last place of the result: sine and cosine 2, tangent 4, arc tangent 3 for float and 5 for double. Angles beyond 2^28
// lose precision, but sine and cosine stay between -1 and 1.
// Float polynomials are minimax fits made by tests/slow/derive_polynomials.py; double ones are Taylor series.
#ifndef MINBUILD_LIB_SIMD_TRIGONOMETRY_H_
#define MINBUILD_LIB_SIMD_TRIGONOMETRY_H_

#include "lib/simd/math.h"

namespace minbuild {

// x = quarter * pi/2 + rest, |rest| <= pi/4.
template <class T, int N>
struct Angle {
  Vec<T, N> rest;
  Integers<T, N> quarter;
};
template <class T, int N>
MB_INLINE Angle<T, N> angle(Vec<T, N> x) {
  // In double even for float, where pi/2 in two parts leaves more than enough digits.
  using D = Vec<double, N>;
  using F = Format<double>;
  D wide = convert<double>(x);
  D turns = muladd(wide, D(0.63661977236758134308), D(F::round)) - D(F::round);
  D rest = muladd(turns, D(-1.57079632673412561417), wide);  // few bits: the product is exact below 2^20
  rest = muladd(turns, D(-6.07710050650619224932e-11), rest);
  rest = min(D(1.), max(D(-1.), rest));  // in this order NaN stays
  return {convert<T>(rest), convert<typename LaneBits<T>::type>(turns)};
}

template <class T, int N>
struct SineCosine {
  Vec<T, N> sine, cosine;
};
// Sine and cosine for |x| <= pi/4.
template <class T, int N>
MB_INLINE SineCosine<T, N> sine_cosine(Vec<T, N> x) {
  using V = Vec<T, N>;
  V z = x * x, sine, cosine;
  if constexpr (sizeof(T) == 4) {
    sine = muladd(x * z, poly(z, -0.000195180241f, 0.00833218824f, -0.166666552f), x);
    cosine = muladd(z * z, poly(z, 2.44321091e-05f, -0.00138873083f, 0.0416666456f), V(1.f) - V(0.5f) * z);
  } else {
    sine = cosine = T(1);  // nested sums of (-z)^i / (2i+1)! and (-z)^i / (2i)!
    for (int i = 18; i > 0; i -= 2) {
      sine = V(T(1)) - sine * z / V(T(i * (i + 1)));
      cosine = V(T(1)) - cosine * z / V(T(i * (i - 1)));
    }
    sine = sine * x;
  }
  return {sine, cosine};
}

// sin(x + quarters * pi/2)
template <class T, int N>
MB_INLINE Vec<T, N> wave(Vec<T, N> x, int quarters) {
  using I = typename LaneBits<T>::type;
  using L = Integers<T, N>;
  auto a = angle(x);
  auto both = sine_cosine(a.rest);
  L quarter = a.quarter + L(I(quarters));
  Vec<T, N> y = select((quarter & L(I(1))) != L(I(0)), both.cosine, both.sine);
  return bits_as<T>(bits_as<I>(y) ^ ((quarter & L(I(2))) << (int(sizeof(T)) * 8 - 2)));
}

template <class T, int N>
MB_INLINE Vec<T, N> tan(Vec<T, N> x) {
  using L = Integers<T, N>;
  using I = typename LaneBits<T>::type;
  auto a = angle(x);
  auto both = sine_cosine(a.rest);
  auto odd = (a.quarter & L(I(1))) != L(I(0));
  return select(odd, -both.cosine, both.sine) / select(odd, both.sine, both.cosine);
}

template <class T, int N>
MB_INLINE Vec<T, N> atan(Vec<T, N> x) {
  using V = Vec<T, N>;
  V one = T(1), a = abs(x), y;
  auto steep = a > one;
  a = select(steep, one / a, a);      // atan(a) = pi/2 - atan(1/a)
  a = a / (one + sqrt(one + a * a));  // half the angle
  if constexpr (sizeof(T) == 4) {
    V z = a * a;
    V p = poly(z, -0.0609279387f, 0.106001884f, -0.142445117f, 0.199985325f, -0.333333164f);
    y = muladd(a * z, p, a) * V(2.f);
  } else {
    a = a / (one + sqrt(one + a * a));
    V z = a * a, p = T(0);
    for (int i = 27; i > 0; i -= 2) p = one / V(T(i)) - z * p;
    y = a * p * V(T(4));
  }
  return with_sign_of(select(steep, V(T(1.5707963267948966)) - y, y), x);
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_SIMD_TRIGONOMETRY_H_
