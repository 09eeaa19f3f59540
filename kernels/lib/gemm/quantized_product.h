// Products with a B whose elements stay in 4, 8 or 16 bits (quantized_matrix.h).
#ifndef MINBUILD_LIB_GEMM_QUANTIZED_PRODUCT_H_
#define MINBUILD_LIB_GEMM_QUANTIZED_PRODUCT_H_

#include "lib/gemm/quantized_matrix.h"

namespace minbuild {

// The B of a product: the matrix or its transpose. `Packs`: in a library of packed products.
template <class T, int Parts, bool Packs>
struct QuantizedPanels {
  const QuantizedMatrix<Parts>& m;
  bool transposes;

  MB_INLINE bool transposed() const { return (Parts & kTransposes) && transposes; }

  // Packs one panel after the other, for multiply(), and for multiply_packed().
  static void pack_panels(const void* packer, T* panels, int k, int depth, int j, int columns, int width,
                          PanelCopies<T>*) {
    pack(packer, panels, k, depth, j, columns, width);
  }
  static void pack(const void* packer, T* panel, int k, int depth, int j, int columns, int width) {
    const QuantizedPanels& b = *static_cast<const QuantizedPanels*>(packer);
    constexpr int kDepth = MINBUILD_SMALL_STACK ? 8 : 64;
    alignas(16) T rows[kMostTileBytes / sizeof(T) * kDepth];
    for (; columns > 0; columns -= width, j += width) {
      const int live = columns < width ? columns : width;
      for (int at = 0, now; at < depth; at += now, panel += now * width) {
        now = b.transposed() && depth - at > kDepth ? kDepth : depth - at;
        if (!b.transposed()) {
          dequantize_block(b.m, k, j, depth, live, panel, width);
        } else {
          dequantize_block(b.m, j, k + at, live, now, rows, kDepth);
          if constexpr (Packs) {  // by loops that are there anyway
            run_at<PackBody<T>>(vector_bytes(), static_cast<const T*>(rows), intptr_t(kDepth), intptr_t(1), panel,
                                intptr_t(width), intptr_t(live), intptr_t(now));
          } else {
            transpose<T>(rows, kDepth, panel, width, live, now);
          }
        }
      }
    }
  }
};

// Columns of C from `first` to `end`. Pieces of B are dequantized into `size` elements of scratch memory and then read in
// place: for dot products (`along`) some of its columns, else some of its rows.
template <class T, int Parts, bool Packs>
MB_NOINLINE void multiply_pieces(const Gemm<T>& g, const QuantizedPanels<T, Parts, Packs>& b, T* scratch, intptr_t size,
                                 intptr_t first, intptr_t end, bool along) {
  const intptr_t depth = along ? g.k : kStreams, fitting = size / depth;
  const intptr_t near = along ? 8 : 256, most = fitting < near ? fitting : near, step = along ? depth : most;
  const bool adds_rows = Packs && !along && takes_rows(g);
  for (intptr_t k = 0; k < g.k; k += depth)
    for (intptr_t j = first; j < end; j += most) {
      Gemm<T> part = g;
      part.k = g.k - k < depth ? g.k - k : depth;
      part.n = end - j < most ? end - j : most;
      part.a += k * g.a_col;
      part.b = scratch;
      part.c += j * g.c_col;
      part.accumulate = g.accumulate || k > 0;
      if (along) {
        dequantize_block(b.m, j, k, part.n, part.k, scratch, step);
      } else {
        dequantize_block(b.m, k, j, part.k, part.n, scratch, step);
        part.b_row = most;
      }
      if constexpr (Packs) {
        if (adds_rows) {
          add_rows(part);
          continue;
        }
      }
      multiply_strided(part);
    }
}

// The blocks of a packed product whose B is dequantized, a panel at a time. Where the rows of A are one block, memory for
// one panel suffices; else all `columns` of a block are kept for the next rows, half as many bytes as of floats in memory.
template <class T>
struct QuantizedBlocks {
  intptr_t columns, elements;

  MB_INLINE QuantizedBlocks(const Gemm<T>& g, int bytes) {
    const Blocks<T> blocks(g, bytes);
    constexpr intptr_t kMost = kColumnBytes / 2 / sizeof(T);
    const bool one = g.m <= blocks.rows;
    columns = one ? g.n : kMost / blocks.depth / blocks.width * blocks.width;
    const intptr_t wide = one ? blocks.width : (g.n + blocks.width - 1) / blocks.width * blocks.width;
    elements = blocks.row_elements(g) + blocks.at_most(wide, kMost);
  }
};

// C = alpha * A * B, for a B whose elements are dequantized; g.b is not read. `room`: scratch memory for some rows of
// the matrix, where products go along them; or where the product is packed, what QuantizedBlocks says.
template <class T, int Parts, bool Packs>
MB_NOINLINE void multiply_quantized(const Gemm<T>& g, const QuantizedPanels<T, Parts, Packs>& b, const Tensor& room,
                                    bool packed) {
  const int bytes = vector_bytes();
  // B is read along its rows, so that no product is one of dot products.
  if constexpr (!Packs && !(Parts & kTransposes))
    return multiply<T>(g, bytes, false, QuantizedPanels<T, Parts, Packs>::pack, &b);
  const bool large = Packs && packed && g.k > 0 && g.n >= kFewest, along = !large || b.transposed();
  T* scratch = room.scratch<T>();
  intptr_t size = intptr_t(unsigned(room.count) / sizeof(T));
  if constexpr (Packs) {
    if (large && takes_packing(g)) {
      const intptr_t columns = QuantizedBlocks<T>(g, widest_bytes()).columns;
      for (intptr_t j = 0; j < g.n; j += columns) {
        const LaterColumns<T> later = {QuantizedPanels<T, Parts, Packs>::pack_panels, &b, int(j)};
        Gemm<T> part = g;
        part.n = g.n - j < columns ? g.n - j : columns;
        part.c += j * g.c_col;
        multiply_in_parts<T>(part, widest_bytes(), scratch, LaterColumns<T>::run, &later, nullptr,
                             PartCosts{kPackingWork, kGatheringWork, 0});
      }
      return;
    }
  }
  const bool tiles = !takes_dots(g, bytes) || takes_tiles(g, true);
  if (along && tiles) return multiply<T>(g, bytes, false, QuantizedPanels<T, Parts, Packs>::pack, &b);
#if MB_THREADS > 1
  if constexpr (Packs) {
    // Each needs room for a piece of one column at least, which tiles of the same product may not.
    const intptr_t fitting = size / ((along ? g.k : kStreams) + 16),
                   members = fitting < g.members ? fitting : g.members;
    if (members > 1 && large && int64_t(g.n) * g.k * intptr_t(sizeof(T)) >= 4 * kLeastBytes) {
      const intptr_t columns = ((g.n + members - 1) / members + 63) & -64, share = size / members & -16;
      return for_parts(g.team, int32_t(members), (g.n + columns - 1) / columns, [&](int32_t part, int32_t member) {
        const intptr_t j = part * columns;
        multiply_pieces(g, b, scratch + member * share, share, j, g.n - j < columns ? g.n : j + columns, along);
      });
    }
  }
#endif
  multiply_pieces(g, b, scratch, size, 0, g.n, along);
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_GEMM_QUANTIZED_PRODUCT_H_
