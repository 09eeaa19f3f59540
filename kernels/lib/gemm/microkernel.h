// The tiles of the matrix product, per vector width; gemm.h drives them.
#ifndef MINBUILD_LIB_GEMM_MICROKERNEL_H_
#define MINBUILD_LIB_GEMM_MICROKERNEL_H_

#include "lib/gemm/tile_loops.h"

namespace minbuild {

// The addend of a product that replaces its target. Never written, and yet not constant:
// variables that are zero stand in .bss, which takes no room in a file, while constants would be stored byte by byte.
template <class T>
inline T zero_row[kMostTileBytes / sizeof(T)];

// One tile: out = old + alpha * rows of A from `a` on * the panel g.b. `old` is `out`, or zeros for every row. `panel`:
// what is packed meanwhile.
template <class T, bool Packed, int Vectors = kTileVectors>
struct TileBody : TileLoops<T, Vectors> {
  using Loops = TileLoops<T, Vectors>;
  using Loops::add_panel, Loops::add_products, Loops::add_row, Loops::load_row;

  template <class W, class... Panel>
  static MB_INLINE void run(const Gemm<T>* g, const T* a, intptr_t rows, T* out, intptr_t out_row, const T* old,
                            Panel... panel) {
    constexpr int kRows = Packed ? packed_tile_rows(W::bytes) : tile_rows(W::bytes);
    if (MB_DISPATCHES ? W::bytes > 16 : (MB_SIMD || rows > 1)) {
      multiply<W, kRows>(*g, a, rows, out, out_row, old, panel...);
    } else {
      // A fallback, kept small: row by row.
      for (intptr_t r = 0; r < rows; ++r, a += g->a_row, out += out_row) {
        multiply<W, 1>(*g, a, 1, out, out_row, old);
        old += old == out ? out_row : 0;
      }
    }
  }

  template <class W, int Rows, class... Panel>
  static MB_INLINE void multiply(const Gemm<T>& g, const T* from, intptr_t rows, T* out, intptr_t out_row, const T* old,
                                 Panel... panel) {
    using V = typename W::template of<T>;
    V x[Rows][Vectors];
    unroll<Rows>([&](auto r) MB_LAMBDA { unroll<Vectors>([&](auto v) MB_LAMBDA { x[r][v] = V(T(0)); }); });
    if constexpr (Packed && Vectors >= kTileVectors) {  // what is added to, or written
      constexpr int kLines = (Vectors * W::bytes + 63) / 64;
      T* later = out;
      unroll<Rows>([&](auto) MB_LAMBDA {
        unroll<kLines>([&](auto v) MB_LAMBDA { __builtin_prefetch(later + v * intptr_t(64 / sizeof(T)), 1); });
        later += out_row;
      });
    }
    if constexpr (Packed && kRowVectors) {
      add_packed<V, Rows>(g, from, x);
    } else if constexpr (kRowsApart) {
      add_apart<V, Rows>(g, from, rows, x);
    } else if constexpr (Packed && !MB_TIGHT_LOOPS && sizeof...(panel) == 0) {
      add_panel(g, from, rows, x);
    } else {
      add_products<V, Rows>(g, from, rows, x, panel...);
    }
    V alpha = g.alpha;
    intptr_t old_row = old == out ? out_row : 0;
    unroll<Rows>([&](auto r) MB_LAMBDA {
      unroll<Vectors>([&](auto v) MB_LAMBDA {
        store_lanes(muladd(x[r][v], alpha, load_lanes<V>(old + v * V::size)), out + v * V::size);
      });
      out += out_row;
      old += old_row;
    });
  }

  // x += rows of A * the panel, both packed
  template <class V, int Rows>
  static MB_INLINE void add_packed(const Gemm<T>& g, const T* a, V (&x)[Rows][Vectors]) {
    constexpr int kColumns = Rows / V::size;
    const T* b = g.b;
    intptr_t k = g.k;  // at least 1
    do {
      V column[kColumns], row[Vectors];
      unroll<kColumns>([&](auto i) MB_LAMBDA { column[i] = V::load(a + i * V::size); });
      load_row(b, row);
      unroll<Rows>([&](auto r) MB_LAMBDA {
        V factor = column[r / V::size].v[r % V::size];
        unroll<Vectors>([&](auto v) MB_LAMBDA { x[r][v] = muladd(factor, row[v], x[r][v]); });
      });
      a += Rows;
      b += Vectors * V::size;
    } while (--k > 0);
  }

  // x += rows of A * the panel, both in memory as they are. Rows are read at distances from the first, which moves:
  // beside the steps these take all general registers that engines leave.
  template <class V, int Rows>
  static MB_INLINE void add_apart(const Gemm<T>& g, const T* from, intptr_t rows, V (&x)[Rows][Vectors]) {
    constexpr intptr_t kSize = sizeof(T);
    intptr_t a_row = g.a_row * kSize, a_col = g.a_col * kSize, b_row = g.b_row * kSize, k = g.k;
    const char *a = reinterpret_cast<const char*>(from), *b = reinterpret_cast<const char*>(g.b);
    if (k < 1) a = b = reinterpret_cast<const char*>(zero_row<T>), a_row = 0, k = 1;  // an empty sum, of zeros
    const char* each[Rows];
    point_at_rows(each, a, a_row, rows);
    intptr_t apart[Rows];
    unroll<Rows>([&](auto r) MB_LAMBDA {
      apart[r] = each[r] - a;
      MB_OPAQUE(apart[r]);
    });
    MB_OPAQUE(a_col);
    MB_OPAQUE(b_row);
    do {
      V row[Vectors];
      unroll<Vectors>([&](auto v) MB_LAMBDA { row[v] = V::load(reinterpret_cast<const T*>(b) + v * V::size); });
      unroll<Rows>([&](auto r) MB_LAMBDA {
        V factor = *reinterpret_cast<const T*>(r == 0 ? a : a + apart[r]);
        unroll<Vectors>([&](auto v) MB_LAMBDA { x[r][v] = muladd(factor, row[v], x[r][v]); });
      });
      a += a_col;
      b += b_row;
    } while (--k > 0);
  }

  // Taller tiles, and all of aarch64, leave so few registers that steps would be read from memory each time.
  static constexpr bool kKeepsSteps = Packed || kRowVectors;

  // x += rows of A in memory as it is * the panel, which is stored to `panel`, if there is one.
  template <class V, int Rows, class... Panel>
  static MB_INLINE void add_products(const Gemm<T>& g, const T* from, intptr_t rows, V (&x)[Rows][Vectors],
                                     Panel... panel) {
    const T* a[Rows];
#if MB_TIGHT_LOOPS
    const T* b = g.b;
    intptr_t a_row = g.a_row, b_row = g.b_row, a_col = g.a_col, k = g.k;
    MB_OPAQUE(b_row);
    MB_OPAQUE(a_col);
    if (k < 1) b = from = zero_row<T>, a_row = 0, k = 1;  // an empty sum, of zeros
#else
    const intptr_t& a_row = g.a_row;
#endif
    point_at_rows(a, from, a_row, rows);
#if MB_TIGHT_LOOPS
    intptr_t at = 0;
    do {
#else
    const T* b = g.b;
    intptr_t at = 0;
    [[maybe_unused]] intptr_t b_row = g.b_row, a_col = g.a_col;
    if constexpr (kKeepsSteps) {
      MB_OPAQUE(b_row);
      MB_OPAQUE(a_col);
    }
    for (intptr_t k = g.k; k > 0; --k) {
#endif
      V row[Vectors];
      unroll<Vectors>([&](auto v) MB_LAMBDA { row[v] = load_lanes<V>(b + v * V::size); });
      if constexpr (sizeof...(panel) != 0) {
        __builtin_prefetch(b + kRowsAhead * b_row);
        unroll<Vectors>([&](auto v) MB_LAMBDA { (row[v].store(panel + v * V::size), ...); });
        ((panel += Vectors * V::size), ...);
      }
      unroll<Rows>([&](auto r) MB_LAMBDA {
        V factor = a[r][at];
        if (kMovesRows) a[r] += a_col;
        unroll<Vectors>([&](auto v) MB_LAMBDA { x[r][v] = muladd(factor, row[v], x[r][v]); });
      });
      b += MB_TIGHT_LOOPS || kKeepsSteps ? b_row : g.b_row;
      if (!kMovesRows) at += MB_TIGHT_LOOPS || kKeepsSteps ? a_col : g.a_col;
#if MB_TIGHT_LOOPS
    } while (--k > 0);
#else
    }
#endif
  }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_GEMM_MICROKERNEL_H_
