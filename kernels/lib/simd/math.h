// exp, log, tanh, erf, sigmoid, pow and sqrt on vectors of float or double, without libm.
// Infinities, NaN, zeros and denormals give what C gives. Largest errors, in units of the last place of the result:
// float exp 1, log 1, tanh 2, sigmoid 3, erf 2, pow 4 for |y| <= 4 (about |y| above); double exp, log, sigmoid 2,
// tanh, erf 4.
// Float polynomials are minimax fits made by tests/slow/derive_polynomials.py; double ones are Taylor series.
#ifndef MINBUILD_LIB_SIMD_MATH_H_
#define MINBUILD_LIB_SIMD_MATH_H_

#include "lib/simd/vec.h"

namespace minbuild {

// Constants of a floating-point format.
template <class T>
struct Format;
template <>
struct Format<float> {
  static constexpr int mantissa = 23, bias = 127;
  static constexpr float round = 12582912.f;       // 1.5 * 2^23: adding it rounds to an integer
  static constexpr float ln2_high = 0.693359375f;  // few bits: its product with an exponent is exact
  static constexpr float ln2_low = -2.12194440e-4f;
  static constexpr float exp_low = -104.f, exp_high = 89.f;  // e^x is 0 below and infinite above
  static constexpr int32_t sqrt_half = 0x3f3504f3;           // bits of sqrt(1/2)
  static constexpr float smallest = 1.17549435e-38f;         // normal
};
template <>
struct Format<double> {
  static constexpr int mantissa = 52, bias = 1023;
  static constexpr double round = 6755399441055744.;
  static constexpr double ln2_high = 6.93147180369123816490e-01;
  static constexpr double ln2_low = 1.90821492927058770002e-10;
  static constexpr double exp_low = -746., exp_high = 710.;
  static constexpr int64_t sqrt_half = 0x3fe6a09e667f3bcd;
  static constexpr double smallest = 2.2250738585072014e-308;
};

template <class T, int N>
using Integers = typename Vec<T, N>::Bits;

// Coefficients of the highest power first.
template <class T, int N>
MB_INLINE Vec<T, N> poly(Vec<T, N>, T last) {
  return last;
}
template <class T, int N, class... More>
MB_INLINE Vec<T, N> poly(Vec<T, N> x, T first, More... more) {
  Vec<T, N> sum = first;
  ((sum = muladd(sum, x, Vec<T, N>(more))), ...);
  return sum;
}

template <class T, int N>
MB_INLINE Vec<T, N> sign_bit() {
  return bits_as<T>(Integers<T, N>(typename LaneBits<T>::type(1)) << (int(sizeof(T)) * 8 - 1));
}
template <class T, int N>
MB_INLINE Vec<T, N> abs(Vec<T, N> x) {
  return bits_as<T>(bits_as<typename LaneBits<T>::type>(x) & ~bits_as<typename LaneBits<T>::type>(sign_bit<T, N>()));
}
template <class T, int N>
MB_INLINE Vec<T, N> with_sign_of(Vec<T, N> magnitude, Vec<T, N> x) {
  using I = typename LaneBits<T>::type;
  return bits_as<T>(bits_as<I>(magnitude) | (bits_as<I>(x) & bits_as<I>(sign_bit<T, N>())));
}

template <class T, int N>
MB_INLINE Vec<T, N> sqrt(Vec<T, N> x) {
#if __has_builtin(__builtin_elementwise_sqrt)  // clang 16 and newer
  return __builtin_elementwise_sqrt(x.v);
#else
  for (int i = 0; i < N; ++i) x.v[i] = sizeof(T) == 4 ? __builtin_sqrtf(x.v[i]) : __builtin_sqrt(x.v[i]);
  return x;
#endif
}

// WebAssembly repeats a number in memory in one instruction, of few bytes.
#if defined(__wasm_simd128__)
constexpr bool kNumbersInMemory = true;
#else
constexpr bool kNumbersInMemory = false;
#endif

// The coefficients of exp, in one place, so that code can refer to it all by one address.
template <class T>
struct ExpNumbers {
  T log2_e = T(1.4426950408889634), round = Format<T>::round, minus_ln2_high = -Format<T>::ln2_high;
  T minus_ln2_low = -Format<T>::ln2_low,
    lowest = T(-Format<T>::bias * 0.6931471805599453);  // where 2^n becomes denormal
  T powers[5] = {T(0.00138189388f), T(0.00836870354f), T(0.0416682884f), T(0.166665211f), T(0.49999994f)};
  T one = 1;
};
template <class T>
inline constexpr ExpNumbers<T> kExpNumbers;

// e^r for |r| <= ln(2)/2.
template <class T, int N>
MB_INLINE Vec<T, N> exp_of_rest(Vec<T, N> r, const ExpNumbers<T>& c = kExpNumbers<T>) {
  Vec<T, N> p;
  if constexpr (sizeof(T) == 4) {
    p = poly(r, c.powers[0], c.powers[1], c.powers[2], c.powers[3], c.powers[4]);
  } else {
    p = T(1);  // Taylor, 13 terms: sum of r^i * 2 / (i+2)!
    for (int i = 15; i > 2; --i) p = Vec<T, N>(T(1)) + p * r / Vec<T, N>(T(i));
    p = p * Vec<T, N>(T(0.5));
  }
  return muladd(p, r * r, r) + Vec<T, N>(c.one);
}

// e^r * 2^n for integers n from -2 to +1 beyond the range of exponents.
template <class T, int N>
MB_INLINE Vec<T, N> exp_of_parts(Vec<T, N> r, Integers<T, N> n) {
  using F = Format<T>;
  // In two factors, because 2^n alone may overflow or be denormal.
  Integers<T, N> bias = typename LaneBits<T>::type(F::bias), half = n >> 1;
  return exp_of_rest(r) * bits_as<T>((half + bias) << F::mantissa) * bits_as<T>((n - half + bias) << F::mantissa);
}

// x = n * ln(2) + rest
template <class T, int N>
struct ExpParts {
  Vec<T, N> rest;
  Integers<T, N> n;

  MB_INLINE explicit ExpParts(Vec<T, N> x, const ExpNumbers<T>& c = kExpNumbers<T>) {
    using V = Vec<T, N>;
    using I = typename LaneBits<T>::type;
    V shifted = muladd(x, V(c.log2_e), V(c.round));
    V whole = shifted - V(c.round);
    rest = muladd(whole, V(c.minus_ln2_low), muladd(whole, V(c.minus_ln2_high), x));
    n = bits_as<I>(shifted) - bits_as<I>(V(Format<T>::round));
  }
};

template <class T, int N>
MB_INLINE Vec<T, N> exp(Vec<T, N> x) {
  using V = Vec<T, N>;
  using F = Format<T>;
  ExpParts<T, N> parts(min(V(F::exp_high), max(V(F::exp_low), x)));  // in this order NaN stays
  return exp_of_parts(parts.rest, parts.n);
}

// e^x of what is not above 0: shorter, and 0 where e^x would be denormal.
template <class T, int N>
MB_INLINE Vec<T, N> exp_of_negative(Vec<T, N> x) {
  using F = Format<T>;
  const ExpNumbers<T>* c = &kExpNumbers<T>;
  // Single numbers are read where they are, not kept in registers; results are the same either way.
  if (N == 1 || kNumbersInMemory) __asm__ volatile("" : "+r"(c));
  ExpParts<T, N> parts(max(Vec<T, N>(c->lowest), x), *c);
  Integers<T, N> bias = typename LaneBits<T>::type(F::bias);
  return exp_of_rest(parts.rest, *c) * bits_as<T>((parts.n + bias) << F::mantissa);
}

// The coefficients of the logarithm, likewise.
template <class T>
struct LogNumbers {
  T series[4] = {T(0.242792547f), T(0.284987867f), T(0.400009722f), T(0.666666627f)};
  T ln2_low = Format<T>::ln2_low, ln2_high = Format<T>::ln2_high;
};
template <class T>
inline constexpr LogNumbers<T> kLogNumbers;

// log(x) = k*ln(2) + f - (square - s*(square + rest)) for positive x: 1 + f = x / 2^k lies in [sqrt(1/2), sqrt(2)),
// s = f/(2+f), square = f^2/2: log(1+f) = 2 artanh(s).
template <class T, int N>
struct LogParts {
  Vec<T, N> k, f, square, product;  // product = s * (square + rest)
};
// Of normal numbers; the sign is dropped, because negative lanes must not overflow and log() replaces them.
template <class T, int N>
MB_INLINE LogParts<T, N> log_parts_of_normal(Vec<T, N> x, Integers<T, N> off, const LogNumbers<T>& c = kLogNumbers<T>) {
  using V = Vec<T, N>;
  using F = Format<T>;
  using I = typename LaneBits<T>::type;
  Integers<T, N> bits = bits_as<I>(abs(x));
  Integers<T, N> k = (bits - Integers<T, N>(F::sqrt_half)) >> F::mantissa;
  V f = bits_as<T>(bits - (k << F::mantissa)) - V(T(1));
  V s = f / (V(T(2)) + f);
  V z = s * s, rest;
  if constexpr (sizeof(T) == 4) {
    rest = z * poly(z, c.series[0], c.series[1], c.series[2], c.series[3]);
  } else {
    rest = T(0);  // sum of 2 z^i / (2i+1)
    for (int i = 12; i > 0; --i) rest = (rest + V(T(2)) / V(T(2 * i + 1))) * z;
  }
  V square = V(T(0.5)) * f * f;
  return {convert<T>(k - off), f, square, s * (square + rest)};
}
template <class T, int N>
MB_INLINE LogParts<T, N> log_parts(Vec<T, N> x) {
  using V = Vec<T, N>;
  using F = Format<T>;
  using I = typename LaneBits<T>::type;
  auto tiny = x < V(F::smallest);
  x = select(tiny, x * V(T(I(1) << F::mantissa)), x);
  return log_parts_of_normal(x, tiny & Integers<T, N>(I(F::mantissa)));
}
// k*ln(2) + log(1+f)
template <class T, int N>
MB_INLINE Vec<T, N> join(const LogParts<T, N>& p, const LogNumbers<T>& c = kLogNumbers<T>) {
  Vec<T, N> low = muladd(p.k, Vec<T, N>(c.ln2_low), p.product);
  return muladd(p.k, Vec<T, N>(c.ln2_high), p.f - (p.square - low));
}

// The logarithm of numbers known to be positive and normal, or NaN.
template <class T, int N>
MB_INLINE Vec<T, N> log_of_normal(Vec<T, N> x) {
  const LogNumbers<T>* c = &kLogNumbers<T>;
  if (kNumbersInMemory || (N == 1 && sizeof(c) == 8)) MB_OPAQUE(c);  // 64-bit code would build an address for each
  return join(log_parts_of_normal(x, Integers<T, N>(0), *c), *c) + (x - x);
}

// The same of a single number. x86-64 has an instruction for it, slow, short and exact: 6 bytes, and no
// coefficients. Elsewhere, and without it, the last place may differ.
template <class T>
MB_INLINE T log_of_one(T x) {
#if defined(__x86_64__)
  long double y;
  __asm__("fldln2; fxch; fyl2x" : "=t"(y) : "0"(static_cast<long double>(x)));
  return static_cast<T>(y);
#else
  return log_of_normal(Vec<T, 1>(x)).v[0];
#endif
}

template <class T, int N>
MB_INLINE Vec<T, N> infinity() {
  return bits_as<T>(Integers<T, N>(typename LaneBits<T>::type(2 * Format<T>::bias + 1)) << Format<T>::mantissa);
}

template <class T, int N>
MB_INLINE Vec<T, N> log(Vec<T, N> x) {
  using V = Vec<T, N>;
  V y = join(log_parts(x));
  V inf = infinity<T, N>();
  y = select(x < inf, y, x);  // infinity and NaN are their own logarithms
  y = select(x < V(T(0)), inf - inf, y);
  return select(x == V(T(0)), -inf, y);
}

template <class T, int N>
MB_INLINE Vec<T, N> sigmoid(Vec<T, N> x) {
  using V = Vec<T, N>;
  V e = exp(-abs(x));  // never overflows, so small results keep their precision
  return select(x < V(T(0)), e, V(T(1))) / (V(T(1)) + e);
}

template <class T, int N>
MB_INLINE Vec<T, N> tanh(Vec<T, N> x) {
  using V = Vec<T, N>;
  V a = abs(x), z = x * x, near;
  if constexpr (sizeof(T) == 4) {
    V p = poly(z, -0.00571549917f, 0.0206491034f, -0.0537430048f, 0.133314848f, -0.333332837f);
    near = muladd(a * z, p, a);
  } else {
    V sinh = T(1), cosh = T(1);  // Taylor: nested sums of z^i / (2i+1)! and z^i / (2i)!
    for (int i = 20; i > 0; i -= 2) {
      sinh = V(T(1)) + sinh * z / V(T(i * (i + 1)));
      cosh = V(T(1)) + cosh * z / V(T(i * (i - 1)));
    }
    near = a * sinh / cosh;
  }
  V far = V(T(1)) - V(T(2)) / (exp(a + a) + V(T(1)));
  return with_sign_of(select(a < V(T(0.625)), near, far), x);
}

template <class T, int N>
MB_INLINE Vec<T, N> erf(Vec<T, N> x) {
  using V = Vec<T, N>;
  V a = abs(x), z = x * x, near, far;
  auto is_near = a < V(T(sizeof(T) == 4 ? 1 : 1.5));
  if constexpr (sizeof(T) == 4) {
    V p = poly(z, 7.80690389e-05f, -0.00079978531f, 0.0051871622f, -0.0268533472f, 0.112835787f, -0.37612626f,
               0.128379166f);
    near = muladd(a, p, a);
    V t = min(V(3.f), a - V(1.f));  // from 4 on erf rounds to 1
    far = V(1.f) - exp(poly(t, 0.000109210334f, -0.00154307741f, 0.00952132139f, -0.0412931703f, -0.843167126f,
                            -2.63896298f, -1.84960556f));
  } else {
    V gauss = exp(-z), sum = T(1), t = a;
    for (int i = 40; i > 0; --i) sum = V(T(1)) + sum * (z + z) / V(T(2 * i + 1));  // sum of (2z)^i / (1*3*...*(2i+1))
    near = V(T(1.1283791670955126)) * a * gauss * sum;
    for (int i = 120; i > 0; --i) t = a + V(T(0.5 * i)) / t;  // Laplace's continued fraction of erfc
    far = V(T(1)) - gauss * V(T(0.5641895835477563)) / t;
    far = select(a > V(T(6)), V(T(1)), far);
    far = select(x == x, far, x);
  }
  return with_sign_of(select(is_near, near, far), x);
}

// As C's pow: a negative base needs an integer exponent; pow(x, 0) = pow(1, y) = 1 even for NaN. Without kAnyBase x is
// positive and finite.
template <bool kAnyBase = true, class T, int N>
MB_INLINE Vec<T, N> pow(Vec<T, N> x, Vec<T, N> y) {
  using V = Vec<T, N>;
  using F = Format<T>;
  using I = typename LaneBits<T>::type;
  V one = T(1), zero = T(0), inf = infinity<T, N>(), a = abs(x);
  // log2(a) = k + l. Of y*k the part of y with few bits is exact, so its integer goes to the exponent without loss.
  auto p = log_parts(a);
  V l = (p.f - (p.square - p.product)) * V(T(1.4426950408889634));
  V log2 = p.k + l;
  if (kAnyBase) log2 = select(a == zero, -inf, select(a < inf, log2, a));
  V t = y * log2;
  V high = bits_as<T>(bits_as<I>(y) & Integers<T, N>(-(I(1) << (F::mantissa / 2 + 1))));
  V whole = (high * p.k + V(F::round)) - V(F::round);
  V rest = (high * p.k - whole) + muladd(y - high, p.k, y * l);
  V shifted = rest + V(F::round);
  V n = shifted - V(F::round);
  V limit = T(F::bias + F::mantissa + 8);
  V exponent = min(limit, max(-limit, whole + n)) + V(F::round);
  V r = (rest - n) * V(T(0.6931471805599453));
  V result = exp_of_parts(r, bits_as<I>(exponent) - bits_as<I>(V(F::round)));
  result = select(t > V(T(F::bias + 2)), inf, select(t < V(T(-F::bias - F::mantissa - 2)), zero, result));

  if (!kAnyBase) return select(y != y, y, select((y == zero) | (x == one), one, result));

  V bounded = min(V(T(I(1) << (F::mantissa + 1))), max(V(-T(I(1) << (F::mantissa + 1))), y));  // all even beyond
  auto number = convert<I>(select(y == y, bounded, zero));
  auto odd = (number & Integers<T, N>(I(1))) != Integers<T, N>(I(0));
  auto integer = convert<T>(number) == bounded;
  V minus = with_sign_of(zero, x);
  result = select(odd & integer, with_sign_of(result, minus), result);
  result = select((x < zero) & (integer == Integers<T, N>(I(0))) & (a < inf), inf - inf, result);
  result = select((x != x) | (y != y), x + y, result);
  return select((y == zero) | (x == one) | ((a == one) & (abs(y) == inf)), one, result);
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_SIMD_MATH_H_
