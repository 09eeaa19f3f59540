// Convolutions with one filter of five or seven rows per channel, column by column of the window: an element of a plane
// (lib/nn/depthwise_planes.h) that is in a register meets every row of the window, so that sums wait for few reads. The
// order of a sum is that of the columns, of rows within them; gradients of the input meet the taps in reverse.
#ifndef MINBUILD_LIB_NN_WINDOW_COLUMNS_H_
#define MINBUILD_LIB_NN_WINDOW_COLUMNS_H_

#include "lib/nn/depthwise_planes.h"

namespace minbuild {

constexpr int kTallBlock = 7, kBlock = 4;  // rows of results at once

// The vectors of results at once: in turn neighbours in rows, and the same place of two channels. Their elements of
// planes, weights and results are so far apart.
struct Apart {
  intptr_t x = 0, w = 0, y = 0;
};

// sums[i] += factors[-i] * x
template <class V, int... I>
MB_INTERNAL void add_taps(V* sums, const V* factors, V x, Constants<int, I...>) {
  ((sums[I] = muladd(factors[-I], x, sums[I])), ...);
}

// sums[v][i] += the taps w[k * step] times row i + k of a plane. The first and last kRim rows are zero.
template <int kTaps, int kRim, int kC, int kR, class T, class V>
MB_INTERNAL void add_column(V (&sums)[kC][kR], const T* row, intptr_t pitch, const T* w, intptr_t step,
                            const Apart& apart) {
  V factors[kC][kTaps];
  unroll<kTaps>([&](auto k) MB_LAMBDA {
    factors[0][k] = *w;
    if constexpr (kC == 2) factors[1][k] = w[apart.w];
    w += step;
  });
  row += kRim * pitch;
  unroll<kR + kTaps - 1 - 2 * kRim>([&](auto inner) MB_LAMBDA {
    constexpr int r = inner + kRim, kFirst = r < kTaps ? 0 : r - kTaps + 1, kLast = r < kR ? r : kR - 1;
    // Not by functions that know the row, of which there would be hundreds to compile.
    constexpr ConstantsUpTo<kLast - kFirst + 1> kAll;
    add_taps(sums[0] + kFirst, factors[0] + (r - kFirst), V::load(row), kAll);
    if constexpr (kC == 2) add_taps(sums[1] + kFirst, factors[1] + (r - kFirst), V::load(row + apart.x), kAll);
    row += pitch;
  });
}

// As rows are short, registers of 64 bytes hold vectors of 32; there are 32 of them, for two vectors of each row.
template <class W>
using RowVector = Width<(W::bytes < 32 ? W::bytes : 32)>;

// The columns of a window that results of a phase meet: each has `taps` rows of the plane from places[i] on, and
// of the weights from weights[i] on, in steps of `step`.
struct WindowColumns {
  int count = 0, taps[kMostDepthwiseTaps], weights[kMostDepthwiseTaps];
  intptr_t places[kMostDepthwiseTaps], step;
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
};

// Of kC vectors of results: `rows` of them, kTallBlock, kBlock or one, of which the first reads from `from`. A function of
// its own: it has thousands of instructions, and compilers take gigabytes for a copy at each of its places.
template <class T, int kC>
struct ColumnSums {
  template <class W>
  static MB_INLINE void run(const WindowColumns* columns, int rows, const T* from, intptr_t pitch, const T* w,
                            const Apart* apart, const T* first, T* results) {
    using V = typename RowVector<W>::template of<T>;
    if (rows == kTallBlock) {
      if (columns->rim) sum<V, kTallBlock, 1>(*columns, from, pitch, w, *apart, first, results);
      else sum<V, kTallBlock, 0>(*columns, from, pitch, w, *apart, first, results);
    } else if (rows == kBlock) {
      sum<V, kBlock, 0>(*columns, from, pitch, w, *apart, first, results);
    } else {
      sum<V, 1, 0>(*columns, from, pitch, w, *apart, first, results);
    }
  }
  template <class V, int kR, int kRim>
  static MB_INTERNAL void sum(const WindowColumns& columns, const T* from, intptr_t pitch, const T* w,
                              const Apart& apart, const T* first, T* results) {
    V sums[kC][kR];
    unroll<kC>([&](auto v) MB_LAMBDA { unroll<kR>([&](auto i) MB_LAMBDA { sums[v][i] = first[v]; }); });
    for (int i = 0; i < columns.count; ++i) {
      const T *x = from + columns.places[i], *factors = w + columns.weights[i];
      const int taps = columns.taps[i];
      if (kFiveRows && taps == 5) add_column<5, kRim * 2>(sums, x, pitch, factors, columns.step, apart);
      if (kSevenRows && taps == 7) add_column<7, kRim * 3>(sums, x, pitch, factors, columns.step, apart);
      if constexpr (MB_DEPTHWISE_CONV_TALL_STRIDES && kRim == 0) {
        if (kFiveRows && taps == 2) add_column<2, 0>(sums, x, pitch, factors, columns.step, apart);
        if (taps == 3) add_column<3, 0>(sums, x, pitch, factors, columns.step, apart);
        if (kSevenRows && taps == 4) add_column<4, 0>(sums, x, pitch, factors, columns.step, apart);
      }
    }
    unroll<kC>([&](auto v) MB_LAMBDA {
      unroll<kR>([&](auto i) MB_LAMBDA { sums[v][i].store(results + (v * kTallBlock + i) * V::size); });
    });
  }
};

// Rows in the next block where some are left of `height`: the last one overlaps the one before.
MB_INLINE int rows_of_block(int left, int height) {
  if (left > kBlock && height >= kTallBlock) return kTallBlock;
  return height >= kBlock ? kBlock : 1;
}

// Of some channels of an image: outputs, or gradients of the input. Small channels are copied while those before are
// computed: first reads do not wait for writes.
template <class T>
struct ColumnsBody {
  template <class W>
  static MB_INLINE void run(const Depthwise<T>* of, const T* x, T* y, const T* w, const T* bias, int channels) {
    using V = typename RowVector<W>::template of<T>;
    constexpr int kC = W::bytes == 64 ? 2 : 1;
    const Depthwise<T>& c = *of;
    const bool forward = c.propagation == kOutput, phases = !forward && c.stride == 2;
    const int height = forward ? c.out[0] : c.in[0], width = forward ? c.out[1] : c.in[1];
    const intptr_t source = intptr_t(c.read[0]) * c.read[1], image = intptr_t(height) * width;
    Depthwise<T> filled = c;  // whose planes are those of the channel that is copied
    WindowColumns columns[4];
    if (phases) {
      for (int i = 0; i < 4; ++i) columns[i].list_phase(c, i / 2, i % 2);
    } else {
      columns[0].list(c);
    }
    const int lag = c.copies > 1, most = kC == 2 && c.copies == 4 && width <= V::size * (1 + phases) ? 2 : 1;
    for (int n = 0; n < channels + lag * most; n += most) {
      for (int i = n; i < n + most && i < channels; ++i) {
        filled.planes = c.planes + (i & (c.copies - 1)) * c.copy;
        fill<V>(filled, x + i * source);
      }
      const int done = n - lag * most, some = channels - done < most ? channels - done : most;
      if (done < 0) continue;
      const T* const planes = c.planes + (done & (c.copies - 1)) * c.copy;
      T first[2] = {T(0), T(0)};
      if (bias)
        for (int i = 0; i < 2; ++i) first[i] = bias[done + (i < some ? i : 0)];
      Apart apart;
      if (some == 2) apart = {c.copy, c.taps, image};
      if (phases) join<W, kC, V>(c, columns, planes, w + done * c.taps, apart, y + done * image, height, width, first);
      else add<W, kC, V>(c, columns[0], planes, w + done * c.taps, apart, y + done * image, height, width, first);
    }
  }
  template <class W, int kC, class V>
  static MB_INLINE void add(const Depthwise<T>& c, const WindowColumns& columns, const T* planes, const T* w,
                            Apart apart, T* y, intptr_t height, intptr_t width, const T* first) {
    const T* const end = y + height * width;
    const bool channels = apart.y > 0;
    for (intptr_t r = 0; r < height;) {
      const int rows = rows_of_block(int(height - r), int(height));
      if (r > height - rows) r = height - rows;
      for (intptr_t column = 0; column < width;) {
        T sums[kC][kTallBlock * V::size];
        const T *const from = planes + r * c.pitch + column, *last = end;
        T* const to = y + r * width + column;
        const intptr_t left = width - column - V::size;
        const intptr_t step = left <= 0 ? V::size : left < V::size ? left : V::size;  // the last vector may overlap
        const bool pair = kC == 2 && (channels || left > 0);
        if (pair) {
          if (!channels) apart.x = apart.y = step;
          else last += apart.y;
        }
        sum_rows<W, kC>(pair, &columns, rows, from, c.pitch, w, &apart, first, sums[0]);
        // A row that is shorter than a vector is written too far; the rows behind follow.
        store_rows<V>(sums[0], rows, to, width, end);
        if (pair) store_rows<V>(sums[kC - 1], rows, to + apart.y, width, last);
        column += step;
        if (pair && !channels) {
          const intptr_t rest = width - column - V::size;
          column += rest <= 0 ? V::size : rest < V::size ? rest : V::size;
        }
      }
      r += rows;
    }
  }
  // Of two vectors of results if `pair`.
  template <class W, int kC, class... Args>
  static MB_INLINE void sum_rows(bool pair, Args... args) {
    if (kC == 2 && pair) run_apart<ColumnSums<T, kC>, W>(args...);
    else run_apart<ColumnSums<T, 1>, W>(args...);
  }
  template <class V>
  static MB_INLINE void store_rows(const T* sums, int rows, T* to, intptr_t width, const T* end) {
    for (; rows > 0; --rows, sums += V::size, to += width) {
      if (to <= end - V::size) V::load(sums).store(to);
      else copy_row<V>(sums, to, int(end - to));
    }
  }
  // A channel to planes whose rims are zero, of windows that move by one element: rows are often short.
  template <class V>
  static MB_INLINE void fill(const Depthwise<T>& c, const T* image) {
    if (c.step > 1) return c.template fill_planes<V>(image);
    const intptr_t pitch = c.pitch, width = c.read[1];
    const int count = Depthwise<T>::limited(int(width), int(pitch) - c.before[1]);
    int rows = Depthwise<T>::limited(c.read[0], c.extent[0] - c.before[0]);
    for (T* to = c.planes + c.before[0] * pitch + c.before[1]; rows > 0; --rows, image += width, to += pitch)
      copy_row<V>(image, to, count);
  }
  // Of rows and columns by turns.
  template <class W, int kC, class V>
  static MB_INLINE void join(const Depthwise<T>& c, const WindowColumns* columns, const T* planes, const T* w,
                             Apart apart, T* dx, int height, int width, const T* first) {
    const bool channels = apart.y > 0;
    for (int down = 0; down < 2; ++down) {
      const WindowColumns* const own = columns + (down + c.pad[0]) % 2 * 2;
      const int count = (height - down + 1) / 2;
      for (int r = 0; r < count;) {
        const int rows = rows_of_block(count - r, count);
        if (r > count - rows) r = count - rows;
        const T* const from = planes + (2 * r + down + c.pad[0]) / 2 * c.pitch;
        for (int at = 0, step; 2 * at < width; at += step) {
          T sums[2][kC][kTallBlock][V::size];
          step = V::size;
          const bool pair = kC == 2 && (channels || 2 * (at + step) < width);
          if (pair && !channels) apart.x = step, apart.y = 2 * step, step *= 2;
          for (int i = 0; i < 2; ++i)
            sum_rows<W, kC>(pair, own + i, rows, from + at, c.pitch, w, &apart, first, sums[i][0][0]);
          for (int v = 0; v <= pair; ++v) {
            T* to = dx + (2 * r + down) * width + 2 * at + v * apart.y;
            const int left = width - 2 * at - (channels ? 0 : v * 2 * V::size);
            for (int i = 0; i < rows; ++i, to += 2 * width) {
              const V even = V::load(sums[0][v][i]), odd = V::load(sums[1][v][i]);
              T line[2 * V::size];
              in_pairs<0>(even, odd).store(line), in_pairs<1>(even, odd).store(line + V::size);
              copy_row<V>(line, to, left < 2 * V::size ? left : 2 * V::size);
            }
          }
        }
        r += rows;
      }
    }
  }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_NN_WINDOW_COLUMNS_H_
