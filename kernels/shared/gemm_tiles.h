// The register tiles of the matrix product, per vector width; gemm.h drives them.
#ifndef MINBUILD_SHARED_GEMM_TILES_H_
#define MINBUILD_SHARED_GEMM_TILES_H_

#include "shared/vec.h"

namespace minbuild {

// C[m,n] = alpha * A[m,k] * B[k,n], added to C if `accumulate`. Element (i,j) of X is x[i*x_row + j*x_col].
template <class T>
struct Gemm {
  int m, n, k;
  const T* a;
  intptr_t a_row, a_col;
  const T* b;
  intptr_t b_row, b_col;
  T* c;
  intptr_t c_row, c_col = 1;
  T alpha = 1;
  bool accumulate = false;
};

// Register tiles per width: kTileRows x kTileVectors over panels, as many accumulators as hide the latency of a
// multiply-add, and tiles of dot products. SSE2 where AVX2 may be present is a fallback, kept small: no dot products.
// Without vector registers sixteen scalars are what a register file holds.
constexpr int kTileVectors = MB_SIMD ? 2 : 1;
#if defined(__aarch64__)
template <class W>
constexpr int kTileRows = 8;
#else
template <class W>
constexpr int kTileRows = W::bytes == 64 ? 8 : 4;
#endif
template <class W>
constexpr bool kHasDots = MB_DISPATCHES ? W::bytes == 32 : W::bytes < 64;
constexpr int kDotRows = MB_SIMD ? 4 : 1;
constexpr int kDotColumns = MB_SIMD ? 3 : 4;
constexpr int kOneRowDots = MB_SIMD ? 8 : 4;  // columns of the dot tile for a single row
constexpr int kMostDots = MB_SIMD ? 12 : 4;

// Pointers to `Count` rows from `x` on, the last of the `live` ones repeated. Returns the last.
template <int Count, class T>
MB_INLINE const T* point_at_rows(const T* (&rows)[Count], const T* x, intptr_t step, int live) {
  unroll<Count>([&](auto r) MB_LAMBDA {
    rows[r] = x;
    if (r + 1 < live && r + 1 < Count) x += step;
  });
  return x;
}

// Where a tile's results go and what they are added to (a zero `old_row` repeats one row).
template <class T>
struct Target {
  T* out;
  intptr_t out_row;
  const T* old;
  intptr_t old_row;
};

// out[Rows][Vectors * lanes] = old + alpha * rows of A * the panel g.b.
template <class W, int Rows, int Vectors, class T>
MB_INLINE void multiply_tile(const Gemm<T>& g, const T* from, int rows, Target<T> to) {
  using V = typename W::template of<T>;
  const T* a[Rows];
  point_at_rows(a, from, g.a_row, rows);
  V x[Rows][Vectors];
  unroll<Rows>([&](auto r) MB_LAMBDA { unroll<Vectors>([&](auto v) MB_LAMBDA { x[r][v] = V(T(0)); }); });
  const T* b = g.b;
  intptr_t at = 0;
  for (int k = g.k; k > 0; --k) {
    V row[Vectors];
    unroll<Vectors>([&](auto v) MB_LAMBDA { row[v] = V::load(b + v * V::size); });
    unroll<Rows>([&](auto r) MB_LAMBDA {
      V factor = a[r][at];
      unroll<Vectors>([&](auto v) MB_LAMBDA { x[r][v] = muladd(factor, row[v], x[r][v]); });
    });
    b += g.b_row;
    at += g.a_col;
  }
  V alpha = g.alpha;
  unroll<Rows>([&](auto r) MB_LAMBDA {
    unroll<Vectors>([&](auto v) MB_LAMBDA {
      muladd(x[r][v], alpha, V::load(to.old + v * V::size)).store(to.out + v * V::size);
    });
    to.out += to.out_row;
    to.old += to.old_row;
  });
}

// lanes[Rows][Columns] = rows of A times columns of B, both contiguous along k, lane by lane over whole vectors.
template <class W, int Rows, int Columns, class T>
MB_INLINE void dot_tile(const Gemm<T>& g, const T* from, int rows, T* lanes) {
  using V = typename W::template of<T>;
  const T *a[Rows], *b[Columns];
  point_at_rows(a, from, g.a_row, rows);
  point_at_rows(b, g.b, g.b_col, g.n);
  V x[Rows][Columns];
  unroll<Rows>([&](auto r) MB_LAMBDA { unroll<Columns>([&](auto s) MB_LAMBDA { x[r][s] = V(T(0)); }); });
  for (intptr_t k = 0; k <= g.k - V::size; k += V::size) {
    V column[Columns];
    unroll<Columns>([&](auto s) MB_LAMBDA { column[s] = V::load(b[s] + k); });
    unroll<Rows>([&](auto r) MB_LAMBDA {
      V row = V::load(a[r] + k);
      unroll<Columns>([&](auto s) MB_LAMBDA { x[r][s] = muladd(row, column[s], x[r][s]); });
    });
  }
  unroll<Rows>([&](auto r) MB_LAMBDA {
    unroll<Columns>([&](auto s) MB_LAMBDA { x[r][s].store(lanes + (r * Columns + s) * V::size); });
  });
}

// tile[rows][g.n] = alpha * (sums over the lanes + the products that no whole vector held); `pitch` columns in both.
template <class V, class T>
MB_INLINE void sum_lanes(const Gemm<T>& g, const T* from, int rows, int pitch, const T* lanes, T* tile) {
  for (; rows > 0; --rows, from += g.a_row) {
    for (int s = 0; s < pitch; ++s, lanes += V::size, ++tile) {
      if (s >= g.n) continue;
      const T* column = g.b + s * g.b_col;
      T total = sum(V::load(lanes));
      for (intptr_t k = g.k & -V::size; k < g.k; ++k) total += from[k] * column[k];
      *tile = g.alpha * total;
    }
  }
}

// c = tile, or c += tile, for `rows` x g.n elements. One copy for all widths; gcc would run it with dirty registers.
#if defined(__clang__)
#define MB_ONCE MB_NOINLINE
#else
#define MB_ONCE MB_INLINE
#endif
template <class T>
MB_ONCE void store_edge(const Gemm<T>& g, T* c, int rows, const T* tile, intptr_t pitch) {
  using V = Vec<T, 4>;
  int outer = rows, inner = g.n;
  intptr_t c_outer = g.c_row, c_inner = g.c_col, tile_inner = 1;
  if (c_outer == 1) {
    outer = g.n, inner = rows;
    c_outer = g.c_col, c_inner = 1;
    tile_inner = pitch, pitch = 1;
  }
  for (; outer > 0; --outer, c += c_outer, tile += pitch) {
    const T* from = tile;
    int i = 0;
    if (c_inner == 1) {
      for (; i <= inner - V::size; i += V::size, from += V::size * tile_inner) {
        V x = typename V::Raw{from[0], from[tile_inner], from[2 * tile_inner], from[3 * tile_inner]};
        if (g.accumulate) x = x + V::load(c + i);
        x.store(c + i);
      }
    }
    for (; i < inner; ++i, from += tile_inner) {
      T* to = c + i * c_inner;
      *to = g.accumulate ? *to + *from : *from;
    }
  }
}

// All rows of one panel, whose g.n columns fit one tile. `dots`: A and B are contiguous along k; else g.b holds full
// rows of a tile's width, g.b_row apart.
template <class T>
struct PanelBody {
  template <class W>
  static MB_INLINE void run(const Gemm<T>* g, bool dots) {
    using V = typename W::template of<T>;
    constexpr int kRows = kTileRows<W>;
    constexpr int kWidth = kTileVectors * V::size;
    T tile[kRows * kWidth];
    const T zeros[kWidth] = {};
    const T* a = g->a;
    T* c = g->c;
    int step = kRows, pitch = kWidth;
    if (kHasDots<W> && dots) {
      step = kDotRows;
      pitch = g->m == 1 ? kOneRowDots : kDotColumns;
    }
    for (int left = g->m; left > 0; left -= step) {
      int rows = left < step ? left : step;
      bool whole = rows == kRows && g->n == kWidth && g->c_col == 1;
      Target<T> to = {tile, kWidth, zeros, 0};
      if (whole) {
        to.out = c, to.out_row = g->c_row;
        if (g->accumulate) to.old = c, to.old_row = g->c_row;
      }
      MB_OPAQUE(to.out);
      MB_OPAQUE(to.out_row);
      MB_OPAQUE(to.old);
      MB_OPAQUE(rows);
      if (!kHasDots<W> || !dots) {
        if (!MB_SIMD && rows == 1) {
          multiply_tile<W, 1, kTileVectors>(*g, a, rows, to);
        } else {
          multiply_tile<W, kRows, kTileVectors>(*g, a, rows, to);
        }
      } else {
        T lanes[kMostDots * V::size];
        if (g->m == 1 && kDotRows > 1) {
          dot_tile<W, 1, kOneRowDots>(*g, a, rows, lanes);
        } else {
          dot_tile<W, kDotRows, kDotColumns>(*g, a, rows, lanes);
        }
        sum_lanes<V>(*g, a, rows, pitch, lanes, tile);
      }
      if (!whole) store_edge(*g, c, rows, tile, pitch);
      a += step * g->a_row;
      c += step * g->c_row;
    }
  }
};

}  // namespace minbuild
#endif  // MINBUILD_SHARED_GEMM_TILES_H_
