// Matrix products of whole numbers: exact modulo the size of the type, and so the same for signed and unsigned ones.
#ifndef MINBUILD_LIB_GEMM_INTEGER_GEMM_H_
#define MINBUILD_LIB_GEMM_INTEGER_GEMM_H_

#include "lib/gemm/microkernel.h"

namespace minbuild {

template <class T>
MB_NOINLINE void multiply_plain(const Gemm<T>& g) {
  for (intptr_t i = 0; i < g.m; ++i)
    for (intptr_t j = 0; j < g.n; ++j) {
      T sum = 0, *c = g.c + i * g.c_row + j * g.c_col;
      for (intptr_t k = 0; k < g.k; ++k) sum += g.a[i * g.a_row + k * g.a_col] * g.b[k * g.b_row + j * g.b_col];
      *c = (g.accumulate ? *c : 0) + g.alpha * sum;
    }
}

MB_INLINE void gemm(const Gemm<uint32_t>& g) { multiply_plain(g); }
MB_INLINE void gemm(const Gemm<uint64_t>& g) { multiply_plain(g); }

}  // namespace minbuild
#endif  // MINBUILD_LIB_GEMM_INTEGER_GEMM_H_
