// RoundFloat8: to the numbers of an eight-bit real type, over any shape.
#include "lib/loops/elementwise.h"
#include "lib/simd/math.h"

namespace minbuild {

template <class T>
struct RoundFloat8Of {
  T least, most, step;  // the smallest normal number, the largest one, and the distance of two numbers from 1 on

  template <int N>
  MB_INLINE Vec<T, N> operator()(Vec<T, N> x) const {
    using V = Vec<T, N>;
    using I = typename LaneBits<T>::type;
    const V a = min(V(most), abs(x));  // in this order NaN stays
    // The power of 2 that a is between and the next one, but of numbers below the normal ones.
    const I exponent = I(2 * Format<T>::bias + 1) << Format<T>::mantissa;
    const V power = max(V(least), bits_as<T>(bits_as<I>(a) & Integers<T, N>(exponent)));
    const V large = power * V(Format<T>::round * step);  // whose own steps are those of the type: of two the even one
    return with_sign_of((a + large) - large, x);
  }
};

// params: least, most, step
template <class T>
Status round_float8(const Call& call) {
  return map<kBaseline, T>(call, RoundFloat8Of<T>{T(call.real(0)), T(call.real(1)), T(call.real(2))}, 1);
}

MB_INSTANTIATE_ROUND_FLOAT8

}  // namespace minbuild
