// Matrix products of real size. Where operands do not fit the caches, what counts is how often each is read from
// afar. Blocks of both are packed into scratch memory, in the order in which the tiles of microkernel.h read them:
//
//   columns of B, kColumnBytes at a time   for blocks of depth     B is packed once; a panel of it stays in the nearest
//     rows of A, kRowBytes at a time                               cache while all rows pass by, and those rows stay in
//       panels of B, all tiles of rows                             the second nearest while all panels pass by.
//
// Every sum is added in the order of multiply() in gemm.h, so its bits do not depend on which of them was taken.
#ifndef MINBUILD_LIB_GEMM_PACKED_GEMM_H_
#define MINBUILD_LIB_GEMM_PACKED_GEMM_H_

#include "lib/gemm/gemm.h"

namespace minbuild {

// Scratch memory of a product, as contraction.py declares it: packed rows of A, then packed columns of B.
constexpr intptr_t kRowBytes = 1 << 17, kColumnBytes = 1 << 18;
// Packed rows are a cache line longer than deep: power-of-two rows would share a few sets of the nearest cache.
constexpr intptr_t kRowGap = 64;
// With fewer rows or columns packing costs more than it saves.
constexpr intptr_t kFewest = 16;
// Up to this depth a product is bound by writing C, which goes faster along its rows.
constexpr intptr_t kShallow = 64, kShallowRows = 32, kLeastDepth = 4;
// Of an operand that is read once, in place, as many bytes stay in the second nearest cache, and as many rows are
// streams that processors fetch ahead.
constexpr intptr_t kNearBytes = 1 << 18, kStreams = 32;

#if MB_SIMD && (defined(__clang__) || __GNUC__ >= 12)
#define MB_SHUFFLES 1
#else
#define MB_SHUFFLES 0
#endif

// Four rows become columns of `to`: to[c * step + r] = row r at c. By vectors, which may read and write up to three
// columns too many. Element by element it would take as long as the products of a dozen rows.
template <class T>
MB_INLINE void transpose_rows(const T* r0, const T* r1, const T* r2, const T* r3, T* to, intptr_t step,
                              intptr_t columns) {
  intptr_t c = 0;
#if MB_SHUFFLES
  if constexpr (sizeof(T) == 4) {
    using V = Vec<T, 4>;
    using Raw = typename V::Raw;
    for (; c < columns; c += 4, to += 4 * step) {
      const Raw x0 = V::load(r0 + c).v, x1 = V::load(r1 + c).v, x2 = V::load(r2 + c).v, x3 = V::load(r3 + c).v;
      const Raw a = __builtin_shufflevector(x0, x1, 0, 4, 1, 5), b = __builtin_shufflevector(x0, x1, 2, 6, 3, 7);
      const Raw d = __builtin_shufflevector(x2, x3, 0, 4, 1, 5), e = __builtin_shufflevector(x2, x3, 2, 6, 3, 7);
      V(Raw(__builtin_shufflevector(a, d, 0, 1, 4, 5))).store(to);
      V(Raw(__builtin_shufflevector(a, d, 2, 3, 6, 7))).store(to + step);
      V(Raw(__builtin_shufflevector(b, e, 0, 1, 4, 5))).store(to + 2 * step);
      V(Raw(__builtin_shufflevector(b, e, 2, 3, 6, 7))).store(to + 3 * step);
    }
  }
#endif
  for (; c < columns; ++c, to += step) to[0] = r0[c], to[1] = r1[c], to[2] = r2[c], to[3] = r3[c];
}

// to[c * to_step + r] = from[r * from_step + c], within bounds.
template <class T>
MB_NOINLINE void transpose(const T* from, intptr_t from_step, T* to, intptr_t to_step, intptr_t rows,
                           intptr_t columns) {
  const intptr_t whole = columns & -4;
  for (; rows >= 4; rows -= 4, from += 4 * from_step, to += 4) {
    const T *r1 = from + from_step, *r2 = r1 + from_step, *r3 = r2 + from_step;
    transpose_rows(from, r1, r2, r3, to, to_step, whole);
    for (intptr_t c = whole; c < columns; ++c) {
      T* at = to + c * to_step;
      at[0] = from[c], at[1] = r1[c], at[2] = r2[c], at[3] = r3[c];
    }
  }
  for (; rows > 0; --rows, from += from_step, ++to)
    for (intptr_t c = 0; c < columns; ++c) to[c * to_step] = from[c];
}

// to[r * to_step + i] = x(r, i), where x has elements `row` and `column` apart.
template <class T>
MB_NOINLINE void gather(const T* x, intptr_t row, intptr_t column, T* to, intptr_t to_step, intptr_t rows,
                        intptr_t columns) {
  // Along x: its rows stay few streams, and the cache lines that they lie in are read once.
  if (row == 1 && column != 1) return transpose(x, column, to, to_step, columns, rows);
  for (; rows > 0; --rows, x += row, to += to_step) {
    if (column == 1) {
      copy_bytes(to, x, size_t(columns) * sizeof(T));
    } else {
      for (intptr_t i = 0; i < columns; ++i) to[i] = x[i * column];
    }
  }
}

// The B of a product itself, packed for all rows.
template <class T>
void pack_columns(const void* product, T* panel, int k, int depth, int j0, int columns, int width) {
  const Gemm<T>& g = *static_cast<const Gemm<T>*>(product);
  if (g.b_col == 1) return pack_strided<T>(product, panel, k, depth, j0, columns, width);
  gather(g.b + k * g.b_row + j0 * g.b_col, g.b_row, g.b_col, panel, intptr_t(width), depth, columns);
}

// The block sizes of a product, in elements.
template <class T>
struct Blocks {
  intptr_t width, depth, step, rows, columns;
  bool shallow, pack_rows;

  MB_INLINE Blocks(const Gemm<T>& g, int bytes) {
    constexpr intptr_t kSize = sizeof(T);
    const intptr_t deepest = kPanelBytes / kTileVectors / unsigned(bytes);
    width = lanes_of<T>(bytes) * kTileVectors;
    depth = g.k < deepest ? g.k : deepest;
    step = depth + kRowGap / kSize;
    shallow = g.k <= kShallow;
    rows = shallow ? kShallowRows : (kRowBytes / kSize / step) & -kMostTileRows;
    columns = kColumnBytes / kSize / depth / width * width;
    // Rows in place are as good where they are contiguous and few panels pass by; a step between their elements would
    // share few sets of the nearest cache.
    pack_rows = g.a_col != 1 ? g.k > kLeastDepth : !shallow && g.n > 8 * width;
  }
  MB_INLINE intptr_t row_elements(const Gemm<T>& g) const { return pack_rows ? (g.m < rows ? g.m : rows) * step : 0; }
  MB_INLINE intptr_t elements(const Gemm<T>& g) const {
    const intptr_t whole = (g.n + width - 1) / width * width;
    return row_elements(g) + (whole < columns ? whole : columns) * depth;
  }
};

// The product by packed blocks, in scratch memory for as many elements as they have. Where A is no matrix in memory,
// `rows` packs it: rows(to, step, a, count, depth) writes `count` rows of `depth` elements, `step` apart, from where the
// element `a` would be.
template <class T, class... Rows>
MB_NOINLINE void multiply_packed(const Gemm<T>& g, int bytes, T* scratch, Pack<T> pack, const void* packer,
                                 const Rows&... rows) {
  alignas(16) T edge[kEdgeBytes / sizeof(T)];
  Blocks<T> blocks(g, bytes);
  if constexpr (sizeof...(rows) != 0) blocks.pack_rows = true;
  const intptr_t width = blocks.width, depth = blocks.depth, step = blocks.step;
  T* const panels = scratch + blocks.row_elements(g);
  for (intptr_t j = 0; j < g.n; j += blocks.columns) {
    const intptr_t columns = g.n - j < blocks.columns ? g.n - j : blocks.columns;
    for (intptr_t k = 0; k < g.k; k += depth) {
      Gemm<T> tile = g;
      tile.accumulate = g.accumulate || k > 0;
      tile.k = g.k - k < depth ? g.k - k : depth;
      for (intptr_t at = 0; at < columns; at += width) {
        const intptr_t live = columns - at < width ? columns - at : width;
        T* panel = panels + at * depth;
        if (live < width) clear_bytes(panel, size_t(width * depth) * sizeof(T));
        pack(packer, panel, int(k), int(tile.k), int(j + at), int(live), int(width));
      }
      tile.b_row = width;
      for (intptr_t i = 0; i < g.m; i += blocks.rows) {
        tile.m = g.m - i < blocks.rows ? g.m - i : blocks.rows;
        tile.a = g.a + i * g.a_row + k * g.a_col;
        if (blocks.pack_rows) {
          if constexpr (sizeof...(rows) == 0) gather(tile.a, g.a_row, g.a_col, scratch, step, tile.m, tile.k);
          else (rows(scratch, step, tile.a, tile.m, tile.k), ...);
          tile.a = scratch, tile.a_row = step, tile.a_col = 1;
        }
        tile.c = g.c + i * g.c_row + j * g.c_col;
        for (intptr_t at = 0; at < columns; at += width, tile.c += width * g.c_col) {
          tile.n = columns - at < width ? columns - at : width;
          tile.b = panels + at * depth;
          multiply_panel(tile, bytes, edge);
        }
      }
    }
  }
}

// With so few rows that a packed operand would not be read again, B is read once, in place and in order.
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

#if MB_THREADS > 1

// Lets the threads of a call share its products, as many as `bytes` of scratch memory have room for.
template <class T>
MB_NOINLINE void divide_among(Gemm<T>& g, Team* team, int64_t bytes) {
  constexpr intptr_t kAligned = 64 / sizeof(T);
  if (team == nullptr || g.k < 1) return;
  g.team = team;
  g.share = (Blocks<T>(g, vector_bytes()).elements(g) + kAligned - 1) & -kAligned;
  const int64_t room = bytes / (g.share * intptr_t(sizeof(T)));
  g.members = room < team->members ? int32_t(room) : team->members;
}

// B from column `first` on.
template <class T>
struct LaterColumns {
  Pack<T> pack;
  const void* packer;
  int first;

  static void run(const void* columns, T* panel, int k, int depth, int j, int live, int width) {
    const LaterColumns& c = *static_cast<const LaterColumns*>(columns);
    c.pack(c.packer, panel, k, depth, c.first + j, live, width);
  }
};

// The product in parts of some rows and columns, whole tiles, each of them packed by itself.
template <class T>
MB_NOINLINE void multiply_in_parts(const Gemm<T>& g, int bytes, T* scratch, Pack<T> pack, const void* packer) {
  if (g.members < 2 || int64_t(g.m) * g.n * g.k < kLeastWork) return multiply_packed(g, bytes, scratch, pack, packer);
  // Columns first: whatever packs B may have to gather it. Twice as many parts as threads, where that leaves large ones.
  const intptr_t tiles = 4 * tile_rows(bytes), width = intptr_t(unsigned(bytes) / sizeof(T)) * kTileVectors;
  intptr_t parts = int64_t(g.m) * g.n * g.k < 8 * g.members * kLeastWork ? g.members : 2 * g.members;
  intptr_t columns = (g.n + parts - 1) / parts, rows = g.m;
  if (columns < 4 * width) columns = 4 * width;
  columns = (columns + width - 1) / width * width;
  const intptr_t across = (g.n + columns - 1) / columns;
  parts = (parts + across - 1) / across;
  rows = ((g.m + parts - 1) / parts + tiles - 1) / tiles * tiles;
  const intptr_t down = (g.m + rows - 1) / rows;
  for_parts(g.team, g.members, across * down, [&](int32_t part, int32_t member) {
    const intptr_t i = part / across * rows, j = part % across * columns;
    Gemm<T> some = g;
    some.m = g.m - i < rows ? g.m - i : rows;
    some.n = g.n - j < columns ? g.n - j : columns;
    some.a += i * g.a_row;
    some.c += i * g.c_row + j * g.c_col;
    const LaterColumns<T> later = {pack, packer, int(j)};
    multiply_packed<T>(some, bytes, scratch + member * g.share, LaterColumns<T>::run, &later);
  });
}

// multiply_few in parts of some columns, as many as its blocks or whole tiles have.
template <class T>
MB_NOINLINE void multiply_few_in_parts(const Gemm<T>& g) {
  const intptr_t unit = g.b_row == 1 ? kNearBytes / intptr_t(sizeof(T)) / g.k + 1 : 64;
  if (g.members < 2 || int64_t(g.n) * g.k * intptr_t(sizeof(T)) < 4 * kLeastBytes) return multiply_few(g);
  const intptr_t units = (g.n + unit - 1) / unit, columns = (units + 4 * g.members - 1) / (4 * g.members) * unit;
  for_parts(g.team, g.members, (g.n + columns - 1) / columns, [&](int32_t part, int32_t) {
    const intptr_t j = part * columns;
    Gemm<T> some = g;
    some.n = g.n - j < columns ? g.n - j : columns;
    some.b += j * g.b_col;
    some.c += j * g.c_col;
    multiply_few(some);
  });
}

#else

template <class T>
MB_INLINE void multiply_in_parts(const Gemm<T>& g, int bytes, T* scratch, Pack<T> pack, const void* packer) {
  multiply_packed<T>(g, bytes, scratch, pack, packer);
}
template <class T>
MB_INLINE void multiply_few_in_parts(const Gemm<T>& g) {
  multiply_few(g);
}

#endif

// True if the scratch memory of a kernel is enough for the product.
template <class T, class Tensor>
MB_NOINLINE bool scratch_suffices(const Gemm<T>& g, const Tensor* scratch) {
  return g.k < 1 || Blocks<T>(g, vector_bytes()).elements(g) * intptr_t(sizeof(T)) <= scratch->count;
}

// The product, packed or as it suits its sizes; `scratch` has what Blocks says, kRowBytes + kColumnBytes at most.
template <class T>
MB_NOINLINE void gemm_at(const Gemm<T>& g, T* scratch) {
  Gemm<T> product = g;
  if (g.k < 1 || g.n < kFewest) return multiply_strided(product);
  if (g.m < kFewest && g.k > kFewest) return multiply_few_in_parts(g);
  multiply_in_parts<T>(g, vector_bytes(), scratch, pack_columns<T>, &g);
}

// The same in the scratch memory of a kernel.
template <class T, class Tensor>
MB_INLINE void gemm_in(const Gemm<T>& g, const Tensor* scratch) {
  gemm_at(g, scratch->template scratch<T>());
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_GEMM_PACKED_GEMM_H_
