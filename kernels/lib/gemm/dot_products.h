// Dot products: a matrix product whose operands are both contiguous along K; gemm.h chooses it.
#ifndef MINBUILD_LIB_GEMM_DOT_PRODUCTS_H_
#define MINBUILD_LIB_GEMM_DOT_PRODUCTS_H_

#include "lib/gemm/microkernel.h"

namespace minbuild {

// True where the lanes of several dot products are added at once.
#if MB_FAST_WASM
template <class V>
constexpr bool kSumsTogether = V::size == 4;

// The sums of four vectors of four lanes, each in the order of sum().
template <class V>
MB_INLINE V sums_of_four(V a, V b, V c, V d) {
  const V ab = V(__builtin_shufflevector(a.v, b.v, 0, 4, 1, 5)) + V(__builtin_shufflevector(a.v, b.v, 2, 6, 3, 7));
  const V cd = V(__builtin_shufflevector(c.v, d.v, 0, 4, 1, 5)) + V(__builtin_shufflevector(c.v, d.v, 2, 6, 3, 7));
  return V(__builtin_shufflevector(ab.v, cd.v, 0, 1, 4, 5)) + V(__builtin_shufflevector(ab.v, cd.v, 2, 3, 6, 7));
}
#else
template <class V>
constexpr bool kSumsTogether = false;
template <class V>
V sums_of_four(V, V, V, V);
#endif

// The whole product as dot products, where A and B are contiguous along k: a few rows of A, which stay in the nearest
// cache, with a few columns of B after the other. `Ahead`: the next ones are fetched meanwhile.
constexpr int kDotRows = 4, kDotColumns = MB_SIMD && !MB_HELIUM ? 2 : 1;
template <class T, bool Ahead = false>
struct DotsBody {
  // A prefetch takes the place of a load, so that more columns share it.
  static constexpr int kColumns = kDotColumns + (Ahead && kDotColumns > 1);

  // Adds the dot products of four rows with the column `b`, of which `sums` are those up to `k`, to the column `c` of C.
  // The last of the `live` rows stands in for those behind it.
  template <class V>
  static MB_INLINE void add_column(const Gemm<T>& g, V sums, const T* const (&rows)[kDotRows], const T* b, intptr_t k,
                                   T* c, intptr_t live) {
    for (; k < g.k; ++k) {
      V lanes;
      unroll<kDotRows>([&](auto r) MB_LAMBDA { lanes.v[int(r)] = rows[r][k]; });
      sums = sums + lanes * V(b[k]);
    }
    const T* to[kDotRows];
    point_at_rows(to, c, g.c_row, live);
    V old = T(0);
    if (g.accumulate) unroll<kDotRows>([&](auto r) MB_LAMBDA { old.v[int(r)] = *to[r]; });
    sums = old + V(g.alpha) * sums;
    unroll<kDotRows>([&](auto r) MB_LAMBDA { *const_cast<T*>(to[r]) = sums.v[int(r)]; });
  }

  template <class W>
  static MB_INLINE void run(const Gemm<T>* g) {
    using V = typename W::template of<T>;
    const T* a = g->a;
    T* c_rows = g->c;
    // Columns lie side by side: those after these are fetched evenly while all rows pass by.
    [[maybe_unused]] const char* later = reinterpret_cast<const char*>(g->b + g->n * g->b_col);
    [[maybe_unused]] const intptr_t share =
        Ahead ? kColumns * intptr_t(sizeof(V)) * kDotRows / ((g->m + kDotRows - 1) & -kDotRows) : 0;
    for (intptr_t left = g->m; left > 0; left -= kDotRows) {
      const T *rows[kDotRows], *b = g->b;
      point_at_rows(rows, a, g->a_row, left);
      T* c = c_rows;
      for (intptr_t more = g->n; more > 0;) {
        const T* columns[kColumns];
        point_at_rows(columns, b, g->b_col, more);
        V x[kDotRows][kColumns];
        unroll<kDotRows>([&](auto r) MB_LAMBDA { unroll<kColumns>([&](auto s) MB_LAMBDA { x[r][s] = V(T(0)); }); });
        intptr_t k = 0;
        const auto add = [&]() MB_LAMBDA {
          V column[kColumns];
          unroll<kColumns>([&](auto s) MB_LAMBDA { column[s] = load_lanes<V>(columns[s] + k); });
          unroll<kDotRows>([&](auto r) MB_LAMBDA {
            V row = load_lanes<V, true>(rows[r] + k);
            unroll<kColumns>([&](auto s) MB_LAMBDA { x[r][s] = muladd(row, column[s], x[r][s]); });
          });
          if (Ahead) __builtin_prefetch(later, 0, 2), later += share;
          k += V::size;
        };
#if defined(__wasm__)
        const intptr_t last = g->k - V::size;
        if (last >= 0) {
          do add();
          while (k <= last);
        }
#elif MB_TIGHT_LOOPS
        intptr_t last = g->k - V::size;
        MB_OPAQUE(last);
        while (k <= last) add();
#else
        if constexpr (Ahead) {
          const intptr_t last = g->k - V::size;
          if (last >= 0) do {
              add();
              end_loop<V>();
            } while (k <= last);
        } else {
          while (k <= g->k - V::size) add();
        }
#endif
        MB_OPAQUE(k);  // else the sums below are compiled once for each way to leave the loop
        if constexpr (kSumsTogether<V>) {
          V sums[kColumns];
          unroll<kColumns>([&](auto s) MB_LAMBDA { sums[s] = sums_of_four(x[0][s], x[1][s], x[2][s], x[3][s]); });
          for (int s = 0; s < kColumns && more > 0; ++s, --more, b += g->b_col, c += g->c_col)
            add_column(*g, sums[s], rows, b, k, c, left);
          continue;
        }
        T sums[kColumns][kDotRows][V::size];
        unroll<kDotRows>([&](auto r)
                             MB_LAMBDA { unroll<kColumns>([&](auto s) MB_LAMBDA { x[r][s].store(sums[s][r]); }); });
        for (int s = 0; s < kColumns && more > 0; ++s, --more) {
          const T* row = a;
          T* to = c;
          for (int r = 0; r < kDotRows && r < left; ++r) {
            T total = sum(V::load(sums[s][r]));
            for (intptr_t i = k; i < g->k; ++i) total += row[i] * b[i];
            *to = (g->accumulate ? *to : 0) + g->alpha * total;
            row += g->a_row;
            to += g->c_row;
          }
          b += g->b_col;
          c += g->c_col;
        }
      }
      a += kDotRows * g->a_row;
      c_rows += kDotRows * g->c_row;
    }
  }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_GEMM_DOT_PRODUCTS_H_
