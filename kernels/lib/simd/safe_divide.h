// Division that no operands make trap: a division by zero gives 0, and the smallest number divided by -1 is itself.
#ifndef MINBUILD_LIB_SIMD_SAFE_DIVIDE_H_
#define MINBUILD_LIB_SIMD_SAFE_DIVIDE_H_

#include "lib/types/storage_type.h"
#include "lib/simd/vec.h"

namespace minbuild {

template <class T, int N>
MB_INLINE Vec<T, N> safe_divide(Vec<T, N> a, Vec<T, N> b) {
  return a / b;
}
// Integers, towards zero.
template <class T>
MB_INLINE T safe_divide(T a, T b) {
  if (b == 0) return 0;
  if (T(-1) < T(0) && b == T(-1)) return static_cast<T>(0 - uint64_t(a));
  return static_cast<T>(a / b);
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_SIMD_SAFE_DIVIDE_H_
