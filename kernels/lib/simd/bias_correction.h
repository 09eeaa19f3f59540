// Powers of factors by which means over time forget, for how far a mean of t steps is from a whole one.
#ifndef MINBUILD_LIB_SIMD_BIAS_CORRECTION_H_
#define MINBUILD_LIB_SIMD_BIAS_CORRECTION_H_

#include "lib/simd/vec.h"

namespace minbuild {

// High 64 bits of the 128-bit product.
MB_INLINE uint64_t multiply_high(uint64_t a, uint64_t b) {
#ifdef __SIZEOF_INT128__
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
#else
  uint64_t a0 = static_cast<uint32_t>(a), a1 = a >> 32, b0 = static_cast<uint32_t>(b), b1 = b >> 32;
  uint64_t middle = a1 * b0 + (a0 * b0 >> 32);
  return a1 * b1 + (middle >> 32) + ((a0 * b1 + static_cast<uint32_t>(middle)) >> 32);
#endif
}

// base^exponent for 0 <= base < 1, correctly rounded in all but rare cases: the power is taken in 64-bit fixed point,
// because 1 - base^exponent cancels and would show every error of a product of T.
template <class T>
MB_INLINE T power(float base, int64_t exponent) {
  constexpr float kTwo63 = 9223372036854775808.0f, kBelowOne = 0x1.fffffep-1f;
  // Only a damaged plan has another base (or NaN), which no integer could hold.
  base = base > 0 ? base : 0;
  base = base < kBelowOne ? base : kBelowOne;
  uint64_t factor = static_cast<uint64_t>(static_cast<int64_t>(base * kTwo63)) * 2, result = ~uint64_t{0};
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result = multiply_high(result, factor);
    factor = multiply_high(factor, factor);
  }
  return static_cast<T>(static_cast<int64_t>(result >> 1)) / kTwo63;
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_SIMD_BIAS_CORRECTION_H_
