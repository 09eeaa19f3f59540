// Packed matrix products. Where operands do not fit the caches, what counts is how often each is read from
// afar. Blocks of both are packed into scratch memory (pack.h), in the order in which the tiles of microkernel.h read
// them:
//
//   columns of B, kColumnBytes at a time   for blocks of depth     B is packed once; a panel of it stays in the nearest
//     rows of A, kRowBytes at a time                               cache while all rows pass by, and those rows stay in
//       panels of B, all tiles of rows                             the second nearest while all panels pass by.
//
// Every sum is added in the order of multiply() in gemm.h, so its bits do not depend on which of them was taken.
#ifndef MINBUILD_LIB_GEMM_PACKED_BLOCKS_H_
#define MINBUILD_LIB_GEMM_PACKED_BLOCKS_H_

#include "lib/gemm/few_rows.h"
#include "lib/gemm/gemm.h"
#include "lib/gemm/pack.h"

namespace minbuild {

// Scratch memory of a product, as gemm_packing.py declares it: packed rows of A, then packed columns of B.
constexpr intptr_t kRowBytes = 17 << 13, kColumnBytes = 1 << 19;
// Elements beyond the rows of A: those that packing may write, and as many at most up to a line of the cache, where panels
// begin. Vectors across two lines take twice as long to load.
constexpr intptr_t kBeyondRows = 32, kUpToLine = kBeyondRows / 2;
// Up to this depth a product of many columns is bound by writing C, which goes faster along its rows.
// Up to kBrief one tile of rows at a time does: more of them wait for C at more places of memory than processors fetch.
constexpr intptr_t kShallow = 64, kShallowRows = 32, kShallowPanels = 8, kLeastDepth = 4, kBrief = 16;
// Up to as many tiles of rows read B in place.
constexpr intptr_t kFewTiles = 12;

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

// The block sizes of a product, in elements.
template <class T>
struct Blocks {
  intptr_t width, narrow, depth, tall, rows, columns;
  bool shallow, pack_rows;

  // `plain`: B is a matrix in memory, whose panels may be wider.
  MB_INLINE Blocks(const Gemm<T>& g, int bytes, bool plain = false) {
    constexpr intptr_t kSize = sizeof(T);
    // As deep for AVX-512 as for AVX2, so that bits are the same.
    const intptr_t deepest = kPanelBytes / kTileVectors / unsigned(MINBUILD_AVX512 && bytes == 64 ? 32 : bytes);
    width = narrow = lanes_of<T>(bytes) * kTileVectors;
    if (MINBUILD_AVX512 && plain && bytes == 64) width = lanes_of<T>(bytes) * kWideVectors, width = width_of(g.n);
    depth = g.k < deepest ? g.k : deepest;
    tall = packed_tile_rows(bytes);
    shallow = g.k <= kShallow && g.n > kShallowPanels * narrow;
    rows = shallow ? (g.k <= kBrief ? tall : kShallowRows) : (kRowBytes / kSize - kBeyondRows) / depth / tall * tall;
    const intptr_t blocks = (g.m + rows - 1) / rows;  // of about the same size
    if (blocks > 0) rows = whole_tiles((g.m + blocks - 1) / blocks);
    columns = (kColumnBytes / kSize / depth - (width - narrow)) / width * width;  // and a narrow panel that is not full
    // Rows in place are as good where they are contiguous, unless tiles load them as vectors, or many panels pass by rows
    // that share few sets of the nearest cache. Elements with a step between them always do.
    pack_rows = kRowVectors ||
                (g.a_col != 1 ? g.k > kLeastDepth : !shallow && g.n > 8 * narrow && g.a_row % (2048 / kSize) == 0);
  }
  // Columns of a panel with `left` columns from its first on: the last ones may be narrow, to have as few in vain.
  MB_INLINE intptr_t width_of(intptr_t left) const { return left > 2 * narrow || left == width ? width : narrow; }
  MB_INLINE intptr_t whole_tiles(intptr_t of) const { return (of + tall - 1) / tall * tall; }
  // The last rows that tiles of `fewer` rows compute sooner than tall ones, one or two tiles of them.
  MB_INLINE intptr_t low_rows(intptr_t of, intptr_t fewer) const {
    const intptr_t rest = of % tall;
    if (!kTallerTiles || rest == 0 || rest > fewer || (MINBUILD_AVX512 && fewer == tall)) return 0;
    return of > tall && rest + tall <= 2 * fewer ? rest + tall : rest;
  }
  MB_INLINE bool starts_tall(const Gemm<T>& g, int bytes) const {
    return g.m - low_rows(g.m, tile_rows(bytes)) >= tall;
  }
  // True of a B that is near, with few tiles or one panel: the first tile, a tall one, packs what is in place.
  MB_INLINE bool packs_in_tiles(const Gemm<T>& g, int bytes) const {
    return g.b_col == 1 && (g.m <= 64 || g.n < 2 * narrow) && !is_far(g) && starts_tall(g, bytes);
  }
  // True of a B that tiles of 64 bytes read in place, while they fetch the next panel: of few rows of A, or of one or two
  // panels. Its rows must not be at distances that share few sets of the caches.
  MB_INLINE bool in_place(const Gemm<T>& g, int bytes) const {
    return MINBUILD_AVX512 && bytes == 64 && g.b_col == 1 && (g.m <= kFewTiles * tall || g.n <= 2 * narrow) &&
           g.b_row % (4096 / intptr_t(sizeof(T))) != 0;
  }
  // True of rows of another B, which tall tiles pack for the next panel.
  MB_INLINE bool packs_ahead(const Gemm<T>& g, int bytes) const {
    return g.b_col == 1 && g.n >= 2 * narrow && starts_tall(g, bytes) && !packs_in_tiles(g, bytes);
  }
  MB_INLINE intptr_t depth_at(const Gemm<T>& g, intptr_t k) const { return g.k - k < depth ? g.k - k : depth; }
  // From a panel of a block of columns and depth to the next one: beside it, or the first at the next depth.
  MB_INLINE void step(intptr_t& at, intptr_t& k, intptr_t of) const {
    at += width_of(of - at);
    if (at >= of) at = 0, k += depth;
  }
  // Of the largest blocks there may be: parts of a product have fewer rows and columns, but maybe larger blocks of them.
  MB_INLINE intptr_t row_elements(const Gemm<T>& g) const {
    return pack_rows ? at_most(whole_tiles(g.m), kRowBytes / intptr_t(sizeof(T)) - kBeyondRows) + kBeyondRows
                     : kUpToLine;
  }
  MB_INLINE T* panels_in(T* scratch, const Gemm<T>& g) const {
    const uintptr_t at = reinterpret_cast<uintptr_t>(scratch + row_elements(g) - kUpToLine);
    return reinterpret_cast<T*>((at + 63) & -uintptr_t{64});
  }
  MB_INLINE intptr_t elements(const Gemm<T>& g) const {
    return row_elements(g) + at_most((g.n + 2 * narrow - 1) / narrow * narrow, kColumnBytes / intptr_t(sizeof(T)));
  }
  MB_INLINE intptr_t at_most(intptr_t lines, intptr_t most) const {
    return lines > most / depth ? most : lines * depth;
  }
};

// The work of a panel's tiles for the next panel: they pack it or fetch it.
template <class T>
struct NextPanel {
  RowsAhead<T> ahead;
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

  // The same of a panel that all tiles but the first fetch: its columns, or its rows by the ends of their lines, as they
  // may begin within one, which came with the panel before. False if there is nothing to fetch.
  MB_INLINE bool fetch(const Gemm<T>& g, const Blocks<T>& blocks, intptr_t j, intptr_t columns, intptr_t at, intptr_t k,
                       bool along, intptr_t tiles) {
    constexpr intptr_t kLine = 64 / sizeof(T);
    blocks.step(at, k, columns);
    if (k >= g.k || tiles < 2) return false;
    const intptr_t rows = blocks.depth_at(g, k), length = along ? rows : blocks.width;
    fetched.from = g.b + k * g.b_row + (j + at) * g.b_col + (along ? 0 : kLine - 1);
    fetched.apart = along ? g.b_col : g.b_row;
    fetched.lines = fetched.left = (length + kLine - 1) / kLine;
    fetched.share = (fetched.lines * (along ? blocks.width : rows) + tiles - 2) / (tiles - 1);
    return true;
  }
};

// The product by packed blocks, in scratch memory for as many elements as they have. Where A is no matrix in memory,
// `rows` packs it: rows(to, step, a, count, depth) writes `count` rows of `depth` elements, `step` apart, from where the
// element `a` would be. `start`: as in TileSteps.
template <class T, class... Rows>
MB_NOINLINE void multiply_packed(const Gemm<T>& g, int bytes, T* scratch, PackPanels<T> pack, const void* packer,
                                 const T* start, const Rows&... rows) {
  alignas(16) T edge[kMostPackedRows * kMostTileBytes / sizeof(T)];
#if MB_COLLECTS_PANELS
  int32_t places[kPanelBytes / kTileVectors / 32];
  PanelCopies<T> copies = {places};
#endif
  const bool plain = packer == &g;
  Blocks<T> blocks(g, bytes, plain);
  if constexpr (sizeof...(rows) != 0) blocks.pack_rows = true;
  const intptr_t depth = blocks.depth, tall = blocks.tall;
  T* const panels = blocks.panels_in(scratch, g);
  const bool one_block = g.m <= blocks.rows, once = plain && one_block;
  const bool along = once && g.b_row == 1,
             turns = along && kTurnsInTiles<T> && bytes >= 32 && blocks.starts_tall(g, bytes);
  const bool fetches = along && !kTurnsInTiles<T>;
  const bool in_place = once && blocks.in_place(g, bytes);
  const bool widest = MINBUILD_AVX512 && bytes == 64, tiles_pack = once && !in_place && kPacksInTiles && bytes >= 32;
  const bool in_tiles = tiles_pack && !widest && blocks.packs_in_tiles(g, bytes);
  const bool two_panels =
      tiles_pack && (widest ? blocks.width > blocks.narrow && g.b_col == 1 : blocks.packs_ahead(g, bytes));
  const bool together = plain && !along && !in_place && !in_tiles && !two_panels;
  // Where no panels are kept, C has their room in the second nearest cache.
  if (turns || in_place || in_tiles || two_panels) blocks.columns *= 2;
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
        if (fetches) {
          constexpr intptr_t kLine = 64 / sizeof(T);
          const intptr_t all = (tile.m + tall - 1) / tall;
          steps.lines = (tile.k + kLine - 1) / kLine;
          steps.share = (steps.lines * blocks.width + all - 1) / all;
        }
        if (blocks.pack_rows) {
          if constexpr (sizeof...(rows) == 0) {
            const intptr_t high = tile.m - low;
            steps.step = steps.low_step = tall * tile.k;
            run_at<PackBody<T>>(bytes, tile.a, g.a_row, g.a_col, scratch, tall, high, tile.k);
            T* to = scratch + high * tile.k;
            for (intptr_t i = high; i < tile.m; i += short_rows, to += steps.step)
              run_at<PackBody<T>>(bytes, tile.a + i * g.a_row, g.a_row, g.a_col, to, tall,
                                  tile.m - i < short_rows ? tile.m - i : short_rows, tile.k);
            tile.a_row = 1, tile.a_col = tall;
          } else if constexpr (kRowVectors) {
            (pack_by_pieces(g, tile.a, tile.m, tile.k, scratch, tall, rows), ...);
            steps.step = tall * tile.k;
          } else {
            (rows(scratch, depth, tile.a, tile.m, tile.k), ...);
            tile.a_row = depth, tile.a_col = 1;
            steps.step = tall * depth, steps.low_step = short_rows * depth;
          }
          tile.a = scratch;
        }
        tile.c = g.c + i * g.c_row + j * g.c_col;
        intptr_t group = 0, grouped = 0;  // panels that are packed at once: the first of them, and the end of the last
        for (intptr_t at = 0, width; at < columns; at += width, tile.c += width * g.c_col) {
          width = blocks.width_of(columns - at);
          tile.n = columns - at < width ? columns - at : width;
          if (MB_HALF_PANELS && bytes == 64 && !together && tile.n <= blocks.narrow / 2) width = blocks.narrow / 2;
          const bool whole = tile.n == width, first = at >= grouped;
          if (first) {
            group = grouped = at;
            for (int some = together ? 8 : 1; some > 0 && blocks.width_of(columns - grouped) >= width; --some)
              grouped += width;
            if (grouped > columns) grouped = columns;
          }
          T* const panel = panels + (two_panels ? next.other * depth : (one_block ? at - group : at) * tile.k);
          steps.width = tile.b_row = width;
          steps.raw = (in_tiles || turns) && whole ? g.b + k * g.b_row + (j + at) * g.b_col : nullptr;
          steps.turned = turns && steps.raw;
          steps.copies = nullptr;
          const intptr_t done = in_place && whole ? tile.k : !steps.raw ? 0 : turns ? tile.k & -kTurned : tile.k;
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
          if (two_panels) {
            next.pack(g, blocks, j, columns, at, k, whole && width == blocks.width, tiles, panels);
            steps.ahead = next.packed ? &next.ahead : nullptr;
          } else if (MINBUILD_AVX512 && (in_place || turns)) {
            steps.fetched = next.fetch(g, blocks, j, columns, at, k, turns, tiles) ? &next.fetched : nullptr;
          }
          if (in_place && whole) tile.b = g.b + k * g.b_row + j + at, tile.b_row = g.b_row;
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
