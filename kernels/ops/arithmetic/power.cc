// Pow, over any shapes that broadcast.
#include "lib/loops/broadcast.h"
#include "lib/simd/math.h"

namespace minbuild {

struct PowOf {
  template <class V>
  MB_INLINE V operator()(V a, V b) const {
    return pow<MB_POWER_ANY_BASE>(a, b);
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

// Of one number: for a library whose models raise nothing else.
template <class T>
MB_INLINE Status pow_of_one(const Tensor& y, const Tensor& a, const Tensor& b) {
  if (y.count != 1 || a.count != 1 || b.count != 1) return Status::kBadPlan;
  if constexpr (Stored<T>::is_real) {
    PowOf{}(Vec<T, 1>(*a.as<T>()), Vec<T, 1>(*b.as<T>())).store(y.as<T>());
  } else {
    *y.as<T>() = PowOf{}(*a.as<T>(), *b.as<T>());
  }
  return Status::kOk;
}

// y = a to the power of b
template <class T>
Status pow(const Call& call) {
  if (!MB_POWER_VECTOR) return pow_of_one<T>(call[0], call[1], call[2]);
  return binary<T, PowOf, MB_POWER_BROADCAST, MB_POWER_SCALAR>(call);
}

MB_INSTANTIATE_POWER

}  // namespace minbuild
