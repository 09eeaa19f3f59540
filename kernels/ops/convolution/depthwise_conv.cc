// Convolutions with one filter per channel, of real size, and their gradients, over two axes with windows that move by
// one or two elements. No sum is ever written to memory before it is complete: each vector of results is made of what all
// taps read, from planes with zeros around the image. A step of two splits an image into four planes, of even and odd rows
// and columns, which the taps read by contiguous vectors.
#include "minbuild/kernel.h"
#include "lib/nn/depthwise_planes.h"
#include "lib/nn/narrow_images.h"
#include "lib/nn/window_columns.h"

namespace minbuild {

// Of some channels of an image: outputs, or gradients of the input where windows move by one element.
template <class T>
struct OutputsBody {
  template <class W>
  static MB_INLINE void run(const Depthwise<T>* of, const T* x, T* y, const T* w, const T* bias, int channels) {
    using V = typename W::template of<T>;
    const Depthwise<T>& c = *of;
    const bool forward = c.propagation == kOutput;
    const intptr_t height = forward ? c.out[0] : c.in[0], width = forward ? c.out[1] : c.in[1], pitch = c.pitch;
    const intptr_t next = forward ? 1 : -1;  // gradients of the input meet the taps in reverse
    [[maybe_unused]] const NarrowRows<T> rows(c.in[1]);
    [[maybe_unused]] const bool narrow = V::size == kNarrow && c.is_narrow();
    for (; channels > 0; --channels, x += intptr_t(c.read[0]) * c.read[1], w += c.taps) {
      const V first = bias ? *bias++ : T(0);
      const T* const factors = forward ? w : w + c.taps - 1;
      if constexpr (V::size == kNarrow) {
        if (narrow && channels > 1 && x != c.first_image) {  // the last of them may not write behind itself
          narrow_outputs<T>(rows, c.in[0], x, y, factors, next, first);
          y += height * width;
          continue;
        }
      }
      c.template fill_planes<V>(x);
      const T* const end = y + height * width;
      for (intptr_t r = 0; r < height; r += kRows) {
        for (intptr_t column = 0;;) {
          const T* from[kRows];
          point_at_rows(from, static_cast<const T*>(c.planes + r * pitch + column), pitch, height - r);
          V sums[kRows];
          unroll<kRows>([&](auto i) MB_LAMBDA { sums[i] = first; });
          for (int tap = 0; tap < c.taps; ++tap) {
            const V factor = factors[tap * next];
            const intptr_t place = c.places[tap];
            unroll<kRows>([&](auto i) MB_LAMBDA { sums[i] = muladd(factor, V::load(from[i] + place), sums[i]); });
          }
          // A row that is shorter than a vector is written too far; the rows behind follow.
          T* to = y + r * width + column;
          unroll<kRows>([&](auto i) MB_LAMBDA {
            if (r + i < height) sums[i].store(to, int(end - to));
            to += width;
          });
          if (column + V::size >= width) break;
          column = column + 2 * V::size > width ? width - V::size : column + V::size;
        }
      }
      y += height * width;
    }
  }
};

// Of some channels of an image: gradients of the input where windows move by two elements. Even and odd columns meet
// different taps.
template <class T>
struct InputsBody {
  template <class W>
  static MB_INLINE void run(const Depthwise<T>* of, const T* dy, T* dx, const T* w, int channels) {
    using V = typename W::template of<T>;
    const Depthwise<T>& c = *of;
    const int width = c.in[1];
    for (; channels > 0; --channels, dy += c.y_image, w += c.taps) {
      c.template fill_planes<V>(dy);
      const T* const end = dx + c.x_image;
      for (int r = 0; r < c.in[0]; ++r, dx += width) {
        const int q = r + c.pad[0];
        const int *const first = c.first + q % 2 * 2, evens = first[1] - first[0], odds = first[2] - first[1];
        const T* const from = c.planes + q / 2 * c.pitch;
        // Rows of a window of 3 x 3.
        if (evens + odds == 3) add_row<V, 2, 1>(c, evens == 1, first, w, from, dx, end);
        else if (evens * odds == 8) add_row<V, 4, 2>(c, evens == 2, first, w, from, dx, end);
        else add_row<V, 0, 0>(c, false, first, w, from, dx, end);
      }
    }
  }
  // A row, of even and odd columns that meet `kMore` and `kFewer` taps each, odd ones the more if `odd`. With zeros,
  // any number.
  template <class V, int kMore, int kFewer>
  static MB_INLINE void add_row(const Depthwise<T>& c, bool odd, const int* first, const T* w, const T* from, T* dx,
                                const T* end) {
    constexpr int kCounts[] = {kMore, kFewer};
    const int width = c.in[1], starts[] = {first[odd], first[!odd]};
    [[maybe_unused]] V factors[2][kMore + 1];
    [[maybe_unused]] const T* seen[2][kMore + 1];
    unroll<2>([&](auto i) MB_LAMBDA {
      unroll<kCounts[i]>([&](auto k) MB_LAMBDA {
        factors[i][k] = w[c.order[starts[i] + k]];
        seen[i][k] = from + c.places[starts[i] + k];
      });
    });
    const auto add = [&](auto blocks, intptr_t at, int left) MB_LAMBDA {
      V sums[2][blocks];
      unroll<2>([&](auto i) MB_LAMBDA {
        unroll<blocks>([&](auto b) MB_LAMBDA { sums[i][b] = T(0); });
        const auto add_tap = [&](V factor, const T* x) MB_LAMBDA {
          unroll<blocks>([&](auto b)
                             MB_LAMBDA { sums[i][b] = muladd(factor, V::load(x + at + b * V::size), sums[i][b]); });
        };
        unroll<kCounts[i]>([&](auto k) MB_LAMBDA { add_tap(factors[i][k], seen[i][k]); });
        if constexpr (kMore == 0)
          for (int k = first[i]; k < first[i + 1]; ++k) add_tap(w[c.order[k]], from + c.places[k]);
      });
      unroll<blocks>([&](auto b) MB_LAMBDA {
        const int done = 2 * b * V::size;
        if (odd) write(sums[1][b], sums[0][b], dx + 2 * at + done, left - done);
        else write(sums[0][b], sums[1][b], dx + 2 * at + done, left - done);
      });
    };
    intptr_t at = 0;
    for (; 2 * (at + 2 * V::size) <= width; at += 2 * V::size) add(Constant<2>{}, at, 4 * V::size);
    for (; 2 * at < width; at += V::size) add(Constant<1>{}, at, int(end - dx - 2 * at));
  }
  // The elements of both by turns, `left` at most.
  template <class V>
  static MB_INLINE void write(V even, V odd, T* to, int left) {
#if MB_SHUFFLES
    if constexpr (V::size == 8) {
      in_pairs<0>(even, odd).store(to, left);
      if (left > 8) in_pairs<1>(even, odd).store(to + 8, left - 8);
      return;
    }
#endif
    T lanes[2][V::size];
    even.store(lanes[0]), odd.store(lanes[1]);
    for (int i = 0; i < 2 * V::size && i < left; ++i) to[i] = lanes[i % 2][i / 2];
  }
};

// Of some channels of an image: gradients of weights, which are added to. Sums have the order of those of plane_conv.h,
// but for narrow images.
template <class T>
struct WeightsBody {
  template <class V, int kTaps>
  static MB_INLINE void add(const Depthwise<T>& c, T* w, int first) {
    V sums[kTaps][2];
    const T* from[kTaps];
    unroll<kTaps>([&](auto i) MB_LAMBDA {
      sums[i][0] = sums[i][1] = T(0);
      from[i] = c.planes + c.places[first + i];
    });
    for (intptr_t at = 0; at < c.reach; at += 2 * V::size)
      unroll<2>([&](auto s) MB_LAMBDA {
        const V factor = V::load(c.grid + at + s * V::size);
        unroll<kTaps>([&](auto i)
                          MB_LAMBDA { sums[i][s] = muladd(V::load(from[i] + at + s * V::size), factor, sums[i][s]); });
      });
    unroll<kTaps>([&](auto i) MB_LAMBDA { w[first + i] += sum(sums[i][0] + sums[i][1]); });
  }
  template <class W>
  static MB_INLINE void run(const Depthwise<T>* of, const T* x, const T* dy, T* w, int channels) {
    using V = typename W::template of<T>;
    const Depthwise<T>& c = *of;
    [[maybe_unused]] const NarrowRows<T> rows(c.in[1]);
    [[maybe_unused]] const bool narrow = V::size == kNarrow && c.is_narrow();
    for (; channels > 0; --channels, x += c.x_image, dy += c.y_image, w += c.taps) {
      if constexpr (V::size == kNarrow) {
        if (narrow) {
          const T *image = x, *flow = dy;
          if (x == c.first_image || x == c.last_image) {  // what is read beyond them is memory of their copies
            copy_bytes(c.planes + kNarrow, x, size_t(c.x_image) * sizeof(T));
            copy_bytes(c.grid, dy, size_t(c.y_image) * sizeof(T));
            image = c.planes + kNarrow, flow = c.grid;
          }
          narrow_weights<T>(rows, c.in[0], image, flow, w);
          continue;
        }
      }
      c.template fill_planes<V>(x);
      for (int r = 0; r < c.out[0]; ++r) copy_row<V>(dy + intptr_t(r) * c.out[1], c.grid + r * c.pitch, c.out[1]);
      int tap = 0;
      for (; tap <= c.taps - 5; tap += 5) add<V, 5>(c, w, tap);
      for (; tap <= c.taps - 4; tap += 4) add<V, 4>(c, w, tap);
      for (; tap < c.taps; ++tap) add<V, 1>(c, w, tap);
    }
  }
};

template <class T>
MB_NOINLINE void run_channels(const Depthwise<T>& c, T* x, T* y, T* w, const T* bias, int first, int count) {
  const int bytes = vector_bytes();
  for (int n = 0; n < c.batch; ++n) {
    const intptr_t channel = intptr_t(n) * c.channels + first;
    T *own_x = x + channel * c.x_image, *own_y = y + channel * c.y_image, *own_w = w + intptr_t(first) * c.taps;
    const T *from_x = own_x, *from_y = own_y, *from_w = own_w, *own_bias = bias ? bias + first : nullptr;
    if (kTall && c.is_tall()) {
      if (c.propagation == kOutput)
        run_at<ColumnsBody<T>, 64>(widest_bytes(), &c, from_x, own_y, from_w, own_bias, count);
      else run_at<ColumnsBody<T>, 64>(widest_bytes(), &c, from_y, own_x, from_w, own_bias, count);
    } else if (c.propagation == kWeightGradient) run_at<WeightsBody<T>>(bytes, &c, from_x, from_y, own_w, count);
    else if (c.propagation == kOutput) run_at<OutputsBody<T>>(bytes, &c, from_x, own_y, from_w, own_bias, count);
    else if (c.stride == 1) run_at<OutputsBody<T>>(bytes, &c, from_y, own_x, from_w, own_bias, count);
    else run_at<InputsBody<T>>(bytes, &c, from_y, own_x, from_w, count);
  }
}

// Arguments and parameters as those of conv.
template <class T>
Status depthwise_conv(const Call& call) {
  Depthwise<T> c;
  return run_in_groups<T>(call, c, run_channels<T>);
}

MB_INSTANTIATE_DEPTHWISE_CONV

}  // namespace minbuild
