// Transposition of a few rows at a time, by vectors.
#ifndef MINBUILD_LIB_GEMM_TRANSPOSE_H_
#define MINBUILD_LIB_GEMM_TRANSPOSE_H_

#include "lib/simd/vec.h"

namespace minbuild {

// to[c * step + i] = from[i][c]. Of float and by vectors, columns are taken by four, and so up to three too many.
template <class T, size_t Rows>
MB_INLINE void transpose_group(const T* const (&from)[Rows], intptr_t columns, T* to, intptr_t step, intptr_t ahead) {
#if MB_SHUFFLES
  if constexpr (sizeof(T) == 4) {
    using V = Vec<T, int(Rows)>;
    using Raw = typename V::Raw;
    for (intptr_t c = 0; c < columns; c += 4) {
      Raw y[4], x[4];
      unroll<4>([&](auto i) MB_LAMBDA {
        const auto low = Vec<T, 4>::load(from[i] + c).v;
        if constexpr (Rows == 4) y[i] = low;
        else y[i] = __builtin_shufflevector(low, Vec<T, 4>::load(from[i + 4] + c).v, 0, 1, 2, 3, 4, 5, 6, 7);
      });
      if constexpr (Rows == 4) {
        const Raw a = __builtin_shufflevector(y[0], y[1], 0, 4, 1, 5);
        const Raw b = __builtin_shufflevector(y[0], y[1], 2, 6, 3, 7);
        const Raw d = __builtin_shufflevector(y[2], y[3], 0, 4, 1, 5);
        const Raw e = __builtin_shufflevector(y[2], y[3], 2, 6, 3, 7);
        x[0] = __builtin_shufflevector(a, d, 0, 1, 4, 5), x[1] = __builtin_shufflevector(a, d, 2, 3, 6, 7);
        x[2] = __builtin_shufflevector(b, e, 0, 1, 4, 5), x[3] = __builtin_shufflevector(b, e, 2, 3, 6, 7);
      } else {  // the same in both halves
        const Raw a = __builtin_shufflevector(y[0], y[1], 0, 8, 1, 9, 4, 12, 5, 13);
        const Raw b = __builtin_shufflevector(y[0], y[1], 2, 10, 3, 11, 6, 14, 7, 15);
        const Raw d = __builtin_shufflevector(y[2], y[3], 0, 8, 1, 9, 4, 12, 5, 13);
        const Raw e = __builtin_shufflevector(y[2], y[3], 2, 10, 3, 11, 6, 14, 7, 15);
        x[0] = __builtin_shufflevector(a, d, 0, 1, 8, 9, 4, 5, 12, 13);
        x[1] = __builtin_shufflevector(a, d, 2, 3, 10, 11, 6, 7, 14, 15);
        x[2] = __builtin_shufflevector(b, e, 0, 1, 8, 9, 4, 5, 12, 13);
        x[3] = __builtin_shufflevector(b, e, 2, 3, 10, 11, 6, 7, 14, 15);
      }
      unroll<4>([&](auto i) MB_LAMBDA {
        V(x[i]).store(to);
        to += step;
      });
      if (ahead != 0 && c % 8 == 0)
        unroll<int(Rows)>([&](auto i) MB_LAMBDA { __builtin_prefetch(from[i] + ahead + c); });
    }
    return;
  }
#endif
  (void)ahead;
  for (intptr_t c = 0; c < columns; ++c, to += step)
    for (size_t i = 0; i < Rows; ++i) to[i] = from[i][c];
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_GEMM_TRANSPOSE_H_
