// Real numbers of 16 bits: stored so, computed with as float.
#ifndef MINBUILD_LIB_TYPES_HALF_H_
#define MINBUILD_LIB_TYPES_HALF_H_

#include <stdint.h>

#include "minbuild/kernel.h"

namespace minbuild {

MB_INLINE float float_of(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}
MB_INLINE uint32_t bits_of(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}

// A double as a float whose last bit says that the rest was not zero: rounded again to fewer bits, the result is what one
// rounding gives.
MB_INLINE float rounded_to_odd(double x) {
  float y = static_cast<float>(x);
  if (y == x || x != x) return y;
  uint32_t bits = bits_of(y);
  bool away = bits >> 31 ? y < x : y > x;  // by the sign, which a zero has, too
  return float_of((bits - away) | 1);
}

// The upper half of a float.
struct bfloat16 {
  uint16_t bits;

  bfloat16() = default;
  MB_INLINE bfloat16(float x) {
    uint32_t all = bits_of(x);
    // To the nearest, ties to even; the carry may reach the exponent, where it belongs. NaN must not become infinity.
    bits = x != x ? uint16_t(all >> 16 | 0x40) : uint16_t((all + 0x7fff + (all >> 16 & 1)) >> 16);
  }
  MB_INLINE operator float() const { return float_of(uint32_t(bits) << 16); }
};

// IEEE 754 binary16: sign, 5 bits of exponent, 10 of fraction. Its denormals are normal as float, and stay what they are
// where denormals of float count as zero.
struct half {
  uint16_t bits;

  half() = default;
  MB_INLINE half(float x) {
    uint32_t all = bits_of(x), sign = all >> 16 & 0x8000, size = all & 0x7fffffff;
    if (size >= 0x47800000) {  // 65536 and more, NaN
      bits = uint16_t(sign | (size > 0x7f800000 ? 0x7e00 : 0x7c00));
    } else if (size < 0x38800000) {  // below the smallest normal number: an addition puts the fraction in its place
      bits = uint16_t(sign | (bits_of(float_of(size) + 0.5f) - 0x3f000000));
    } else {
      bits = uint16_t(sign | (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13);
    }
  }
  MB_INLINE operator float() const {
    uint32_t sign = uint32_t(bits & 0x8000) << 16, size = uint32_t(bits & 0x7fff) << 13;
    if (size >= 0x0f800000) return float_of(sign | size | 0x7f800000);  // infinite, NaN
    size += 0x38000000;                                                 // the exponent is off by 112
    // Denormals lack the one before their fraction: with it they are normal, and what it adds is taken off again.
    if (size < 0x38800000) size = bits_of(float_of(size + 0x00800000) - 0x1p-14f);
    return float_of(sign | size);
  }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_TYPES_HALF_H_
