// The drivers of gemm.h in the fewest bytes: one tile, whose B is always packed and whose result is always copied to C.
#ifndef MINBUILD_LIB_GEMM_SMALL_GEMM_H_
#define MINBUILD_LIB_GEMM_SMALL_GEMM_H_

#include "lib/gemm/packer.h"
#include "lib/types/bytes.h"

namespace minbuild {

template <class T>
void pack_strided(const void* product, T* panel, int k, int depth, int j0, int columns, int width) {
  const Gemm<T>& g = *static_cast<const Gemm<T>*>(product);
  const T* from = g.b + k * g.b_row + j0 * g.b_col;
  for (; depth > 0; --depth, from += g.b_row, panel += width) {
    const T* x = from;
    for (int i = 0; i < columns; ++i, x += g.b_col) panel[i] = *x;
  }
}

// Sums are added panel by panel, in the order of k. A fourth row would take 52 bytes on x86-64.
template <class T>
MB_NOINLINE void multiply(const Gemm<T>& g, int, bool, Pack<T> pack, const void* packer) {
  using V = typename Width<kNarrowBytes>::template of<T>;
  constexpr int kRows = MB_SIMD ? 3 : 4, kDeepest = kPanelBytes / int(sizeof(V));
  alignas(16) T panel[kPanelBytes / sizeof(T)];
  alignas(16) T tile[kRows][V::size];
  T* c_columns = g.c;
  for (intptr_t j = 0; j < g.n; j += V::size, c_columns += V::size * g.c_col) {
    const intptr_t columns = g.n - j < V::size ? g.n - j : V::size;
    bool accumulate = g.accumulate;
    intptr_t k = 0;
    do {  // at least once: an empty sum is zero
      const intptr_t depth = g.k - k < kDeepest ? g.k - k : kDeepest;
      clear_bytes(panel, sizeof panel);
      pack(packer, panel, int(k), int(depth), int(j), int(columns), V::size);
      const T* a = g.a + k * g.a_col;
      T* c = c_columns;
      for (intptr_t left = g.m; left > 0; left -= kRows, a += kRows * g.a_row) {
        const T *rows[kRows], *b = panel;
        point_at_rows(rows, a, g.a_row, left);
        V x[kRows];
        unroll<kRows>([&](auto r) MB_LAMBDA { x[r] = V(T(0)); });
        intptr_t at = 0;
        for (intptr_t i = depth; i > 0; --i, at += g.a_col, b += V::size)
          unroll<kRows>([&](auto r) MB_LAMBDA { x[r] = muladd(V(rows[r][at]), V::load(b), x[r]); });
        unroll<kRows>([&](auto r) MB_LAMBDA { x[r].store(tile[r]); });
        for (int r = 0; r < kRows && r < left; ++r, c += g.c_row)
          for (int s = 0; s < columns; ++s) {
            T& to = c[s * g.c_col];
            to = (accumulate ? to : 0) + g.alpha * tile[r][s];
          }
      }
      accumulate = true;
      k += kDeepest;
    } while (k < g.k);
  }
}

template <class T>
MB_INLINE void multiply_strided(Gemm<T>& g) {
  multiply<T>(g, 0, false, pack_strided<T>, &g);
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_GEMM_SMALL_GEMM_H_
