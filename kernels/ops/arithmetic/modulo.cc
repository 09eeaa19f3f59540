// Mod in both senses, over any shapes that broadcast.
#include "lib/loops/broadcast.h"
#include "lib/simd/math.h"

namespace minbuild {

// The remainder of a / b rounded towards zero: exact, with the sign of a. Nothing where b is 0.
template <class T>
MB_INLINE T left_over(T a, T b) {
  constexpr bool is_signed = T(-1) < T(0);
  return b == 0 || (is_signed && b == T(-1)) ? T(0) : static_cast<T>(a % b);
}

// A positive finite number is fraction * 2^(exponent - constant), with the fraction's highest bit where that of a normal
// number is.
template <class T, class Word>
MB_INLINE Word fraction_of(Word bits, int& exponent) {
  constexpr Word hidden = Word(1) << Format<T>::mantissa;
  Word fraction = bits & (hidden - 1);
  exponent = static_cast<int>(bits >> Format<T>::mantissa);
  if (exponent != 0) return fraction | hidden;
  for (exponent = 1; fraction < hidden; fraction <<= 1) --exponent;
  return fraction;
}

// Long division of the fractions, one bit at a time.
template <class T, class Word>
MB_NOINLINE T real_left_over(T a, T b) {
  constexpr int mantissa = Format<T>::mantissa;
  constexpr Word hidden = Word(1) << mantissa, sign = Word(1) << (sizeof(T) * 8 - 1), infinite = sign - hidden;
  Word x, y;
  __builtin_memcpy(&x, &a, sizeof x);
  __builtin_memcpy(&y, &b, sizeof y);
  const Word minus = x & sign;
  x &= ~sign, y &= ~sign;
  if (x >= infinite || y > infinite || y == 0) return T(__builtin_nanf(""));
  if (x < y) return a;
  int exponent, last;
  x = fraction_of<T>(x, exponent);
  y = fraction_of<T>(y, last);
  for (;; x <<= 1, --exponent) {
    if (x >= y) x -= y;
    if (exponent == last) break;
  }
  if (x != 0) {
    for (; x < hidden; x <<= 1) --last;
    x = last > 0 ? (x - hidden) | static_cast<Word>(last) << mantissa : x >> (1 - last);
  }
  x |= minus;
  __builtin_memcpy(&a, &x, sizeof a);
  return a;
}
template <>
MB_INLINE float left_over(float a, float b) {
  return real_left_over<float, uint32_t>(a, b);
}
template <>
MB_INLINE double left_over(double a, double b) {
  return real_left_over<double, uint64_t>(a, b);
}

struct RemainderOf {
  template <class T>
  MB_INLINE T operator()(T a, T b) const {
    return left_over(a, b);
  }
};
// With the sign of b, a zero of real numbers included.
struct ModuloOf {
  template <class T>
  MB_INLINE T operator()(T a, T b) const {
    T rest = left_over(a, b);
    if (rest == T(0)) return Stored<T>::is_real && b < T(0) ? static_cast<T>(-T(0)) : T(0);
    return (rest < T(0)) != (b < T(0)) ? static_cast<T>(rest + b) : rest;
  }
};

template <class T, class F>
MB_INLINE Status of_division(const Call& call) {
  return broadcast_two<T, T, true>(call, single_loop<T, T, F>);
}

// y = a - b * trunc(a / b)
template <class T>
Status remainder(const Call& call) {
  return of_division<T, RemainderOf>(call);
}

// y = a - b * floor(a / b)
template <class T>
Status modulo(const Call& call) {
  return of_division<T, ModuloOf>(call);
}

MB_INSTANTIATE_MODULO

}  // namespace minbuild
