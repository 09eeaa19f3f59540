// One strided matrix product for every dense layer and convolution. A is never packed: its elements are broadcast
// through row pointers, whatever its strides. B is read in place when its rows are contiguous and few rows of A use it,
// else packed panel by panel on the stack. Products along a contiguous K (the forward pass of a Linear layer) are dot
// products. Only the inner loops exist once per vector width, and only the thin driver multiply() once per packer.
#ifndef MINBUILD_LIB_GEMM_GEMM_H_
#define MINBUILD_LIB_GEMM_GEMM_H_

#include "lib/gemm/dot_products.h"
#include "lib/gemm/packer.h"
#include "lib/types/bytes.h"
#if MB_ONE_VARIANT
#include "lib/gemm/small_gemm.h"
#endif

namespace minbuild {

#if !MB_ONE_VARIANT
// The B of a product itself.
template <class T>
void pack_strided(const void* product, T* panel, int k, int depth, int j0, int columns, int width) {
  const Gemm<T>& g = *static_cast<const Gemm<T>*>(product);
  const T* from = g.b + k * g.b_row + j0 * g.b_col;
  if (g.b_col == 1) {
    using V = Width<kNarrowBytes>::of<T>;
    for (; depth > 0; --depth, from += g.b_row, panel += width) {
      int i = 0;
      for (; i <= columns - V::size; i += V::size) V::load(from + i).store(panel + i);
      for (; i < columns; ++i) panel[i] = from[i];
    }
    return;
  }
  for (; columns > 0; --columns, from += g.b_col, ++panel) {
    const T* x = from;
    T* to = panel;
    for (int i = depth; i > 0; --i, x += g.b_row, to += width) *to = *x;
  }
}
#endif

// A body that exists for wide vectors only where there is a choice.
template <class Body, class... Args>
MB_INLINE void run_wide(Args... args) {
#if MB_DISPATCHES
  run_avx2<Body>(args...);
#else
  dispatch<Body>(args...);
#endif
}

// The same for vectors of 64 bytes too, where `bytes` says so.
template <class Body, class... Args>
MB_INLINE void run_wider([[maybe_unused]] int bytes, Args... args) {
#if MINBUILD_AVX512
  if (bytes == 64) return run_widest<Body>(args...);
#endif
  run_wide<Body>(args...);
}

// How far the rows of a tile are from those of the next, of packed products; the last `low` rows are in tiles of
// tile_rows(), `low_step` apart. `start`: a row that those of a C that nothing is added to start from, or null for zeros.
// `width`: elements of a row of the panel.
// Of what the next panel is packed from, columns from `next` on that are `apart`, some are fetched with each tile: `share`
// lines of the cache, of which a column has `lines`.
// `raw`: the panel in place, with its rows `raw_row` apart, which the first tile packs; or null. `turned`: it is columns,
// `apart`, in place of rows. `copies`: the same of a panel that is collected from several places. `ahead`: of the next
// panel, which tall tiles pack. `fetched` and `rows_fetched`: of the next panel, by tiles that pack nothing.
template <class T>
struct TileSteps {
  intptr_t step, low_step, low;
  const T *start = nullptr, *next = nullptr;
  intptr_t width = 0, apart = 0, lines = 0, share = 0;
  const T* raw = nullptr;
  intptr_t raw_row = 0;
  bool turned = false;
  const PanelCopies<T>* copies = nullptr;
  RowsAhead<T>* ahead = nullptr;
  LinesAhead<T>* fetched = nullptr;
  RowsFetched<T>* rows_fetched = nullptr;
};

// A tall tile of a packed product, the `first` of a panel or a later one.
template <class T>
MB_INLINE void run_tall_tile(int bytes, bool first, const Gemm<T>& g, const T* a, intptr_t rows, T* out,
                             intptr_t out_row, const T* old, const T* next, const TileSteps<T>& steps) {
  using Tile = TileBody<T, true>;
  const Gemm<T>* product = &g;
  if (first && steps.turned) {
    if constexpr (kTurnsInTiles<T>)
      run_wider<Tile>(bytes, product, a, rows, out, out_row, old, steps.raw, steps.apart, next);
  } else if (first && steps.raw) {
    Gemm<T> in_place = g;
    in_place.b = steps.raw, in_place.b_row = steps.raw_row;
    product = &in_place;
    run_wide<Tile>(product, a, rows, out, out_row, old, const_cast<T*>(g.b));
#if MB_COLLECTS_PANELS
  } else if (first && steps.copies) {
    run_widest<Tile>(product, a, rows, out, out_row, old, steps.copies);
#endif
  } else if (steps.ahead) {
    run_wide<Tile>(product, a, rows, out, out_row, old, steps.ahead);
  } else {
    run_at<Tile, 64>(bytes, product, a, rows, out, out_row, old);
  }
}
#if MINBUILD_AVX512
// The same of kWideVectors vectors of 64 bytes.
template <class T>
MB_INLINE void run_wide_tile(bool first, const Gemm<T>& g, const T* a, intptr_t rows, T* out, intptr_t out_row,
                             const T* old, const T* next, TileAhead<T> later, const TileSteps<T>& steps) {
  using Tile = TileBody<T, true, kWideVectors>;
  const Gemm<T>* product = &g;
  if (first && steps.turned) {
    if constexpr (kTurnsInTiles<T>) run_widest<Tile>(product, a, rows, out, out_row, old, steps.raw, steps.apart, next);
  } else if (steps.ahead) {
    run_widest<Tile>(product, a, rows, out, out_row, old, steps.ahead);
  } else if (steps.rows_fetched) {
    run_widest<Tile>(product, a, rows, out, out_row, old, steps.rows_fetched);
  } else if (steps.fetched) {
    run_widest<Tile>(product, a, rows, out, out_row, old, steps.fetched);
  } else if (rows == kMostPackedRows && g.a_row == 1 && g.a_col == rows && g.b_row == steps.width) {
    run_widest<Tile>(product, a, rows, out, out_row, old, later);
  } else {
    run_widest<Tile>(product, a, rows, out, out_row, old);
  }
}
#endif

// Columns of a tile by vectors of `bytes`, in a single division: shorter code than lanes times vectors.
template <class T>
MB_INLINE intptr_t tile_columns(int bytes) {
  return unsigned(bytes) / (sizeof(T) / kTileVectors);
}

// All rows of one panel, whose g.n columns fit one tile. `edge` has room for a tile that does not fit C.
template <class T, class... Steps>
MB_NOINLINE void multiply_panel(const Gemm<T>& g, int bytes, T* edge, const Steps&... steps) {
  constexpr bool kPacked = sizeof...(steps) != 0;
  intptr_t width = tile_columns<T>(bytes);
  if constexpr (kPacked) width = (steps.width, ...);
  intptr_t most = kPacked ? packed_tile_rows(bytes) : tile_rows(bytes);
  [[maybe_unused]] intptr_t step = 0;
  if constexpr (kPacked) step = (steps.step, ...);
  const T* a = g.a;
  T* c = g.c;
  [[maybe_unused]] const T* start = nullptr;
  if constexpr (kPacked) start = (steps.start, ...) ? (steps.start, ...) : zero_row<T>;
  [[maybe_unused]] bool high = true;
  [[maybe_unused]] const T* next = nullptr;
  [[maybe_unused]] intptr_t line = 0;
  if constexpr (kPacked) next = (steps.next, ...);
  for (intptr_t left = g.m; left > 0; left -= most) {
    if constexpr (kPacked && kTallerTiles) {
      if (left == (steps.low, ...)) high = false, most = tile_rows(bytes), step = (steps.low_step, ...);
    }
    if constexpr (kPacked) {
      for (intptr_t i = (steps.share, ...); i > 0; --i) {
        __builtin_prefetch(next + line * intptr_t(64 / sizeof(T)), 0, 2);
        if (++line == (steps.lines, ...)) line = 0, next += (steps.apart, ...);
      }
    }
    const intptr_t rows = left < most ? left : most;
    T* out = edge;
    intptr_t out_row = width;
    const T* old = zero_row<T>;
    if (rows == most && g.n == width && g.c_col == 1) {
      out = c;
      out_row = g.c_row;
      if constexpr (kPacked) old = start;
      if (g.accumulate) old = c;
    } else if constexpr (kPacked) {
      // As in a tile that fits, which of a product's parts each is in: alpha times a sum and what it is added to are
      // rounded once.
      if (g.accumulate || start != zero_row<T>) {
        for (intptr_t r = 0; r < rows; ++r)
          for (intptr_t s = 0; s < g.n; ++s)
            edge[r * width + s] = g.accumulate ? c[r * g.c_row + s * g.c_col] : start[s];
        old = edge;
      }
    }
    MB_OPAQUE(out);  // else the tile is compiled for `c` and for `edge`
#if MB_HALF_PANELS
    if (kPacked && width * intptr_t(sizeof(T)) < kTileVectors * bytes)
      run_widest<TileBody<T, true, 1>>(&g, a, rows, out, out_row, old);
    else
#endif
#if MINBUILD_AVX512
        if (kPacked && width * intptr_t(sizeof(T)) > kTileVectors * 64)
      (run_wide_tile(left == g.m, g, a, rows, out, out_row, old, next,
                     TileAhead<T>{left > most ? c + most * g.c_row : g.c + width, g.c_row}, steps),
       ...);
    else
#endif
        if constexpr (kPacked && kPacksInTiles) {
      if (high) (run_tall_tile(bytes, left == g.m, g, a, rows, out, out_row, old, next, steps), ...);
      else run_at<TileBody<T, false>>(bytes, &g, a, rows, out, out_row, old);
    } else {
      if (kPacked && kTallerTiles && !high) run_at<TileBody<T, false>>(bytes, &g, a, rows, out, out_row, old);
      else if constexpr (MB_FAST_WASM && !kPacked)
        TileBody<T, kPacked>::template run<Width<16>>(&g, a, rows, out, out_row, old);
      else run_at<TileBody<T, kPacked>, kPacked ? 64 : 32>(bytes, &g, a, rows, out, out_row, old);
    }
    if (out == edge) {
      T* to_row = c;
      const T* from = edge;
      for (intptr_t r = 0; r < rows; ++r, to_row += g.c_row, from += width) {
        T* to = to_row;
        for (intptr_t s = 0; s < g.n; ++s, to += g.c_col) {
          if constexpr (kPacked) *to = from[s];
          else *to = (g.accumulate ? *to : 0) + from[s];
        }
      }
    }
    if constexpr (kPacked) a += step;
    else a += most * g.a_row;
    c += most * g.c_row;
  }
}

constexpr int kEdgeBytes = kMostTileRows * kMostTileBytes;

#if MB_WRITTEN_ROWS
// Bytes of rows that are written at a time: some of a panel's depth. As much as a panel, so that small layers, whose
// weights are read by several panels, have theirs written once.
constexpr int kWrittenBytes = kPanelBytes;
// Written rows, and the panel before them, are whole vectors, which must not lie across lines of the cache.
constexpr int kPanelAlignment = 32;

// All rows of one panel, which are written behind it as they are needed; where all fit, they are there but for the
// `first` panel. Else they are so few that they stay in the nearest cache.
template <class T>
MB_NOINLINE void multiply_written(const Gemm<T>& g, int bytes, T* edge, T* panel, bool first) {
  T* const some = panel + g.b_row * g.k;
  intptr_t fitting = (edge - some) / g.k;
  if (fitting < g.m) fitting = intptr_t(kWrittenBytes / sizeof(T)) / g.k;
  const intptr_t most = fitting & -tile_rows(bytes);
  Gemm<T> part = g;
  part.a = some, part.a_row = g.k, part.a_col = 1;
  for (intptr_t i = 0; i < g.m; i += part.m, part.c += part.m * g.c_row) {
    part.m = most > 0 ? most : fitting;
    if (part.m > g.m - i) part.m = g.m - i;
    if (first || part.m < g.m) g.rows(g.source, some, g.a + i * g.a_row, part.m, g.k);
    multiply_panel(part, bytes, edge);
  }
}
#else
constexpr int kWrittenBytes = 0;
constexpr int kPanelAlignment = 16;
#endif

#if !MB_ONE_VARIANT
// The product, panel after panel. `direct`: whole panels are read in place.
template <class T>
MB_NOINLINE void multiply(const Gemm<T>& g, int bytes, bool direct, Pack<T> pack, const void* packer) {
  alignas(kPanelAlignment) T buffer[(kPanelBytes + kWrittenBytes + kEdgeBytes) / sizeof(T)];  // a panel, rows, an edge
  constexpr intptr_t kEdge = (kPanelBytes + kWrittenBytes) / sizeof(T);
  const intptr_t width = tile_columns<T>(bytes), deepest = kPanelBytes / kTileVectors / unsigned(bytes);
  Gemm<T> panel = g;
  for (intptr_t j = 0; j < g.n; j += width) {
    panel.n = g.n - j;
    if (panel.n < width) {
      direct = false;
      clear_bytes(buffer, MB_WRITTEN_ROWS ? size_t(width * (g.k < deepest ? g.k : deepest)) * sizeof(T) : kPanelBytes);
    } else {
      panel.n = width;
    }
    panel.a = g.a;
    panel.accumulate = g.accumulate;
    intptr_t k = 0;
    do {  // at least once: an empty sum is zero
      panel.k = g.k - k < deepest ? g.k - k : deepest;
      panel.b = g.b + k * g.b_row + j;
      if (!direct) {
        pack(packer, buffer, int(k), int(panel.k), int(j), int(panel.n), int(width));
        panel.b = buffer;
        panel.b_row = width;
      }
#if MB_WRITTEN_ROWS
      if (panel.rows) multiply_written(panel, bytes, buffer + kEdge, buffer, j == 0 || panel.k < g.k);
      else
#endif
        multiply_panel(panel, bytes, buffer + kEdge);
      panel.a += deepest * g.a_col;
      panel.accumulate = true;
      k += deepest;
    } while (k < g.k);
    panel.c += width * g.c_col;
  }
}
#endif

// The product with B seen through a packer; b, b_row and b_col are not read.
template <class T, class Packer>
MB_INLINE void gemm(Gemm<T> g, const Packer& packer) {
  multiply<T>(g, vector_bytes(), false, pack_with<T, Packer>, &packer);
}

template <class X>
MB_INLINE void exchange(X& x, X& y) {
  X was = x;
  x = y;
  y = was;
}

// Rows that decide how a product is computed. A part goes the way of its whole, so that no bit depends on the threads.
template <class T>
MB_INLINE intptr_t rows_of_whole(const Gemm<T>& g) {
#if MB_THREADS > 1
  if (g.all_rows != 0) return g.all_rows;
#endif
  return g.m;
}

// True of products along K for which tiles do all the same: enough rows read a packed panel. Engines of WebAssembly take
// long for the last additions of dot products.
template <class T>
MB_INLINE bool has_many_rows(const Gemm<T>& g) {
  return MB_FAST_WASM && rows_of_whole(g) >= 32 && g.n >= 8 && g.c_col == 1;
}

// True if the product is one of dot products. They need depth to pay for their last additions, and have one width only:
// none where vectors are narrow, and where they are wider still it does not pay unless they would stay half empty.
template <class T>
MB_INLINE bool takes_dots(const Gemm<T>& g, int bytes) {
  const int lanes = int(unsigned(bytes) / sizeof(T));
  const bool along = g.a_col == 1 && g.b_row == 1;
  if (has_many_rows(g)) return false;
  return !MB_ONE_VARIANT && along && (bytes > 16 || !MB_DISPATCHES) &&
         (rows_of_whole(g) == 1 || g.n == 1 || g.k >= 8 * lanes);
}

// True of products `along` K that tiles compute sooner than dot products, on x86: so many rows that packing whole panels
// takes less than the last additions would.
template <class T>
MB_INLINE bool takes_tiles(const Gemm<T>& g, bool along) {
  return MB_DISPATCHES && along && g.n % 16 == 0 && g.k < 4 * (rows_of_whole(g) - 8);
}

#if !MB_ONE_VARIANT
// Chooses how to go about it; may take the product from its transpose, C' = B' * A'. Uses `g` up.
template <class T>
MB_NOINLINE void multiply_strided(Gemm<T>& g) {
  const int bytes = vector_bytes(), lanes = int(unsigned(bytes) / sizeof(T));
  const bool along = g.a_col == 1 && g.b_row == 1;
  if (!takes_tiles(g, along)) {
    const bool dots = takes_dots(g, bytes);
    // Few columns leave vectors empty, as few rows do not. With wide vectors that pays only where A' has contiguous rows
    // (a_row is 1): to copy others costs more. Code for aarch64 is shorter if dot products have this rule, too,
    // before their own.
    bool swap = false;
    if (kRowVectors || !dots)
      swap =
          along ? g.m < g.n && !has_many_rows(g) : g.n < g.m && (MB_DISPATCHES ? g.n * g.a_row <= lanes : g.n < lanes);
    if (dots) swap = (g.n < g.m) == (g.m >= 4 && g.n >= 4);
    if (swap) {
      exchange(g.m, g.n);
      exchange(g.a, g.b);
      exchange(g.a_row, g.b_col);
      exchange(g.a_col, g.b_row);
      exchange(g.c_row, g.c_col);
    }
#if MB_DISPATCHES
    if (dots) return run_avx2<DotsBody<T>>(&g);
#else
    if (dots) return dispatch<DotsBody<T>>(&g);
#endif
  }
  // Few tiles of rows read a panel too seldom to pay for a copy; many would meet the cache and store-forwarding
  // conflicts of power-of-two rows each time.
  const bool direct = g.b_col == 1 && g.m <= 8;
  multiply<T>(g, bytes, direct, pack_strided<T>, &g);
}
#endif

#if MB_THREADS > 1
// The rows of C from `i` on and its columns from `j` on, so many at most.
template <class T>
MB_INLINE Gemm<T> part_of(const Gemm<T>& g, intptr_t i, intptr_t rows, intptr_t j, intptr_t columns) {
  Gemm<T> some = g;
  some.all_rows = rows_of_whole(g);
  some.m = g.m - i < rows ? g.m - i : rows;
  some.n = g.n - j < columns ? g.n - j : columns;
  some.a += i * g.a_row;
  some.b += j * g.b_col;
  some.c += i * g.c_row + j * g.c_col;
  return some;
}
#endif

template <class T>
MB_INLINE void gemm(Gemm<T> g) {
  multiply_strided(g);
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_GEMM_GEMM_H_
