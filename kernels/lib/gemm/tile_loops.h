// Inner loops of tiles that do something for a panel of B while they multiply. Loads that wait for memory, and copies, take
// less time between multiply-adds than by themselves.
#ifndef MINBUILD_LIB_GEMM_TILE_LOOPS_H_
#define MINBUILD_LIB_GEMM_TILE_LOOPS_H_

#include "lib/gemm/panel_copies.h"
#include "lib/gemm/tile_sizes.h"
#include "lib/gemm/transpose.h"

namespace minbuild {

// Loads and stores of a tile. Cortex-M without vectors has one instruction for four floats, of which compilers make use
// where neighbours happen to be in neighbouring registers. `Other` names the registers of what is live beside it.
#if MB_TIGHT_LOOPS && !MB_SIMD
template <class V, bool Other = false>
MB_INLINE V load_lanes(const float* from) {
  if constexpr (V::size == 4 && Other) {
    register float a __asm__("s20"), b __asm__("s21"), c __asm__("s22"), d __asm__("s23");
    __asm__("vldmia %4, {s20-s23}" : "=t"(a), "=t"(b), "=t"(c), "=t"(d) : "r"(from), "m"(*(const float (*)[4])from));
    return V(typename V::Raw{a, b, c, d});
  } else if constexpr (V::size == 4) {
    register float a __asm__("s16"), b __asm__("s17"), c __asm__("s18"), d __asm__("s19");
    __asm__("vldmia %4, {s16-s19}" : "=t"(a), "=t"(b), "=t"(c), "=t"(d) : "r"(from), "m"(*(const float (*)[4])from));
    return V(typename V::Raw{a, b, c, d});
  } else {
    return V::load(from);
  }
}
template <class V>
MB_INLINE void store_lanes(V x, float* to) {
  if constexpr (V::size == 4) {
    register float a __asm__("s16") = x.v[0], b __asm__("s17") = x.v[1], c __asm__("s18") = x.v[2];
    register float d __asm__("s19") = x.v[3];
    __asm__("vstmia %5, {s16-s19}" : "=m"(*(float (*)[4])to) : "t"(a), "t"(b), "t"(c), "t"(d), "r"(to));
  } else {
    x.store(to);
  }
}
#endif
template <class V, bool = false, class T>
MB_INLINE V load_lanes(const T* from) {
  return V::load(from);
}
template <class V, class T>
MB_INLINE void store_lanes(V x, T* to) {
  x.store(to);
}

// Pointers to `Count` rows from `x` on, the last of the `live` ones repeated.
template <int Count, class T>
MB_INLINE void point_at_rows(const T* (&rows)[Count], const T* x, intptr_t step, intptr_t live) {
  unroll<Count>([&](auto r) MB_LAMBDA {
    rows[r] = x;
    if (r + 1 < live && r + 1 < Count) x += step;
  });
}

// True where tiles may pack panels: they wait less for B than a copy of its own does.
#if (MB_DISPATCHES || defined(__AVX2__)) && !MB_ONE_VARIANT
constexpr bool kPacksInTiles = true;
#else
constexpr bool kPacksInTiles = false;
#endif
// The first tile of a panel, which packs it, fetches a row of B as many steps ahead.
constexpr intptr_t kRowsAhead = 8;
// Panels of vectors of 64 bytes are larger than the nearest cache: tiles fetch their rows as many steps ahead.
constexpr intptr_t kNearRows = 4;
// Rows of B that tiles fetch for the next panel, one in each `steps` steps: from `from` on `left` rows, `row` apart.
template <class T>
struct RowsFetched {
  const T* from;
  intptr_t row, left, steps;
};
// The same of rows from which tiles pack the next panel, to `to`. The next tile packs `share` of them, or of the panel from
// `after` on, which are fetched.
template <class T>
struct RowsAhead : RowsFetched<T> {
  const T* after;
  T* to;
  intptr_t share;
};
// Lines of the cache that tiles fetch of the next panel, `share` of them each: `lines` of each of its columns in B, which
// are `apart`, of the one from `from` on `left` more.
template <class T>
struct LinesAhead {
  const T* from;
  intptr_t apart, lines, left, share;
};
// The next tile of C: from `c` on, its rows `row` apart.
template <class T>
struct TileAhead {
  const T* c;
  intptr_t row;
};
// True where the first tile may collect its panel from several places, with AVX-512, whose loads have masks. In tiles of
// AVX2 these loads and stores take longer than a pass of their own.
#if defined(MB_CONV_WIDE_IMAGES)
#define MB_COLLECTS_PANELS (MB_CONV_WIDE_IMAGES && MINBUILD_AVX512)
#else
#define MB_COLLECTS_PANELS 0
#endif
// True where it may pack a panel whose columns are contiguous in B: some of them are transposed, to a depth of kTurned,
// while the tile multiplies what was before. Columns are fetched kTurnedAhead ahead.
template <class T>
constexpr bool kTurnsInTiles = kPacksInTiles && MB_SHUFFLES && sizeof(T) == 4;
constexpr intptr_t kTurned = 16, kTurnedAhead = 64;

// Stands at the end of a loop. Some processors (Intel's before Ice Lake, by a correction of 2019) decode branches anew each
// time where one lies across a boundary of 32 bytes, or ends there, which takes up to a third of the time of a tile. What
// follows, a few additions and the branch, takes no more than 20 bytes.
template <class V>
MB_INLINE void end_loop() {
#if MB_DISPATCHES || defined(__AVX2__)
  if constexpr (sizeof(V) >= 32) __asm__ volatile(".p2align 5,,20");
#endif
}

// All add to the sums of a tile: x += rows of A from `from` on * the panel g.b, of `Vectors` vectors a row.
template <class T, int Vectors>
struct TileLoops {
  // x += elements of rows of A, at `at` each, * a row of the panel
  template <class V, int Rows>
  static MB_INLINE void add_row(const T* const (&a)[Rows], intptr_t at, const V (&row)[Vectors],
                                V (&x)[Rows][Vectors]) {
    unroll<Rows>([&](auto r) MB_LAMBDA {
      const V factor = a[r][at];
      unroll<Vectors>([&](auto v) MB_LAMBDA { x[r][v] = muladd(factor, row[v], x[r][v]); });
    });
  }
  template <class V>
  static MB_INLINE void load_row(const T* from, V (&row)[Vectors]) {
    unroll<Vectors>([&](auto v) MB_LAMBDA { row[v] = load_lanes<V>(from + v * V::size); });
  }

  // The same of a panel whose rows are `step` apart, a later one of which is fetched. Panels of one vector stay near.
  template <class V>
  static MB_INLINE void load_near(const T* from, intptr_t step, V (&row)[Vectors]) {
    load_row(from, row);
    if constexpr (Vectors > 1 && V::size * sizeof(T) == 64)
      unroll<Vectors>([&](auto v) MB_LAMBDA { __builtin_prefetch(from + kNearRows * step + v * V::size); });
  }

  // Fetches a row of a later panel, by the ends of its lines: it may begin within one, which came with the panel before.
  template <class V>
  static MB_INLINE void fetch_row(const T* from) {
    constexpr int kLine = 64 / sizeof(T);
    unroll<(Vectors * V::size + kLine - 1) / kLine>(
        [&](auto v) MB_LAMBDA { __builtin_prefetch(from + v * kLine + (kLine - 1), 0, 2); });
  }

  // x += `k` elements of rows of A, `a_col` apart from `at` on, * as many rows of the panel, `b_row` apart, at least one.
  // Moves `at` and `b` behind them.
  template <class V, int Rows>
  static MB_INLINE void add_steps(const T* const (&a)[Rows], intptr_t& at, intptr_t a_col, const T*& b, intptr_t b_row,
                                  intptr_t k, V (&x)[Rows][Vectors]) {
    do {
      V row[Vectors];
      load_near(b, b_row, row);
      add_row<V>(a, at, row, x);
      b += b_row, at += a_col;
      end_loop<V>();
    } while (--k > 0);
  }

  // x += rows of A * the panel g.b, packed or in place
  template <class V, int Rows>
  static MB_INLINE void add_panel(const Gemm<T>& g, const T* from, intptr_t rows, V (&x)[Rows][Vectors]) {
    const T *a[Rows], *b = g.b;
    point_at_rows(a, from, g.a_row, rows);
    intptr_t at = 0;
    add_steps(a, at, g.a_col, b, g.b_row, g.k, x);
  }

  // The same of as many packed rows, while the next tile of C is fetched, a row at a time: loads of B would wait for all of
  // it at once.
  template <class V, int Rows>
  static MB_INLINE void add_products(const Gemm<T>& g, const T* a, intptr_t, V (&x)[Rows][Vectors], TileAhead<T> next) {
    constexpr intptr_t kLine = 64 / sizeof(T), kWidth = Vectors * V::size;
    const T* b = g.b;
    const intptr_t steps = (g.k + Rows - 1) / Rows;
    intptr_t until = 1, k = g.k;
    do {
      if (--until == 0) {
        unroll<kWidth / kLine>([&](auto v) MB_LAMBDA { __builtin_prefetch(next.c + v * kLine, 1); });
        next.c += next.row, until = steps;
      }
      V row[Vectors];
      load_near(b, kWidth, row);
      unroll<Rows>([&](auto r) MB_LAMBDA {
        const V factor = a[r];
        unroll<Vectors>([&](auto v) MB_LAMBDA { x[r][v] = muladd(factor, row[v], x[r][v]); });
      });
      a += Rows, b += kWidth;
      end_loop<V>();
    } while (--k > 0);
  }

  // x += the elements of rows of A that `list` names * the panel. With g.a_col it fetches the rows that far ahead.
  template <class V, int Rows>
  static MB_INLINE void add_products(const Gemm<T>& g, const T* from, intptr_t rows, V (&x)[Rows][Vectors],
                                     const int32_t* list) {
    const T *a[Rows], *b = g.b;
    point_at_rows(a, from, g.a_row, rows);
    const intptr_t ahead = g.a_col;
    const auto add_all = [&](auto fetches) MB_LAMBDA {
      intptr_t k = g.k;
      do {
        const intptr_t at = *list++;
        if (fetches) unroll<Rows / 2>([&](auto r) MB_LAMBDA { __builtin_prefetch(a[2 * r] + ahead + at); });
        V row[Vectors];
        load_near(b, Vectors * V::size, row);
        add_row<V>(a, at, row, x);
        b += Vectors * V::size;
        end_loop<V>();
      } while (--k > 0);
    };
    if (g.k < 1) return;  // windows that lie in nothing but padding
    if (ahead != 0) add_all(Constant<1>{});
    else add_all(Constant<0>{});
  }

  // The same of a panel that is collected meanwhile. `list`: as above, or nothing.
  template <class V, int Rows, class... List>
  static MB_INLINE void add_products(const Gemm<T>& g, const T* from, intptr_t rows, V (&x)[Rows][Vectors],
                                     const PanelCopies<T>* copies, List... list) {
    using Lane = typename LaneBits<T>::type;
    using Mask = Vec<Lane, V::size>;
    const T* a[Rows];
    point_at_rows(a, from, g.a_row, rows);
    [[maybe_unused]] const intptr_t ahead = g.a_col;
    Mask before[Vectors][kMostCopies - 1];
    unroll<Vectors*(kMostCopies - 1)>([&](auto i) MB_LAMBDA {
      constexpr int kVector = i / (kMostCopies - 1), kEnd = i % (kMostCopies - 1);
      Lane lanes[V::size];
      for (int lane = 0; lane < V::size; ++lane) lanes[lane] = -Lane(lane < copies->sources[kVector].ends[kEnd]);
      before[kVector][kEnd] = Mask::load(lanes);
    });
    T* to = const_cast<T*>(g.b);
    const int32_t* place = copies->rows;
    intptr_t at = 0, k = g.k;
    if (k < 1) return;
    do {
      const T* const in_row = copies->x + *place++;
      if constexpr (sizeof...(list) != 0) {
        ((at = *list++), ...);
        unroll<Rows / 2>([&](auto r) MB_LAMBDA { __builtin_prefetch(a[2 * r] + ahead + at); });
      }
      V row[Vectors];
      unroll<Vectors>([&](auto v) MB_LAMBDA {
        const auto& source = copies->sources[v];
        const auto load = [&](int copy) MB_LAMBDA { return V::load(in_row + source.from[copy]); };
        row[v] = select(before[v][0], load(0), select(before[v][1], load(1), load(2)));
        row[v].store(to + v * V::size);
      });
      add_row<V>(a, at, row, x);
      if constexpr (sizeof...(list) == 0) at += g.a_col;
      to += Vectors * V::size;
      end_loop<V>();
    } while (--k > 0);
  }

  // The same of a panel that is packed meanwhile, from `columns` on and to a depth of a multiple of kTurned. What is read
  // at once are eight lines of the cache, which have no further use: more of them may share few of its sets. AVX2 has too
  // few registers for a transposition beside all sums: some wait in memory.
  template <class V, int Rows>
  static MB_INLINE void add_products(const Gemm<T>& g, const T* from, intptr_t rows, V (&x)[Rows][Vectors],
                                     const T* columns, intptr_t step, const T* next) {
    constexpr int kColumns = 8, kWidth = Vectors * V::size, kGroups = kWidth / kColumns;
    constexpr int kRounds = kGroups > 4 ? 8 : kGroups, kSteps = kTurned / kRounds;  // the last rounds turn nothing
    constexpr int kParked = V::size * sizeof(T) > 32 ? 0 : 2;
    const T *a[Rows], *b = g.b;
    point_at_rows(a, from, g.a_row, rows);
    T* to = const_cast<T*>(b);
    intptr_t at = 0, ahead = g.k & -kTurned;
    for (intptr_t left = g.k + kTurned; left > 0; ahead -= kTurned, columns += kTurned) {
      const T *column = columns, *fetched = ahead > kTurnedAhead ? columns + kTurnedAhead : next + kTurnedAhead - ahead;
      for (int group = 0; group < kRounds; ++group, left -= kSteps) {
        if (ahead > 0 && (kRounds == kGroups || group < kGroups)) {
          T parked[Rows][Vectors][V::size];
          const auto settle = [&]() MB_LAMBDA { __asm__ volatile("" : : "r"(parked) : "memory"); };
          unroll<kParked>([&](auto r)
                              MB_LAMBDA { unroll<Vectors>([&](auto v) MB_LAMBDA { x[r][v].store(parked[r][v]); }); });
          settle();
          const T* some[kColumns];
          unroll<kColumns>([&](auto c) MB_LAMBDA {
            some[c] = column;
            column += step;
            __builtin_prefetch(fetched, 0, 2);
            fetched += step;
          });
          transpose_group(some, kTurned, to + group * kColumns, kWidth, 0);
          settle();
          unroll<kParked>(
              [&](auto r) MB_LAMBDA { unroll<Vectors>([&](auto v) MB_LAMBDA { x[r][v] = V::load(parked[r][v]); }); });
        }
        if (left > g.k || left < 1) continue;
        add_steps(a, at, g.a_col, b, kWidth, left < kSteps ? left : kSteps, x);
      }
      to += kTurned * kWidth;
    }
  }

  // The same of a panel whose rows are `b_row` apart, with each(), once in `steps` steps, as long as one of `left` is left.
  template <class V, int Rows, class Each>
  static MB_INLINE void add_between(const Gemm<T>& g, const T* from, intptr_t rows, intptr_t b_row,
                                    V (&x)[Rows][Vectors], intptr_t steps, intptr_t& left, const Each& each) {
    const T *a[Rows], *b = g.b;
    point_at_rows(a, from, g.a_row, rows);
    intptr_t at = 0, rest = left;
    const intptr_t a_col = g.a_col;
    for (intptr_t k = g.k; k > 0; k -= steps) {
      if (--rest >= 0) each();
      add_steps(a, at, a_col, b, b_row, k < steps ? k : steps, x);
    }
    left = rest;
  }

  // The same while rows of B are packed for the next panel.
  template <class V, int Rows>
  static MB_INLINE void add_products(const Gemm<T>& g, const T* from, intptr_t rows, V (&x)[Rows][Vectors],
                                     RowsAhead<T>* ahead) {
    constexpr int kWidth = Vectors * V::size;
    const intptr_t row = ahead->row;
    const T *next = ahead->from, *later = ahead->after;
    if (ahead->left > ahead->share) later = next + ahead->share * row;
    T* to = ahead->to;
    add_between(g, from, rows, kWidth, x, ahead->steps, ahead->left, [&]() MB_LAMBDA {
      unroll<Vectors>([&](auto v) MB_LAMBDA { V::load(next + v * V::size).store(to + v * V::size); });
      fetch_row<V>(later);
      next += row, later += row, to += kWidth;
    });
    ahead->from = next, ahead->to = to;
  }

  // The same while rows of B are fetched for the next panel.
  template <class V, int Rows>
  static MB_INLINE void add_products(const Gemm<T>& g, const T* from, intptr_t rows, V (&x)[Rows][Vectors],
                                     RowsFetched<T>* fetched) {
    const intptr_t row = fetched->row;
    const T* next = fetched->from;
    add_between(g, from, rows, g.b_row, x, fetched->steps, fetched->left, [&]() MB_LAMBDA {
      fetch_row<V>(next);
      next += row;
    });
    fetched->from = next;
  }

  // The same while lines of B are fetched for the next panel, one in each step as far as its share goes.
  template <class V, int Rows>
  static MB_INLINE void add_products(const Gemm<T>& g, const T* from, intptr_t rows, V (&x)[Rows][Vectors],
                                     LinesAhead<T>* ahead) {
    const T *a[Rows], *b = g.b;
    point_at_rows(a, from, g.a_row, rows);
    intptr_t at = 0, left = ahead->left;
    const intptr_t a_col = g.a_col, b_row = g.b_row, share = ahead->share < g.k ? ahead->share : g.k;
    const T* first = ahead->from;
    intptr_t k = share;
    do {
      V row[Vectors];
      load_near(b, b_row, row);
      __builtin_prefetch(first + (ahead->lines - left) * intptr_t(64 / sizeof(T)), 0, 2);
      if (--left == 0) left = ahead->lines, first += ahead->apart;
      add_row<V>(a, at, row, x);
      b += b_row, at += a_col;
      end_loop<V>();
    } while (--k > 0);
    if (share < g.k) add_steps(a, at, a_col, b, b_row, g.k - share, x);
    ahead->from = first, ahead->left = left;
  }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_GEMM_TILE_LOOPS_H_
