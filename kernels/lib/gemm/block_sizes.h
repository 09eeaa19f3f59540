// The blocks of a packed product (packed_blocks.h): their sizes, and the scratch memory that they take.
#ifndef MINBUILD_LIB_GEMM_BLOCK_SIZES_H_
#define MINBUILD_LIB_GEMM_BLOCK_SIZES_H_

#include "lib/gemm/gemm.h"

namespace minbuild {

// Scratch memory of a product, as gemm_packing.py declares it: packed rows of A, then packed columns of B.
constexpr intptr_t kRowBytes = 17 << 13, kColumnBytes = 1 << 19;
// Where many rows of A are packed, which happens again for each block of columns, those are wider: 1,024 columns, a
// frequent number, are one block of the usual depth.
constexpr intptr_t kWideColumnBytes = 17 << 16, kManyRows = 512;
// Elements beyond the rows of A: those that packing may write, and as many at most up to a line of the cache, where panels
// begin. Vectors across two lines take twice as long to load.
constexpr intptr_t kBeyondRows = 32, kUpToLine = kBeyondRows / 2;
// Up to this depth a product of many columns is bound by writing C, which goes faster along its rows.
// Up to kBrief one tile of rows at a time does: more of them wait for C at more places of memory than processors fetch.
constexpr intptr_t kShallow = 64, kShallowRows = 32, kShallowPanels = 8, kLeastDepth = 4, kBrief = 16;
// Up to as many tiles of rows read B in place.
constexpr intptr_t kFewTiles = 8;

// The block sizes of a product, in elements.
template <class T>
struct Blocks {
  intptr_t width, narrow, depth, tall, rows, columns, column_bytes;
  bool shallow, pack_rows, may_pack_rows;

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
    // Rows in place are as good where they are contiguous, unless tiles load them as vectors, or many panels pass by rows
    // that share few sets of the nearest cache. Elements with a step between them always do.
    const bool many = !shallow && g.n > 8 * narrow;
    pack_rows = kRowVectors || (g.a_col != 1 ? g.k > kLeastDepth : many && g.a_row % (2048 / kSize) == 0);
    // Tiles of vectors of 64 bytes are so fast that they wait for rows in place; those of packed rows are one stream. The
    // rows of convolutions are few.
    may_pack_rows = pack_rows || (MINBUILD_AVX512 && bytes == 64 && many);
    if (plain) pack_rows = may_pack_rows;
    column_bytes = g.wide && may_pack_rows && g.m >= kManyRows ? kWideColumnBytes : kColumnBytes;
    columns = (column_bytes / kSize / depth - (width - narrow)) / width * width;  // and a narrow panel that is not full
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
    return pack_rows || may_pack_rows
               ? at_most(whole_tiles(g.m), kRowBytes / intptr_t(sizeof(T)) - kBeyondRows) + kBeyondRows
               : kUpToLine;
  }
  MB_INLINE T* panels_in(T* scratch, const Gemm<T>& g) const {
    const uintptr_t at = reinterpret_cast<uintptr_t>(scratch + row_elements(g) - kUpToLine);
    return reinterpret_cast<T*>((at + 63) & -uintptr_t{64});
  }
  MB_INLINE intptr_t elements(const Gemm<T>& g) const {
    return row_elements(g) + at_most((g.n + 2 * narrow - 1) / narrow * narrow, column_bytes / intptr_t(sizeof(T)));
  }
  MB_INLINE intptr_t at_most(intptr_t lines, intptr_t most) const {
    return lines > most / depth ? most : lines * depth;
  }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_GEMM_BLOCK_SIZES_H_
