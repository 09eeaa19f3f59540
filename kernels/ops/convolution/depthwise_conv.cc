// Convolutions with one filter per channel, of real size, and their gradients, over two axes with windows that move by
// one or two elements. No sum is ever written to memory before it is complete: each vector of results is made of what all
// taps read, from planes with zeros around the image. A step of two splits an image into four planes, of even and odd rows
// and columns, which the taps read by contiguous vectors.
#include "minbuild/kernel.h"
#include "lib/gemm/pack.h"
#include "lib/indexing/disjoint.h"

namespace minbuild {

enum Propagation : int { kOutput, kInputGradient, kWeightGradient };
constexpr int kAxes = 2, kRows = 4;    // axes; rows of results at once
constexpr int kMostTaps = 64;          // of a window
constexpr intptr_t kSlackBytes = 128;  // behind planes, for whole vectors

// x: [N,C,in[0],in[1]]  y: [N,C,out[0],out[1]]  w: [C,1,window[0],window[1]]
template <class T>
struct Depthwise {
  Propagation propagation;
  int batch, channels, taps, stride;
  int in[kAxes], out[kAxes], window[kAxes], pad[kAxes];
  // Planes of what is read: of x, or of y for gradients of the input. Element q of phase r of an axis is element
  // q * step + r - before of the image.
  int read[kAxes], extent[kAxes], before[kAxes], step;
  intptr_t plane, pitch;  // elements of a phase and of its rows
  intptr_t reach;         // of the outputs in such rows, zeros between them, whole vectors
  intptr_t x_image, y_image;
  intptr_t places[kMostTaps];      // where each tap begins
  int order[kMostTaps], first[5];  // of taps by the parity of rows and columns that they meet (InputsBody)
  T *planes, *grid;
  intptr_t share;  // elements of both, for each thread

  // params: propagation, groups, then strides, pads at the start and dilations, three each.
  bool read_shapes(const Tensor& x, const Tensor& y, const Tensor& w, const int32_t* params) {
    if (x.rank != 4 || y.rank != 4 || w.rank != 4) return false;
    batch = x.dims[0], channels = x.dims[1], taps = 1, stride = params[3];
    if (y.dims[0] != batch || y.dims[1] != channels || w.dims[0] != channels || w.dims[1] != 1) return false;
    if (params[1] != channels || unsigned(stride - 1) > 1 || params[4] != stride) return false;
    x_image = y_image = plane = 1;
    for (int a = 0; a < kAxes; ++a) {
      in[a] = x.dims[a + 2], out[a] = y.dims[a + 2], window[a] = w.dims[a + 2], pad[a] = params[6 + a];
      constexpr unsigned kMost = 1 << 13;
      if (unsigned(in[a] - 1) >= kMost || unsigned(out[a] - 1) >= kMost || unsigned(window[a] - 1) >= kMostTaps ||
          unsigned(pad[a]) >= unsigned(window[a]) || params[9 + a] != 1)
        return false;
      x_image *= in[a], y_image *= out[a], taps *= window[a];
      const int span = window[a] - 1;
      step = propagation == kInputGradient ? 1 : stride;
      if (propagation != kInputGradient) {
        read[a] = in[a], before[a] = pad[a], extent[a] = out[a] + span / stride;
      } else if (stride == 1) {  // the taps in reverse
        read[a] = out[a], before[a] = span - pad[a], extent[a] = in[a] + span;
      } else {  // element (i + pad) / 2 of an axis meets those up to span / 2 before
        read[a] = out[a], before[a] = span / 2;
        const int reached = (in[a] - 1 + pad[a]) / 2 + 1;
        extent[a] = (reached > out[a] ? reached : out[a]) + span / 2;
      }
      plane *= extent[a];
    }
    pitch = extent[1];
    return taps <= kMostTaps;
  }

  bool lay_out(const Tensor& written, const Tensor& bytes) {
    constexpr intptr_t kLanes = 16;
    const intptr_t slack = kSlackBytes / intptr_t(sizeof(T)), all = plane * step * step + slack;
    reach = ((out[0] - 1) * pitch + out[1] + kLanes - 1) & -kLanes;
    share = (all + (propagation == kWeightGradient ? reach : 0) + slack + 15) & -16;
    planes = bytes.scratch<T>();
    grid = planes + all;
    if (share * intptr_t(sizeof(T)) > bytes.count || !disjoint(written, sizeof(T), bytes, 1)) return false;
    if (propagation == kInputGradient && stride == 2) {
      sort_taps();
      return true;
    }
    for (int tap = 0; tap < taps; ++tap) {
      const int row = tap / window[1], column = tap % window[1];
      if (propagation == kInputGradient) places[taps - 1 - tap] = row * pitch + column;
      else places[tap] = (row % step * step + column % step) * plane + row / step * pitch + column / step;
    }
    return true;
  }

  void sort_taps() {
    int count = 0;
    for (int phase = 0; phase < 4; ++phase) {
      first[phase] = count;
      for (int tap = 0; tap < taps; ++tap) {
        const int row = tap / window[1], column = pad[1] + phase % 2 - tap % window[1];
        if (row % 2 != phase / 2 || column % 2 != 0) continue;
        order[count] = tap;
        places[count++] = (before[0] - row / 2) * pitch + before[1] + column / 2;
      }
    }
    first[4] = count;
  }

  // The image of a channel to its planes, whose rims are zero.
  template <class V>
  MB_INLINE void fill_planes(const T* image) const {
    for (int r = 0; r < read[0]; ++r, image += read[1]) {
      const int q = r + before[0], row = q / step;
      if (row >= extent[0]) return;
      T* to = planes + q % step * step * plane + row * pitch;
      if (step == 1) {
        const int count = pitch - before[1] < read[1] ? int(pitch) - before[1] : read[1];
        copy_row<V>(image, to + before[1], count);
      } else {
        // Even columns of the image are those of the phase of the first one.
        T *even = to + before[1] % 2 * plane + before[1] / 2,
          *odd = to + (before[1] + 1) % 2 * plane + (before[1] + 1) / 2;
        const int evens = limited((read[1] + 1) / 2, int(pitch) - before[1] / 2);
        const int odds = limited(read[1] / 2, int(pitch) - (before[1] + 1) / 2);
        int i = 0;
#if MB_SHUFFLES
        if constexpr (V::size == 8)
          for (; i <= (evens < odds ? evens : odds) - V::size; i += V::size) {
            const auto a = V::load(image + 2 * i).v, b = V::load(image + 2 * i + V::size).v;
            V(__builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14)).store(even + i);
            V(__builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15)).store(odd + i);
          }
#endif
        for (int j = i; j < evens; ++j) even[j] = image[2 * j];
        for (int j = i; j < odds; ++j) odd[j] = image[2 * j + 1];
      }
    }
  }
  static MB_INLINE int limited(int count, int most) { return count < most ? count : most; }
  // By whole vectors, the last of which overlaps the one before.
  template <class V>
  static MB_INLINE void copy_row(const T* from, T* to, int count) {
    using Half = Vec<T, (V::size > 1 ? V::size / 2 : 1)>;
    if (count >= V::size) {
      for (int i = 0; i < count - V::size; i += V::size) V::load(from + i).store(to + i);
      V::load(from + count - V::size).store(to + count - V::size);
    } else if (count >= Half::size) {
      Half::load(from).store(to);
      Half::load(from + count - Half::size).store(to + count - Half::size);
    } else {
      for (int i = 0; i < count; ++i) to[i] = from[i];
    }
  }
};

// Of some channels of an image: outputs, or gradients of the input where windows move by one element.
template <class T>
struct OutputsBody {
  template <class W>
  static MB_INLINE void run(const Depthwise<T>* of, const T* x, T* y, const T* w, const T* bias, int channels) {
    using V = typename W::template of<T>;
    const Depthwise<T>& c = *of;
    const bool forward = c.propagation == kOutput;
    const intptr_t height = forward ? c.out[0] : c.in[0], width = forward ? c.out[1] : c.in[1], pitch = c.pitch;
    for (; channels > 0; --channels, x += intptr_t(c.read[0]) * c.read[1], w += c.taps) {
      c.template fill_planes<V>(x);
      const V first = bias ? *bias++ : T(0);
      const T* const end = y + height * width;
      for (intptr_t r = 0; r < height; r += kRows) {
        for (intptr_t column = 0;;) {
          const T* from[kRows];
          point_at_rows(from, static_cast<const T*>(c.planes + r * pitch + column), pitch, height - r);
          V sums[kRows];
          unroll<kRows>([&](auto i) MB_LAMBDA { sums[i] = first; });
          for (int tap = 0; tap < c.taps; ++tap) {
            const V factor = w[tap];
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
    constexpr int kBlocks = 2;
    const int width = c.in[1];
    for (; channels > 0; --channels, dy += c.y_image, w += c.taps) {
      c.template fill_planes<V>(dy);
      const T* const end = dx + c.x_image;
      for (int r = 0; r < c.in[0]; ++r, dx += width) {
        const int q = r + c.pad[0];
        const int* const first = c.first + q % 2 * 2;
        const T* from = c.planes + q / 2 * c.pitch;
        for (int column = 0; column < width; column += 2 * kBlocks * V::size, from += kBlocks * V::size) {
          V sums[2][kBlocks];
          unroll<2>([&](auto i) MB_LAMBDA {
            unroll<kBlocks>([&](auto b) MB_LAMBDA { sums[i][b] = T(0); });
            for (int k = first[i]; k < first[i + 1]; ++k) {
              const V factor = w[c.order[k]];
              const T* x = from + c.places[k];
              unroll<kBlocks>([&](auto b)
                                  MB_LAMBDA { sums[i][b] = muladd(factor, V::load(x + b * V::size), sums[i][b]); });
            }
          });
          unroll<kBlocks>([&](auto b) MB_LAMBDA {
            const int at = column + 2 * b * V::size;
            if (at < width) write(sums[0][b], sums[1][b], dx + at, int(end - dx) - at);
          });
        }
      }
    }
  }
  // The elements of both by turns, `left` at most.
  template <class V>
  static MB_INLINE void write(V even, V odd, T* to, int left) {
#if MB_SHUFFLES
    if constexpr (V::size == 8) {
      V(__builtin_shufflevector(even.v, odd.v, 0, 8, 1, 9, 2, 10, 3, 11)).store(to, left);
      if (left > 8) V(__builtin_shufflevector(even.v, odd.v, 4, 12, 5, 13, 6, 14, 7, 15)).store(to + 8, left - 8);
      return;
    }
#endif
    T lanes[2][V::size];
    even.store(lanes[0]), odd.store(lanes[1]);
    for (int i = 0; i < 2 * V::size && i < left; ++i) to[i] = lanes[i % 2][i / 2];
  }
};

// Of some channels of an image: gradients of weights, which are added to. Sums have the order of those of plane_conv.h.
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
    for (; channels > 0; --channels, x += c.x_image, dy += c.y_image, w += c.taps) {
      c.template fill_planes<V>(x);
      for (int r = 0; r < c.out[0]; ++r)
        Depthwise<T>::template copy_row<V>(dy + intptr_t(r) * c.out[1], c.grid + r * c.pitch, c.out[1]);
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
    if (c.propagation == kWeightGradient) run_at<WeightsBody<T>>(bytes, &c, from_x, from_y, own_w, count);
    else if (c.propagation == kOutput) run_at<OutputsBody<T>>(bytes, &c, from_x, own_y, from_w, own_bias, count);
    else if (c.stride == 1) run_at<OutputsBody<T>>(bytes, &c, from_y, own_x, from_w, own_bias, count);
    else run_at<InputsBody<T>>(bytes, &c, from_y, own_x, from_w, count);
  }
}

// Arguments and parameters as those of conv.
template <class T>
Status depthwise_conv(const Call& call) {
  Depthwise<T> c;
  c.propagation = Propagation(call.params[0]);
  if (unsigned(c.propagation) > kWeightGradient) return Status::kBadPlan;
  const Tensor &result = call[0], &bias = call[3], &bytes = call[4];
  const Tensor *y = &result, *x = &call[1], *w = &call[2];
  if (c.propagation == kInputGradient) y = &call[1], x = &result;
  if (c.propagation == kWeightGradient) y = &call[2], w = &result;
  if (!c.read_shapes(*x, *y, *w, call.params) || !c.lay_out(result, bytes)) return Status::kTooLarge;
  if (bias && (c.propagation != kOutput || bias.count != c.channels)) return Status::kBadPlan;
  if (c.propagation == kWeightGradient && !call.adds(0)) clear_bytes(result.data, result.count * sizeof(T));
  clear_bytes(c.planes, size_t(c.share) * sizeof(T));
#if MB_THREADS > 1
  const int64_t room = bytes.count / (c.share * int64_t(sizeof(T))), work = int64_t(x->count) * c.taps;
  const int members = members_of(call.team) < room ? members_of(call.team) : int(room);
  if (members > 1 && work >= kLeastWork / 4) {
    clear_bytes(c.planes, size_t(c.share) * members * sizeof(T));
    const int some = (c.channels + 4 * members - 1) / (4 * members);
    for_parts(call.team, members, (c.channels + some - 1) / some, [&](int32_t part, int32_t member) {
      Depthwise<T> own = c;
      own.planes += member * c.share, own.grid += member * c.share;
      const int first = part * some, count = c.channels - first < some ? c.channels - first : some;
      run_channels<T>(own, x->as<T>(), y->as<T>(), w->as<T>(), bias.as<T>(), first, count);
    });
    return Status::kOk;
  }
#endif
  run_channels<T>(c, x->as<T>(), y->as<T>(), w->as<T>(), bias.as<T>(), 0, c.channels);
  return Status::kOk;
}

MB_INSTANTIATE_DEPTHWISE_CONV

}  // namespace minbuild
