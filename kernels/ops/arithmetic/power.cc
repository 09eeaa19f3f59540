// Pow, over any shapes that broadcast.
#include "lib/loops/broadcast.h"
#include "lib/simd/math.h"

namespace minbuild {

struct PowOf {
  template <class V>
  MB_INLINE V operator()(V a, V b) const {
    return pow(a, b);
  }
  // Modulo 2^64. Of negative powers only those of 1 and -1 are whole; the others, and that of 0, become 0.
  MB_INLINE int64_t operator()(int64_t base, int64_t exponent) const {
    if (exponent < 0) return base == 1 ? 1 : base != -1 ? 0 : exponent & 1 ? -1 : 1;
    uint64_t result = 1, square = base;
    for (; exponent != 0; exponent >>= 1, square *= square)
      if (exponent & 1) result *= square;
    return result;
  }
};

// y = a to the power of b
template <class T>
Status pow(const Call& call) {
  return binary<T, PowOf, MB_POWER_BROADCAST, MB_POWER_SCALAR>(call);
}

MB_INSTANTIATE_POWER

}  // namespace minbuild
