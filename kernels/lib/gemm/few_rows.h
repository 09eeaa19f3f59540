// Products of so few rows of A that a packed B would not be read again: B is read once, in place and in order. Memory is
// the limit, so what comes next is fetched meanwhile: processors do so by themselves within a page only.
#ifndef MINBUILD_LIB_GEMM_FEW_ROWS_H_
#define MINBUILD_LIB_GEMM_FEW_ROWS_H_

#include "lib/gemm/gemm.h"

namespace minbuild {

// Of an operand that is read once, as many bytes stay in the second nearest cache.
constexpr intptr_t kNearBytes = 1 << 17;
// Up to as many bytes it stays in the caches as a whole.
constexpr intptr_t kFarBytes = 1 << 22;
// Rows of B that tiles pass over at once: streams that processors fetch ahead.
constexpr intptr_t kStreams = 32;
// Each row of C is a sum of rows of B, of which so many are added at once, to so many rows of C.
constexpr int kAdded = MB_SIMD ? 6 : 4, kSums = 2;

// C = alpha * A * B for `Rows` rows of B, whose columns are contiguous, added to C where it says so. Rows of C go by
// pairs, the last of an odd number with itself.
template <class T, int Rows>
struct RowsBody {
  template <class W>
  static MB_INLINE void run(const Gemm<T>* g) {
    using V = typename W::template of<T>;
    const T* a = g->a;
    T* c = g->c;
    for (intptr_t left = g->m; left > 0; left -= kSums, a += kSums * g->a_row, c += kSums * g->c_row) {
      T *sums[kSums], factors[kSums][Rows];
      const T* rows[Rows];
      const intptr_t second = left > 1;
      unroll<kSums>([&](auto s) MB_LAMBDA {
        sums[s] = c + s * second * g->c_row;
        unroll<Rows>([&](auto r) MB_LAMBDA { factors[s][r] = g->alpha * a[s * second * g->a_row + r * g->a_col]; });
      });
      unroll<Rows>([&](auto r) MB_LAMBDA { rows[r] = g->b + r * g->b_row; });
      const intptr_t ahead = Rows * g->b_row;
      const bool first = left == g->m, adds = g->accumulate;
      intptr_t j = 0;
      for (; j <= g->n - V::size; j += V::size) {
        V x[kSums];
        unroll<kSums>([&](auto s) MB_LAMBDA { x[s] = adds ? V::load(sums[s] + j) : V(T(0)); });
        unroll<Rows>([&](auto r) MB_LAMBDA {
          const V row = V::load(rows[r] + j);
          unroll<kSums>([&](auto s) MB_LAMBDA { x[s] = muladd(V(factors[s][r]), row, x[s]); });
          if (first) __builtin_prefetch(rows[r] + ahead + j);
        });
        unroll<kSums>([&](auto s) MB_LAMBDA { x[s].store(sums[s] + j); });
      }
      for (; j < g->n; ++j)
        for (int s = 0; s <= second; ++s) {
          T x = adds ? sums[s][j] : T(0);
          for (int r = 0; r < Rows; ++r) x += factors[s][r] * rows[r][j];
          sums[s][j] = x;
        }
    }
  }
};

// The same of more rows of C, some of them at once: each sum takes so many products in a register. Rows of B are read
// again for the next ones; meanwhile those after them are fetched.
constexpr int kTallSums = 4, kTallDepth = 8;

template <class T>
struct TallRowsBody {
  template <class W>
  static MB_INLINE void run(const Gemm<T>* g) {
    using V = typename W::template of<T>;
    constexpr int kVectors = 2;
    constexpr intptr_t kStep = kVectors * V::size;
    const intptr_t b_row = g->b_row, n = g->n, groups = (g->m + kTallSums - 1) / kTallSums;
    const T *a = g->a, *b = g->b;
    bool adds = g->accumulate;
    for (intptr_t deep = g->k, depth; deep > 0; deep -= depth, a += depth * g->a_col, b += depth * b_row, adds = true) {
      depth = deep < kTallDepth ? deep : kTallDepth;
      const T *x = a, *later = b + depth * b_row;
      const intptr_t share = deep > depth ? (kTallDepth + groups - 1) / groups : 0;
      T* c = g->c;
      for (intptr_t left = g->m; left > 0; left -= kTallSums, later += share * b_row) {
        T *sums[kTallSums], factors[kTallDepth][kTallSums];
        unroll<kTallSums>([&](auto s) MB_LAMBDA {
          sums[s] = c;
          for (intptr_t k = 0; k < depth; ++k) factors[k][s] = g->alpha * x[k * g->a_col];
          if (s + 1 < left) x += g->a_row, c += g->c_row;
        });
        intptr_t j = 0;
        for (; j <= n - kStep; j += kStep) {
          V y[kTallSums][kVectors];
          unroll<kTallSums * kVectors>([&](auto i) MB_LAMBDA {
            y[i / kVectors][i % kVectors] = adds ? V::load(sums[i / kVectors] + j + i % kVectors * V::size) : V(T(0));
          });
          const T *next = later + j, *from = b + j, *factor = factors[0];
          for (intptr_t i = share; i > 0; --i, next += b_row) __builtin_prefetch(next, 0, 2);
          intptr_t k = depth;
          do {
            V row[kVectors];
            unroll<kVectors>([&](auto v) MB_LAMBDA { row[v] = V::load(from + v * V::size); });
            unroll<kTallSums>([&](auto s) MB_LAMBDA {
              const V one = factor[s];
              unroll<kVectors>([&](auto v) MB_LAMBDA { y[s][v] = muladd(one, row[v], y[s][v]); });
            });
            from += b_row, factor += kTallSums;
            end_loop<V>();
          } while (--k > 0);
          unroll<kTallSums * kVectors>([&](auto i) MB_LAMBDA {
            y[i / kVectors][i % kVectors].store(sums[i / kVectors] + j + i % kVectors * V::size);
          });
        }
        for (; j < n; ++j)
          for (int s = 0; s < kTallSums && s < left; ++s) {
            T sum = adds ? sums[s][j] : T(0);
            for (intptr_t k = 0; k < depth; ++k) sum += factors[k][s] * b[k * b_row + j];
            sums[s][j] = sum;
          }
      }
    }
  }
};

#if MINBUILD_AVX512
// The same for vectors of 64 bytes, of which registers hold the sums of eight rows over some depth: rows of C are read and
// written once for it, and these rows of B stay near for all rows of A. `columns` of C are whole steps
// of kWideColumns vectors.
constexpr int kWideSums = 8, kWideColumns = 2;
constexpr intptr_t kWideDepth = 32;

template <class T>
struct WideRowsBody {
  template <class W>
  static MB_INLINE void run(const Gemm<T>* g, intptr_t columns) {
    using V = typename W::template of<T>;
    constexpr intptr_t kStep = kWideColumns * V::size;
    alignas(16) T factors[kWideDepth][kWideSums];
    const intptr_t b_row = g->b_row;
    bool adds = g->accumulate;
    for (intptr_t k = 0, depth; k < g->k; k += depth, adds = true) {
      depth = g->k - k < kWideDepth ? g->k - k : kWideDepth;
      for (intptr_t i = 0; i < g->m; i += kWideSums) {
        const intptr_t live = g->m - i < kWideSums ? g->m - i : kWideSums;
        T* sums[kWideSums];
        for (intptr_t s = 0; s < kWideSums; ++s) {
          const intptr_t row = i + (s < live ? s : live - 1);
          sums[s] = g->c + row * g->c_row;
          const T* a = g->a + row * g->a_row + k * g->a_col;
          for (T *to = factors[0] + s, *end = to + depth * kWideSums; to != end; to += kWideSums, a += g->a_col)
            *to = g->alpha * *a;
        }
        const T* b = g->b + k * b_row;
        for (intptr_t j = 0; j < columns; j += kStep, b += kStep) {
          V x[kWideSums][kWideColumns];
          unroll<kWideSums * kWideColumns>([&](auto n) MB_LAMBDA {
            constexpr int s = n / kWideColumns, v = n % kWideColumns;
            x[s][v] = adds ? V::load(sums[s] + j + v * V::size) : V(T(0));
          });
          const T *from = b, *later = b + depth * b_row, *factor = factors[0];
          intptr_t d = depth;
          do {
            V row[kWideColumns];
            unroll<kWideColumns>([&](auto v) MB_LAMBDA {
              row[v] = V::load(from + v * V::size);
              __builtin_prefetch(later + v * V::size, 0, 2);
            });
            unroll<kWideSums>([&](auto s) MB_LAMBDA {
              const V one = factor[s];
              unroll<kWideColumns>([&](auto v) MB_LAMBDA { x[s][v] = muladd(one, row[v], x[s][v]); });
            });
            from += b_row, later += b_row, factor += kWideSums;
            end_loop<V>();
          } while (--d > 0);
          unroll<kWideSums * kWideColumns>([&](auto n) MB_LAMBDA {
            constexpr int s = n / kWideColumns, v = n % kWideColumns;
            x[s][v].store(sums[s] + j + v * V::size);
          });
        }
      }
    }
  }
};
#endif

// Outer products of real size: C is written once. Processors write pieces of a few rows in turns faster than whole rows,
// and than pieces of more rows. Stores past the caches take twice as long as these where caches keep C.
#if defined(MB_GEMM_OUTER)
#define MB_LARGE_OUTER (MB_GEMM_OUTER && MB_DISPATCHES)
#else
#define MB_LARGE_OUTER 0
#endif
#if MB_LARGE_OUTER
constexpr int kOuterRows = 6, kOuterVectors = 4;

template <class T>
struct OuterBody {
  // Pieces of `Vectors` vectors of some rows, as far as whole ones go.
  template <class V, int Vectors, int Rows>
  static MB_INLINE intptr_t write(const T (&factors)[Rows], const T* b, T* const (&to)[Rows], intptr_t j, intptr_t n) {
    for (; j <= n - Vectors * V::size; j += Vectors * V::size) {
      V row[Vectors];
      unroll<Vectors>([&](auto v) MB_LAMBDA { row[v] = V::load(b + j + v * V::size); });
      unroll<Rows>([&](auto r) MB_LAMBDA {
        const V factor = factors[r];
        unroll<Vectors>([&](auto v) MB_LAMBDA { muladd(factor, row[v], V(T(0))).store(to[r] + j + v * V::size); });
      });
    }
    return j;
  }

  template <class V, int Rows>
  static MB_INLINE void write_rows(const Gemm<T>& g, const T* a, T* c) {
    T factors[Rows], *to[Rows];
    unroll<Rows>([&](auto r) MB_LAMBDA { factors[r] = g.alpha * a[r * g.a_row], to[r] = c + r * g.c_row; });
    intptr_t j = write<V, kOuterVectors>(factors, g.b, to, 0, g.n);
    j = write<V, 1>(factors, g.b, to, j, g.n);
    for (; j < g.n; ++j)
      for (int r = 0; r < Rows; ++r) {
        T x = 0;
        x += factors[r] * g.b[j];
        to[r][j] = x;
      }
  }

  template <class W>
  static MB_INLINE void run(const Gemm<T>* g) {
    using V = typename W::template of<T>;
    const T* a = g->a;
    T* c = g->c;
    intptr_t left = g->m;
    for (; left >= kOuterRows; left -= kOuterRows, a += kOuterRows * g->a_row, c += kOuterRows * g->c_row)
      write_rows<V, kOuterRows>(*g, a, c);
    for (; left > 0; --left, a += g->a_row, c += g->c_row) write_rows<V, 1>(*g, a, c);
  }
};
#endif

// Not in the fallback for processors without wide vectors, which tiles do for.
template <class T>
MB_INLINE bool takes_rows(const Gemm<T>& g) {
  return (!MB_DISPATCHES || vector_bytes() >= 32) && g.b_col == 1 && g.c_col == 1;
}
// The product in the order of the rows of B.
template <class T>
MB_NOINLINE void add_rows(Gemm<T> g) {
  const Gemm<T>* part = &g;
#if MB_LARGE_OUTER
  if (g.k == 1 && !g.accumulate) return run_wider<OuterBody<T>>(widest_bytes(), part);
#endif
#if MINBUILD_AVX512
  const intptr_t step = kWideColumns * 64 / sizeof(T), columns = g.n / step * step;
  if (g.m > kWideSums / 2 && widest_bytes() == 64 && columns > 0) {
    run_widest<WideRowsBody<T>>(part, columns);
    g.n -= columns, g.b += columns, g.c += columns;
    if (g.n == 0) return;
  }
#endif
  if (g.m > kSums) return run_wide<TallRowsBody<T>>(part);
  for (; g.k >= kAdded; g.k -= kAdded, g.a += kAdded * g.a_col, g.b += kAdded * g.b_row, g.accumulate = true)
    run_wide<RowsBody<T, kAdded>>(part);
  for (; g.k > 0; --g.k, g.a += g.a_col, g.b += g.b_row, g.accumulate = true) run_wide<RowsBody<T, 1>>(part);
}

// True of a B that caches do not keep as a whole.
template <class T>
MB_INLINE bool is_far(const Gemm<T>& g) {
  return g.n > kFarBytes / intptr_t(sizeof(T)) / g.k;
}

// `far`: what comes next of B is fetched.
template <class T>
MB_NOINLINE void multiply_few(const Gemm<T>& g, bool far) {
  if (takes_rows(g)) return add_rows(g);
  Gemm<T> part = g;
  const bool along = g.b_row == 1, ahead = far && g.m >= kDotRows && takes_dots(g, vector_bytes());
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
      if (ahead) run_wide<DotsBody<T, true>>(static_cast<const Gemm<T>*>(&part));
      else multiply_strided(part);
    }
  }
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_GEMM_FEW_ROWS_H_
