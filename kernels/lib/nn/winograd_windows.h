// Windows of 3 x 3 under Winograd's minimal filtering (winograd.h), and their gradients.
#ifndef MINBUILD_LIB_NN_WINOGRAD_WINDOWS_H_
#define MINBUILD_LIB_NN_WINOGRAD_WINDOWS_H_

#include "lib/gemm/pack.h"
#include "lib/nn/winograd.h"

namespace minbuild {

// Windows of 3 x 3 as matrices of rows and columns, which are filters and channels or, in reverse, channels and filters.
template <class T>
struct Windows {
  const T* data;
  intptr_t row_step, column_step;
  int rows, columns;
  bool reversed;
};

// Some lines of G w G' of some rows, to matrices of all rows and columns.
template <class T>
struct TransformWindows {
  template <class W>
  static MB_INLINE void run(const Windows<T>* w, const TileBlock* block, int row, int rows, T* to, intptr_t matrix) {
    using V = Vec<T, kGroup<T, W>>;
    // Along the shorter step.
    const bool by_rows = w->column_step <= w->row_step;
    const int groups = (w->columns + V::size - 1) / V::size, outer = by_rows ? rows : groups;
    for (int i = 0; i < outer; ++i)
      for (int j = 0; j < (by_rows ? groups : rows); ++j) {
        const int own = row + (by_rows ? i : j), column = (by_rows ? j : i) * V::size;
        transform<V>(*w, *block, matrix, own, column, to + intptr_t(own) * w->columns + column);
      }
  }

  template <class V>
  static MB_INLINE void transform(const Windows<T>& w, const TileBlock& block, intptr_t matrix, int row, int column,
                                  T* out) {
    constexpr int kTaps = kWindow * kWindow;
    const int live = w.columns - column;
    const T* from[V::size];
    point_at_rows(from, w.data + row * w.row_step + column * w.column_step, w.column_step, live);
    T taps[kTaps][V::size];
    transpose_group(from, kTaps - 1, taps[0], V::size, 0);
    unroll<V::size>([&](auto i) MB_LAMBDA { taps[kTaps - 1][i] = from[i][kTaps - 1]; });
    const bool all = block.lines == kTileLines;
    unroll<kTileLines>([&](auto line) MB_LAMBDA {
      if (!all && block.line != line) return;
      // The transform of what is in reverse has its first and its last line exchanged.
      constexpr bool kEnd = line % 3 == 0;
      const T* ends = taps[(line == 0) == w.reversed ? 2 * kWindow : 0];
      V x[kWindow];
      unroll<kWindow>([&](auto k) MB_LAMBDA {
        if constexpr (kEnd) x[k] = V::load(ends + k * V::size);
        else x[k] = half_sum(V::load(taps[k]), V::load(taps[kWindow + k]), V::load(taps[2 * kWindow + k]), line == 1);
      });
      (w.reversed ? x[2] : x[0]).store(out, live);
      half_sum(x[0], x[1], x[2], true).store(out + matrix, live);
      half_sum(x[0], x[1], x[2], false).store(out + 2 * matrix, live);
      (w.reversed ? x[0] : x[2]).store(out + 3 * matrix, live);
      out += kTileLines * matrix;
    });
  }

  template <class V>
  static MB_INLINE V half_sum(V first, V second, V third, bool plus) {
    const V half = T(.5), ends = half * (first + third);
    return plus ? muladd(half, second, ends) : muladd(-half, second, ends);
  }
};

// Some lines of C' x C, of some filters, for weights [filters,channels,3,3], which replace them or are added to them;
// matrices have `matrix` elements.
template <class T>
struct FinishWeights {
  template <class W>
  static MB_INLINE void run(const TileBlock* block, int channels, int filters, const T* x, intptr_t matrix, T* w,
                            bool adds) {
    using V = typename W::template of<T>;
    constexpr int kTaps = kWindow * kWindow;
    const bool all = block->lines == kTileLines;
    for (; filters > 0; --filters, x += channels)
      for (int channel = 0; channel < channels; channel += V::size) {
        const int live = channels - channel;
        V y[kWindow][kWindow];
        unroll<kTaps>([&](auto i) MB_LAMBDA { y[i / kWindow][i % kWindow] = T(0); });
        const T* each = x + channel;
        unroll<kTileLines>([&](auto line) MB_LAMBDA {
          if (!all && block->line != line) return;
          const V a = V::load(each), b = V::load(each + matrix), c = V::load(each + 2 * matrix);
          const V sums[kWindow] = {a + b + c, b - c, b + c - V::load(each + 3 * matrix)};
          unroll<kWindow>([&](auto k) MB_LAMBDA {
            if (line < 3) y[0][k] = y[0][k] + sums[k];
            if (line == 1) y[1][k] = y[1][k] + sums[k];
            if (line == 2) y[1][k] = y[1][k] - sums[k];
            if (line == 1 || line == 2) y[2][k] = y[2][k] + sums[k];
            if (line == 3) y[2][k] = y[2][k] - sums[k];
          });
          each += kTileLines * matrix;
        });
        T taps[kTaps][V::size], own[V::size * kTaps];
        unroll<kTaps>([&](auto i) MB_LAMBDA { y[i / kWindow][i % kWindow].store(taps[i]); });
        for (int tap = 0; tap < kTaps - 1; tap += 4) {
          const T* four[4];
          point_at_rows(four, taps[tap], V::size, 4);
          transpose_group(four, V::size, own + tap, kTaps, 0);
        }
        for (int i = 0; i < V::size; ++i) own[i * kTaps + kTaps - 1] = taps[kTaps - 1][i];
        const int elements = (live < V::size ? live : V::size) * kTaps;
        for (int i = 0; i < elements; i += V::size) {
          V sums = V::load(own + i);
          if (adds) sums = V::load(w + i, elements - i) + sums;
          sums.store(w + i, elements - i);
        }
        w += elements;
      }
  }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_NN_WINOGRAD_WINDOWS_H_
