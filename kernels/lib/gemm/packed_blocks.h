// Packed matrix products. Where operands do not fit the caches, what counts is how often each is read from
// afar. Blocks of both are packed into scratch memory (pack.h), in the order in which the tiles of microkernel.h read
// them:
//
//   columns of B, kColumnBytes at a time   for blocks of depth     B is packed once; a panel of it stays in the nearest
//     rows of A, kRowBytes at a time                               cache while all rows pass by, and those rows stay in
//       panels of B, all tiles of rows                             the second nearest while all panels pass by.
//
// A panel of vectors of 64 bytes is larger than the nearest cache of many processors: its tiles fetch rows of it ahead,
// and the tile of C that comes next.
//
// Every sum is added in the order of multiply() in gemm.h, so its bits do not depend on which of them was taken.
#ifndef MINBUILD_LIB_GEMM_PACKED_BLOCKS_H_
#define MINBUILD_LIB_GEMM_PACKED_BLOCKS_H_

#include "lib/gemm/block_sizes.h"
#include "lib/gemm/few_rows.h"
#include "lib/gemm/pack.h"

namespace minbuild {

// Packs of B as in gemm.h, but of any number of columns: panels one after the other, each of `depth` rows. Of a single
// panel it may leave the work to a tile instead: `copies`, or null.
template <class T>
using PackPanels = void (*)(const void* packer, T* panels, int k, int depth, int j0, int columns, int width,
                            PanelCopies<T>* copies);
template <class T>
void pack_columns(const void* product, T* panels, int k, int depth, int j0, int columns, int width, PanelCopies<T>*) {
  const Gemm<T>& g = *static_cast<const Gemm<T>*>(product);
  run_at<PackBody<T>>(vector_bytes(), g.b + k * g.b_row + j0 * g.b_col, g.b_col, g.b_row, panels, intptr_t(width),
                      intptr_t(columns), intptr_t(depth));
}
template <class T, class Packer>
void pack_panels(const void* packer, T* panels, int k, int depth, int j, int columns, int width,
                 [[maybe_unused]] PanelCopies<T>* copies) {
#if MB_COLLECTS_PANELS
  if (copies && static_cast<const Packer*>(packer)->leaves(*copies, k, depth, j, columns, width)) return;
#endif
  for (; columns > 0; columns -= width, j += width, panels += intptr_t(width) * depth)
    (*static_cast<const Packer*>(packer))(panels, k, depth, j, columns < width ? columns : width, width);
}

// Packs rows that are no matrix in memory (multiply_packed): a tile of some depth at a time is written and then packed.
template <class T, class Rows>
MB_NOINLINE void pack_by_pieces(const Gemm<T>& g, const T* a, intptr_t count, intptr_t depth, T* to, intptr_t tall,
                                const Rows& rows) {
  constexpr intptr_t kDeep = 64;
  alignas(16) T piece[kMostPackedRows * kDeep];
  for (; count > 0; count -= tall, a += tall * g.a_row) {
    const intptr_t live = count < tall ? count : tall;
    for (intptr_t k = 0, now; k < depth; k += now, to += now * tall) {
      now = depth - k < kDeep ? depth - k : kDeep;
      rows(piece, kDeep, a + k * g.a_col, live, now);
      run_at<PackBody<T>>(vector_bytes(), static_cast<const T*>(piece), kDeep, intptr_t(1), to, tall, live, now);
    }
  }
}

// The work of a panel's tiles for the next panel: they pack it or fetch it.
template <class T>
struct NextPanel {
  RowsAhead<T> ahead;
  RowsFetched<T> rows;
  LinesAhead<T> fetched;
  bool packed = false;
  intptr_t other = 0;  // the columns before the one that is packed, of two panels

  // After the panel at column `at` and depth `k`, of `columns` columns of B from `j` on, whose `tiles` tall tiles pack the
  // next one if `alike`: whole panels only, as wide as theirs.
  MB_INLINE void pack(const Gemm<T>& g, const Blocks<T>& blocks, intptr_t j, intptr_t columns, intptr_t at, intptr_t k,
                      bool alike, intptr_t tiles, T* panels) {
    blocks.step(at, k, columns);
    const intptr_t left = columns - at;
    packed = alike && k < g.k && left >= blocks.width && blocks.width_of(left) == blocks.width;
    other = blocks.width - other;
    ahead.from = g.b + k * g.b_row + j + at, ahead.row = g.b_row;
    ahead.to = panels + other * blocks.depth;
    ahead.left = blocks.depth_at(g, k);
    ahead.steps = tiles, ahead.share = (ahead.left + tiles - 1) / tiles;
    blocks.step(at, k, columns);
    ahead.after = g.b + k * g.b_row + j + at;
  }

  // The same of a panel in place, whose rows all tiles fetch. False if there is nothing to fetch.
  MB_INLINE bool fetch_rows(const Gemm<T>& g, const Blocks<T>& blocks, intptr_t j, intptr_t columns, intptr_t at,
                            intptr_t k, intptr_t tiles) {
    blocks.step(at, k, columns);
    if (k >= g.k) return false;
    rows = {g.b + k * g.b_row + j + at, g.b_row, blocks.depth_at(g, k), tiles};
    return true;
  }
  // The same of columns, by all tiles but the first, which transposes others.
  MB_INLINE bool fetch_columns(const Gemm<T>& g, const Blocks<T>& blocks, intptr_t j, intptr_t columns, intptr_t at,
                               intptr_t k, intptr_t tiles) {
    constexpr intptr_t kLine = 64 / sizeof(T);
    blocks.step(at, k, columns);
    if (k >= g.k || tiles < 2) return false;
    const intptr_t lines = (blocks.depth_at(g, k) + kLine - 1) / kLine;
    fetched = {g.b + k * g.b_row + (j + at) * g.b_col, g.b_col, lines, lines,
               (lines * blocks.width + tiles - 2) / (tiles - 1)};
    return true;
  }
};

// How panels of B reach the tiles of a product. Without any of these each is packed before its tiles, and kept for all
// rows of A.
template <class T>
struct PanelWays {
  bool one_block;   // of rows of A: no panel is read again
  bool turns;       // its first tile transposes columns of B
  bool fetches;     // tiles fetch columns of B for the next panel
  bool in_place;    // tiles read B itself
  bool in_tiles;    // its first tile packs rows of B
  bool two_panels;  // tiles pack rows of B for the next panel
  bool together;    // some panels are packed at once

  MB_INLINE PanelWays(const Gemm<T>& g, const Blocks<T>& blocks, int bytes, bool plain) {
    const bool widest = MINBUILD_AVX512 && bytes == 64, by_tiles = kPacksInTiles && bytes >= 32;
    one_block = g.m <= blocks.rows;
    const bool once = plain && one_block, along = once && g.b_row == 1;
    turns = along && kTurnsInTiles<T> && bytes >= 32 && blocks.starts_tall(g, bytes);
    fetches = along && !kTurnsInTiles<T>;
    in_place = once && blocks.in_place(g, bytes);
    const bool packed_by_tiles = once && !in_place && by_tiles;
    in_tiles = packed_by_tiles && !widest && blocks.packs_in_tiles(g, bytes);
    two_panels =
        packed_by_tiles && (widest ? blocks.width > blocks.narrow && g.b_col == 1 : blocks.packs_ahead(g, bytes));
    together = plain && !along && !in_place && !in_tiles && !two_panels;
  }
  MB_INLINE bool keeps_none() const { return turns || in_place || in_tiles || two_panels; }
};

// Packs the rows of a block of A, `tile`, as its tiles read them. `low`: the last ones, of tiles that are not tall.
template <class T, class... Rows>
MB_INLINE void pack_row_block(const Gemm<T>& g, const Blocks<T>& blocks, int bytes, Gemm<T>& tile, TileSteps<T>& steps,
                              T* to, const Rows&... rows) {
  const intptr_t tall = blocks.tall, short_rows = tile_rows(bytes);
  if constexpr (sizeof...(rows) == 0) {
    const intptr_t high = tile.m - steps.low;
    steps.step = steps.low_step = tall * tile.k;
    run_at<PackBody<T>>(bytes, tile.a, g.a_row, g.a_col, to, tall, high, tile.k);
    T* each = to + high * tile.k;
    for (intptr_t i = high; i < tile.m; i += short_rows, each += steps.step)
      run_at<PackBody<T>>(bytes, tile.a + i * g.a_row, g.a_row, g.a_col, each, tall,
                          tile.m - i < short_rows ? tile.m - i : short_rows, tile.k);
    tile.a_row = 1, tile.a_col = tall;
  } else if constexpr (kRowVectors) {
    (pack_by_pieces(g, tile.a, tile.m, tile.k, to, tall, rows), ...);
    steps.step = tall * tile.k;
  } else {
    (rows(to, blocks.depth, tile.a, tile.m, tile.k), ...);
    tile.a_row = blocks.depth, tile.a_col = 1;
    steps.step = tall * blocks.depth, steps.low_step = short_rows * blocks.depth;
  }
  tile.a = to;
}

// The product by packed blocks, in scratch memory for as many elements as they have. Where A is no matrix in memory,
// `rows` packs it: rows(to, step, a, count, depth) writes `count` rows of `depth` elements, `step` apart, from where the
// element `a` would be. `start`: as in TileSteps.
template <class T, class... Rows>
MB_NOINLINE void multiply_packed(const Gemm<T>& g, int bytes, T* scratch, PackPanels<T> pack, const void* packer,
                                 const T* start, const Rows&... rows) {
  alignas(16) T edge[kMostPackedRows * kMostTileBytes / sizeof(T)];
  clear_bytes(edge, sizeof edge);  // tiles load all of it
#if MB_COLLECTS_PANELS
  int32_t places[kPanelBytes / kTileVectors / 32];
  PanelCopies<T> copies = {places};
#endif
  const bool plain = packer == &g;
  Blocks<T> blocks(g, bytes, plain);
  if constexpr (sizeof...(rows) != 0) blocks.pack_rows = true;
  const intptr_t depth = blocks.depth, tall = blocks.tall;
  T* const panels = blocks.panels_in(scratch, g);
  const PanelWays<T> ways(g, blocks, bytes, plain);
  // Where no panels are kept, C has their room in the second nearest cache.
  if (ways.keeps_none()) blocks.columns *= 2;
  NextPanel<T> next;
  for (intptr_t j = 0; j < g.n; j += blocks.columns) {
    const intptr_t columns = g.n - j < blocks.columns ? g.n - j : blocks.columns;
    for (intptr_t k = 0; k < g.k; k += depth) {
      Gemm<T> tile = g;
      tile.accumulate = g.accumulate || k > 0;
      tile.k = blocks.depth_at(g, k);
      for (intptr_t i = 0; i < g.m; i += blocks.rows) {
        tile.m = g.m - i < blocks.rows ? g.m - i : blocks.rows;
        tile.a = g.a + i * g.a_row + k * g.a_col;
        const intptr_t short_rows = tile_rows(bytes), low = blocks.low_rows(tile.m, short_rows);
        const intptr_t tiles = (tile.m - low + tall - 1) / tall;  // tall ones
        TileSteps<T> steps = {tall * g.a_row, short_rows * g.a_row, low};
        steps.apart = g.b_col, steps.raw_row = g.b_row;
        if (ways.fetches) {
          constexpr intptr_t kLine = 64 / sizeof(T);
          const intptr_t all = (tile.m + tall - 1) / tall;
          steps.lines = (tile.k + kLine - 1) / kLine;
          steps.share = (steps.lines * blocks.width + all - 1) / all;
        }
        if (blocks.pack_rows) pack_row_block(g, blocks, bytes, tile, steps, scratch, rows...);
        tile.c = g.c + i * g.c_row + j * g.c_col;
        intptr_t group = 0, grouped = 0;  // panels that are packed at once: the first of them, and the end of the last
        for (intptr_t at = 0, width; at < columns; at += width, tile.c += width * g.c_col) {
          width = blocks.width_of(columns - at);
          tile.n = columns - at < width ? columns - at : width;
          const bool half = MB_HALF_PANELS && bytes == 64 && !ways.together && tile.n <= blocks.narrow / 2;
          if (half) width = blocks.narrow / 2;
          const bool whole = tile.n == width, first = at >= grouped;
          if (first) {
            group = grouped = at;
            for (int some = ways.together ? 8 : 1; some > 0 && blocks.width_of(columns - grouped) >= width; --some)
              grouped += width;
            if (grouped > columns) grouped = columns;
          }
          T* const panel =
              panels + (ways.two_panels ? next.other * depth : (ways.one_block ? at - group : at) * tile.k);
          steps.width = tile.b_row = width;
          const bool by_tiles = (ways.in_tiles || ways.turns) && whole && !half;
          steps.raw = by_tiles ? g.b + k * g.b_row + (j + at) * g.b_col : nullptr;
          steps.turned = ways.turns && steps.raw;
          steps.copies = nullptr;
          intptr_t done = 0;  // of the depth of the panel, by tiles
          if (ways.in_place && whole) done = tile.k;
          else if (steps.raw) done = ways.turns ? tile.k & -kTurned : tile.k;
          if (i == 0 && first && done < tile.k && !next.packed) {
            const intptr_t some = grouped - at;
            if (some % width != 0)
              clear_bytes(panel + some / width * width * tile.k, size_t(width * tile.k) * sizeof(T));
            PanelCopies<T>* left = nullptr;
#if MB_COLLECTS_PANELS
            copies.left = false;
            if (bytes == 64 && width == blocks.narrow && tile.m - low >= tall) left = &copies;
#endif
            pack(packer, panel + done * width, int(k + done), int(tile.k - done), int(j + at), int(some), int(width),
                 left);
            if (left && left->left) steps.copies = left;
          }
          tile.b = panel;
          if (ways.two_panels) {
            next.pack(g, blocks, j, columns, at, k, whole && width == blocks.width, tiles, panels);
            steps.ahead = next.packed ? &next.ahead : nullptr;
          } else if (MINBUILD_AVX512 && ways.in_place) {
            steps.rows_fetched = next.fetch_rows(g, blocks, j, columns, at, k, tiles) ? &next.rows : nullptr;
          } else if (MINBUILD_AVX512 && ways.turns) {
            steps.fetched = next.fetch_columns(g, blocks, j, columns, at, k, tiles) ? &next.fetched : nullptr;
          }
          if (ways.in_place && whole) tile.b = g.b + k * g.b_row + j + at, tile.b_row = g.b_row;
          steps.next = g.b + k * g.b_row + (j + at + width) * g.b_col;
          if (start && k == 0) steps.start = start + j + at;
          multiply_panel(tile, bytes, edge, steps);
        }
      }
    }
  }
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_GEMM_PACKED_BLOCKS_H_
