// Products whose A is no matrix in memory: some of its rows at a time are written onto the stack, panel by panel of B,
// and multiplied by the loops of gemm.h in the order of additions of multiply(), so that no bit differs.
#ifndef MINBUILD_LIB_GEMM_PACKED_ROWS_H_
#define MINBUILD_LIB_GEMM_PACKED_ROWS_H_

#include "lib/gemm/gemm.h"

namespace minbuild {

// Bytes of rows on the stack: eight rows of a panel's depth, where vectors are wide.
constexpr int kStackRowBytes = kPanelBytes > 4096 ? kPanelBytes / 2 : 2 * kPanelBytes;

// Rows of B in a panel, at most: sums start anew after as many products.
template <class T>
MB_INLINE constexpr intptr_t panel_depth([[maybe_unused]] int bytes) {
#if MB_ONE_VARIANT
  return kPanelBytes / int(sizeof(Width<kNarrowBytes>::of<T>));
#else
  return kPanelBytes / kTileVectors / unsigned(bytes);
#endif
}

#if !MB_WRITTEN_ROWS
// Panels are narrow: they are packed again for some rows, which is less than to write these anew for each panel.

// B from row `first` on.
template <class T>
struct LaterRows {
  Pack<T> pack;
  const void* packer;
  int first;

  static void run(const void* rows, T* panel, int k, int depth, int j, int columns, int width) {
    const LaterRows& b = *static_cast<const LaterRows*>(rows);
    b.pack(b.packer, panel, b.first + k, depth, j, columns, width);
  }
};

template <class T>
MB_NOINLINE void multiply_rows(const Gemm<T>& g, Pack<T> pack, const void* packer, WriteRows<T> write,
                               const void* source) {
  alignas(16) T some[kStackRowBytes / sizeof(T)];
  const int bytes = vector_bytes();
  const intptr_t deepest = panel_depth<T>(bytes);
  Gemm<T> part = g;
  part.a = some, part.a_col = 1;
  for (intptr_t k = 0; k < g.k; k += deepest) {
    part.k = part.a_row = g.k - k < deepest ? g.k - k : deepest;
    part.accumulate = g.accumulate || k > 0;
    const LaterRows<T> later = {pack, packer, int(k)};
    const intptr_t most = intptr_t(sizeof some / sizeof(T)) / part.k;
    for (intptr_t i = 0; i < g.m; i += most) {
      part.m = g.m - i < most ? g.m - i : most;
      part.c = g.c + i * g.c_row;
      write(source, some, g.a + i * g.a_row + k * g.a_col, part.m, part.k);
      multiply<T>(part, bytes, false, LaterRows<T>::run, &later);
    }
  }
}

#endif

}  // namespace minbuild
#endif  // MINBUILD_LIB_GEMM_PACKED_ROWS_H_
