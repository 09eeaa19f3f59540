// Products of so few rows of A that a packed B would not be read again: B is read once, in place and in order.
#ifndef MINBUILD_LIB_GEMM_FEW_ROWS_H_
#define MINBUILD_LIB_GEMM_FEW_ROWS_H_

#include "lib/gemm/gemm.h"

namespace minbuild {

// Of an operand that is read once, as many bytes stay in the second nearest cache.
constexpr intptr_t kNearBytes = 1 << 18;
// Rows of B that tiles pass over at once: streams that processors fetch ahead.
constexpr intptr_t kStreams = 32;

template <class T>
MB_NOINLINE void multiply_few(const Gemm<T>& g) {
  Gemm<T> part = g;
  const bool along = g.b_row == 1;
  // Dot products: of all rows with some columns that stay near. Else: all columns, some depth.
  const intptr_t columns = along ? kNearBytes / intptr_t(sizeof(T)) / g.k + 1 : g.n, depth = along ? g.k : kStreams;
  for (intptr_t j = 0; j < g.n; j += columns) {
    for (intptr_t k = 0; k < g.k; k += depth) {
      part = g;
      part.n = g.n - j < columns ? g.n - j : columns;
      part.k = g.k - k < depth ? g.k - k : depth;
      part.a += k * g.a_col;
      part.b += k * g.b_row + j * g.b_col;
      part.c += j * g.c_col;
      part.accumulate = g.accumulate || k > 0;
      multiply_strided(part);
    }
  }
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_GEMM_FEW_ROWS_H_
