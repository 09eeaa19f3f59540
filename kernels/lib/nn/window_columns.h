// Convolutions with one filter of five or seven rows per channel, column by column of the window: an element of a plane
// (lib/nn/depthwise_planes.h) that is in a register meets every row of the window, so that sums wait for few reads. The
// order of a sum is that of the columns, of rows within them; gradients of the input meet the taps in reverse.
#ifndef MINBUILD_LIB_NN_WINDOW_COLUMNS_H_
#define MINBUILD_LIB_NN_WINDOW_COLUMNS_H_

#include "lib/nn/depthwise_planes.h"

namespace minbuild {

constexpr int kTallBlock = 7, kBlock = 4;  // rows of results at once

// sums[i] += the taps w[k * step] times row i + k of a plane. The first and last kRim rows are zero.
template <int kTaps, int kRim, int kR, class T, class V>
MB_INLINE void add_column(V (&sums)[kR], const T* row, intptr_t pitch, const T* w, intptr_t step) {
  V factors[kTaps];
  unroll<kTaps>([&](auto k) MB_LAMBDA { factors[k] = *w, w += step; });
  row += kRim * pitch;
  unroll<kR + kTaps - 1 - 2 * kRim>([&](auto inner) MB_LAMBDA {
    constexpr int r = inner + kRim;
    const V x = V::load(row);
    row += pitch;
    unroll<kR>([&](auto i) MB_LAMBDA {
      if constexpr (r >= i && r < i + kTaps) sums[i] = muladd(factors[r - i], x, sums[i]);
    });
  });
}

// The columns of a window that results of a phase meet: each has `taps` rows of the plane from places[i] on, and
// of the weights from weights[i] on, in steps of `step`.
struct WindowColumns {
  int count = 0, taps[kMostTaps], weights[kMostTaps];
  intptr_t places[kMostTaps], step;
  bool rim = false;

  void add(int rows, int weight, intptr_t place) {
    taps[count] = rows, weights[count] = weight, places[count++] = place;
  }
  // Of outputs, or of gradients of the input where windows move by one element.
  template <class T>
  void list(const Depthwise<T>& c) {
    const int height = c.window[0], width = c.window[1];
    const bool back = c.propagation == kInputGradient;
    step = back ? -width : c.step * width;
    rim = c.step == 1 && c.pad[0] == height / 2 && c.out[0] == kTallBlock && c.in[0] == kTallBlock;
    for (int column = 0; column < width; ++column)
      for (int row = 0; row < c.step; ++row) {
        const int tap = row * width + column;
        add((height - row + c.step - 1) / c.step, back ? c.taps - 1 - tap : tap, c.places[tap]);
      }
  }
  // Of gradients of the input where windows move by two elements, in rows of one parity and columns of one.
  template <class T>
  void list_phase(const Depthwise<T>& c, int down, int across) {
    const int height = c.window[0], width = c.window[1];
    const int last = (height - 1 - down) / 2 * 2 + down;  // row of the window
    count = 0, step = -2 * width;
    for (int column = width - 1; column >= 0; --column) {
      const int ahead = c.pad[1] + across - column;
      if (ahead % 2 == 0)
        add(last / 2 + 1, last * width + column, (c.before[0] - last / 2) * c.pitch + c.before[1] + ahead / 2);
    }
  }

  // lanes[kR]: vectors of as many rows of results, of which the first reads from `from`.
  template <int kR, int kRim, class V, class T>
  MB_INLINE void sum(const T* from, intptr_t pitch, const T* w, V first, V* lanes) const {
    V sums[kR];
    unroll<kR>([&](auto i) MB_LAMBDA { sums[i] = first; });
    for (int i = 0; i < count; ++i) {
      const T *x = from + places[i], *factors = w + weights[i];
      switch (taps[i]) {
        case 2: add_column<2, 0>(sums, x, pitch, factors, step); break;
        case 3: add_column<3, 0>(sums, x, pitch, factors, step); break;
        case 4: add_column<4, 0>(sums, x, pitch, factors, step); break;
        case 5: add_column<5, kRim * 2>(sums, x, pitch, factors, step); break;
        default: add_column<7, kRim * 3>(sums, x, pitch, factors, step);
      }
    }
    unroll<kR>([&](auto i) MB_LAMBDA { lanes[i] = sums[i]; });
  }
  // The same, of `rows` rows: kTallBlock, kBlock or one.
  template <class V, class T>
  MB_INLINE void sum_rows(int rows, const T* from, intptr_t pitch, const T* w, V first, V* lanes) const {
    if (rows == kTallBlock) {
      if (rim) sum<kTallBlock, 1>(from, pitch, w, first, lanes);
      else sum<kTallBlock, 0>(from, pitch, w, first, lanes);
    } else if (rows == kBlock) {
      sum<kBlock, 0>(from, pitch, w, first, lanes);
    } else {
      sum<1, 0>(from, pitch, w, first, lanes);
    }
  }
};

// Rows in the next block where some are left of `height`: the last one overlaps the one before.
MB_INLINE int rows_of_block(int left, int height) {
  if (left > kBlock && height >= kTallBlock) return kTallBlock;
  return height >= kBlock ? kBlock : 1;
}

// Of some channels of an image: outputs, or gradients of the input. Where planes are twins, a channel is copied while
// the one before is computed: its first reads do not wait for its writes.
template <class T>
struct ColumnsBody {
  template <class W>
  static MB_INLINE void run(const Depthwise<T>* of, const T* x, T* y, const T* w, const T* bias, int channels) {
    using V = typename W::template of<T>;
    const Depthwise<T>& c = *of;
    const bool forward = c.propagation == kOutput, phases = !forward && c.stride == 2;
    const int height = forward ? c.out[0] : c.in[0], width = forward ? c.out[1] : c.in[1];
    const intptr_t source = intptr_t(c.read[0]) * c.read[1];
    WindowColumns columns[4];
    if (phases) {
      for (int i = 0; i < 4; ++i) columns[i].list_phase(c, i / 2, i % 2);
    } else {
      columns[0].list(c);
    }
    const int lag = c.twin > 0;
    for (int n = 0; n < channels + lag; ++n) {
      if (n < channels) c.template fill_planes<V>(x + n * source, c.planes + n % 2 * c.twin);
      if (n < lag) continue;
      const T* const planes = c.planes + (n - lag) % 2 * c.twin;
      if (phases) join(c, columns, planes, w, y, height, width, V(T(0)));
      else add(c, columns[0], planes, w, y, height, width, V(bias ? *bias++ : T(0)));
      y += height * width, w += c.taps;
    }
  }
  template <class V>
  static MB_INLINE void add(const Depthwise<T>& c, const WindowColumns& columns, const T* planes, const T* w, T* y,
                            intptr_t height, intptr_t width, V first) {
    const T* const end = y + height * width;
    for (intptr_t r = 0; r < height;) {
      const int rows = rows_of_block(int(height - r), int(height));
      if (r > height - rows) r = height - rows;
      for (intptr_t column = 0;;) {
        V sums[kTallBlock];
        columns.sum_rows(rows, planes + r * c.pitch + column, c.pitch, w, first, sums);
        // A row that is shorter than a vector is written too far; the rows behind follow.
        T* to = y + r * width + column;
        for (int i = 0; i < rows; ++i, to += width) sums[i].store(to, int(end - to));
        if (column + V::size >= width) break;
        column = column + 2 * V::size > width ? width - V::size : column + V::size;
      }
      r += rows;
    }
  }
  // Of rows and columns by turns.
  template <class V>
  static MB_INLINE void join(const Depthwise<T>& c, const WindowColumns* columns, const T* planes, const T* w, T* dx,
                             int height, int width, V zero) {
    for (int down = 0; down < 2; ++down) {
      const WindowColumns* const own = columns + (down + c.pad[0]) % 2 * 2;
      const int count = (height - down + 1) / 2;
      for (int r = 0; r < count;) {
        const int rows = rows_of_block(count - r, count);
        if (r > count - rows) r = count - rows;
        const T* const from = planes + (2 * r + down + c.pad[0]) / 2 * c.pitch;
        for (int at = 0; 2 * at < width; at += V::size) {
          V sums[2][kTallBlock];
          for (int across = 0; across < 2; ++across)
            own[across].sum_rows(rows, from + at, c.pitch, w, zero, sums[across]);
          T* to = dx + (2 * r + down) * width + 2 * at;
          for (int i = 0; i < rows; ++i, to += 2 * width) {
            T line[2 * V::size];
            in_pairs<0>(sums[0][i], sums[1][i]).store(line), in_pairs<1>(sums[0][i], sums[1][i]).store(line + V::size);
            const int left = width - 2 * at;
            Depthwise<T>::template copy_row<V>(line, to, left < 2 * V::size ? left : 2 * V::size);
          }
        }
        r += rows;
      }
    }
  }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_NN_WINDOW_COLUMNS_H_
