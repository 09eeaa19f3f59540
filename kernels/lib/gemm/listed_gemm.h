// Products that leave some depths out: panels of B have the other rows alone, and a list names where their elements of A
// are, from the first of a row on. So A may be any array whose rows are alike.
#ifndef MINBUILD_LIB_GEMM_LISTED_GEMM_H_
#define MINBUILD_LIB_GEMM_LISTED_GEMM_H_

#include "lib/gemm/packed_gemm.h"

namespace minbuild {

// Tiles of all rows with a panel of g.b_row columns: two vectors, or one of AVX-512. C has rows for whole tiles. With
// `copies` the first of them, of AVX-512, collects the panel.
template <class T>
MB_NOINLINE void multiply_listed(const Gemm<T>& g, int bytes, const int32_t* list,
                                 [[maybe_unused]] const PanelCopies<T>* copies) {
  const intptr_t most = packed_tile_rows(bytes);
  const T* a = g.a;
  T* c = g.c;
  for (intptr_t left = g.m; left > 0; left -= most, a += most * g.a_row, c += most * g.c_row) {
    const intptr_t rows = left < most ? left : most;
    const T* old = g.accumulate ? c : zero_row<T>;
#if MINBUILD_AVX512
    if (bytes == 64) {
      const bool wide = g.b_row == kTileVectors * lanes_of<T>(bytes);
      if (copies) {
        if (wide) run_widest<TileBody<T, true>>(&g, a, rows, c, g.c_row, old, copies, list);
        else run_widest<TileBody<T, true, 1>>(&g, a, rows, c, g.c_row, old, copies, list);
        copies = nullptr;
      } else if (wide) {
        run_widest<TileBody<T, true>>(&g, a, rows, c, g.c_row, old, list);
      } else {
        run_widest<TileBody<T, true, 1>>(&g, a, rows, c, g.c_row, old, list);
      }
      continue;
    }
#endif
    run_wide<TileBody<T, true>>(&g, a, rows, c, g.c_row, old, list);
  }
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_GEMM_LISTED_GEMM_H_
