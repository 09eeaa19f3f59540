// Products of so few rows of A that a packed B would not be read again: B is read once, in place and in order. Memory is
// the limit, so what comes next is fetched meanwhile: processors do so by themselves within a page only.
#ifndef MINBUILD_LIB_GEMM_FEW_ROWS_H_
#define MINBUILD_LIB_GEMM_FEW_ROWS_H_

#include "lib/gemm/gemm.h"

namespace minbuild {

// Of an operand that is read once, as many bytes stay in the second nearest cache.
constexpr intptr_t kNearBytes = 1 << 18;
// Rows of B that tiles pass over at once: streams that processors fetch ahead.
constexpr intptr_t kStreams = 32;
// With fewer rows of A than kTiled each row of C is a sum of rows of B, of which so many are added at once.
constexpr intptr_t kTiled = 4;
constexpr int kAdded = MB_SIMD ? 8 : 4;

// C += alpha * A * B for `Rows` rows of B, whose columns are contiguous.
template <class T, int Rows>
struct RowsBody {
  template <class W>
  static MB_INLINE void run(const Gemm<T>* g) {
    using V = typename W::template of<T>;
    for (intptr_t i = 0; i < g->m; ++i) {
      const T* a = g->a + i * g->a_row;
      T *c = g->c + i * g->c_row, factors[Rows];
      const T* rows[Rows];
      unroll<Rows>([&](auto r) MB_LAMBDA {
        factors[r] = g->alpha * a[r * g->a_col];
        rows[r] = g->b + r * g->b_row;
      });
      const intptr_t ahead = Rows * g->b_row;
      intptr_t j = 0;
      for (; j <= g->n - V::size; j += V::size) {
        V x = V::load(c + j);
        unroll<Rows>([&](auto r) MB_LAMBDA {
          x = muladd(V(factors[r]), V::load(rows[r] + j), x);
          if (i == 0) __builtin_prefetch(rows[r] + ahead + j);
        });
        x.store(c + j);
      }
      for (; j < g->n; ++j)
        for (int r = 0; r < Rows; ++r) c[j] += factors[r] * rows[r][j];
    }
  }
};

// Not in the fallback for processors without wide vectors, which tiles do for.
template <class T>
MB_INLINE bool takes_rows(const Gemm<T>& g) {
  return (!MB_DISPATCHES || vector_bytes() >= 32) && g.m < kTiled && g.b_col == 1 && g.c_col == 1;
}
template <class T, int Rows>
MB_INLINE void add_some_rows(const Gemm<T>* g) {
#if MB_DISPATCHES
  run_avx2<RowsBody<T, Rows>>(g);
#else
  dispatch<RowsBody<T, Rows>>(g);
#endif
}
// C = 0, where nothing is added to it.
template <class T>
MB_NOINLINE void clear_sums(const Gemm<T>& g) {
  for (intptr_t i = 0; i < g.m && !g.accumulate; ++i) clear_bytes(g.c + i * g.c_row, size_t(g.n) * sizeof(T));
}
// C += alpha * A * B, in the order of the rows of B.
template <class T>
MB_NOINLINE void add_rows(Gemm<T> g) {
  const Gemm<T>* part = &g;
  for (; g.k >= kAdded; g.k -= kAdded, g.a += kAdded * g.a_col, g.b += kAdded * g.b_row) add_some_rows<T, kAdded>(part);
  for (; g.k > 0; --g.k, g.a += g.a_col, g.b += g.b_row) add_some_rows<T, 1>(part);
}

template <class T>
MB_NOINLINE void multiply_few(const Gemm<T>& g) {
  if (takes_rows(g)) {
    clear_sums(g);
    return add_rows(g);
  }
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
