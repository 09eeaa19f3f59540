// Convolution over one to three spatial axes, and its gradients.
//
// Three families, chosen when the plan is made: pointwise (a matrix product on the images in place), depthwise (one
// filter per channel, direct), and all others, where a matrix product packs its operand from padded phase planes.
#include "shared/elementwise.h"
#include "shared/gemm.h"
#include "shared/image.h"

namespace minbuild {

constexpr int kAxes = MB_CONV_VOLUME ? 3 : 2;
using Grid = Planes<kAxes>;

// x: [N,G*C,in...]  y: [N,G*M,out...]  w: [G*M,C,taps...], with leading spatial axes of one element where they lack.
struct Conv {
  int batch, groups, channels, filters, taps;
  int in, out;      // elements of an image
  int flat, total;  // elements of planes up to the last output; of all phases
  int size[kAxes], outputs[kAxes], window[kAxes], dilation[kAxes];
  bool plain;  // the image itself is its only plane
  bool strided;
  Grid planes;

  // params: groups, then strides, pads at the start, and dilations, three each.
  MB_NOINLINE bool read(const Tensor& x, const Tensor& y, const Tensor& w, const int32_t* params) {
    groups = MB_CONV_GROUPS ? params[0] : 1;
    int rank = x.rank;
    if (rank < 3 || rank > kAxes + 2 || y.rank != rank || w.rank != rank || groups < 1) return false;
    batch = x.dims[0];
    channels = w.dims[1];
    filters = w.dims[0] / groups;
    if (y.dims[0] != batch || y.dims[1] != w.dims[0] || filters * groups != w.dims[0] ||
        int64_t(channels) * groups != x.dims[1])
      return false;
    in = out = taps = 1;
    plain = true;
    strided = false;
    int64_t phases = 1;
    for (int a = 0; a < kAxes; ++a) {
      int at = rank - kAxes + a;
      bool given = at > 1;
      const int32_t* param = params + 4 - kAxes + a;
      int stride = MB_CONV_STRIDES ? param[0] : 1, pad = param[3];
      dilation[a] = MB_CONV_DILATIONS ? param[6] : 1;
      constexpr unsigned kMost = 1 << 12;  // so that no position overflows
      size[a] = given ? x.dims[at] : 1;
      outputs[a] = given ? y.dims[at] : 1;
      window[a] = given ? w.dims[at] : 1;
      if (unsigned(stride - 1) >= kMost || unsigned(pad) >= kMost || unsigned(dilation[a] - 1) >= kMost ||
          unsigned(window[a] - 1) >= kMost || unsigned(size[a] - 1) >= 1 << 28 || outputs[a] < 1)
        return false;
      int reach = dilation[a] * (window[a] - 1);
      int64_t extent = int64_t(outputs[a]) + reach / stride;
      if (extent * stride >= 1 << 30) return false;
      planes.axes[a] = {size[a], int(extent), stride, pad, reach < stride ? reach + 1 : stride, 0};
      in *= size[a];
      out *= outputs[a];
      taps *= window[a];
      phases *= planes.axes[a].phases;
      if (stride > 1) strided = true;
      if (stride > 1 || pad != 0 || extent != size[a]) plain = false;
    }
    if (!planes.pack() || phases * planes.size >= 1 << 28) return false;
    total = static_cast<int>(phases) * planes.size;
    flat = 1;
    for (int a = 0; a < kAxes; ++a) flat += (outputs[a] - 1) * planes.axes[a].pitch;
    return true;
  }

  // The phase whose plane a tap sees, and where in a plane with these pitches it finds the first output.
  struct Spot {
    int phase, at;
  };
  MB_NOINLINE Spot spot(int tap, const Grid& grid) const {
    Spot found = {0, 0};
    for (int a = kAxes - 1, each = 1; a >= 0; --a) {
      int position = tap % window[a] * dilation[a], stride = planes.axes[a].stride;
      tap /= window[a];
      found.phase += MB_CONV_STRIDES ? position % stride * each : 0;
      found.at += (MB_CONV_STRIDES ? position / stride : position) * grid.axes[a].pitch;
      each *= planes.axes[a].phases;
    }
    return found;
  }
  int offset(int tap) const {
    Spot s = spot(tap, planes);
    return s.phase * planes.size + s.at;
  }
  int phases() const { return total / planes.size; }

  // Planes of the outputs' gradient. Behind: with room for every tap, so that the gradient of inputs is a convolution
  // with it; `cut` drops what belongs to padding. Else on the grid of the input's planes, zeros between rows.
  Grid gradient_planes(bool behind, bool cut) const {
    Grid grid;
    for (int a = 0; a < kAxes; ++a) {
      const PlaneAxis& x = planes.axes[a];
      int extra = x.extent - outputs[a];
      grid.axes[a] = {outputs[a], outputs[a], 1, 0, 1, x.pitch};
      if (behind) grid.axes[a] = {outputs[a], (cut ? x.in : x.extent) + extra, 1, cut ? extra - x.pad : extra, 1, 0};
    }
    return grid;
  }

  template <class T>
  MB_INLINE void load(const T* image, T* to, int count) const {
    for (int c = 0; c < count; ++c, image += in)
      for (int phase = 0; phase < phases(); ++phase, to += planes.size)
        move_plane(planes, phase, const_cast<T*>(image), to, false);
  }
};

// The columns of a matrix are positions on a grid of outputs, its rows are the taps of all channels.
template <class T>
struct PlanePacker {
  const T* planes;
  const int* offsets;  // of each row
  const Grid& grid;
  const int* outputs;

  MB_INLINE void operator()(T* panel, int k, int depth, int j0, int columns, int width) const {
    using V = Width<16>::of<T>;
    const int* offset = offsets + k;
    int length = outputs[kAxes - 1];
    int row = j0 / length, at = j0 - row * length;
    while (columns > 0) {
      int run = length - at < columns ? length - at : columns;
      int start = row * grid.axes[kAxes - 2].pitch;
      if (MB_CONV_VOLUME) {
        int slice = row / outputs[kAxes - 2];
        start += slice * (grid.axes[0].pitch - outputs[kAxes - 2] * grid.axes[kAxes - 2].pitch);
      }
      const T* from = planes + start + at;
      T* to = panel;
      for (int i = 0; i < depth; ++i, to += width) {
        const T* x = from + offset[i];
        int c = 0;
        for (; c <= run - V::size; c += V::size) V::load(x + c).store(to + c);
        for (; c < run; ++c) to[c] = x[c];
      }
      panel += run;
      columns -= run;
      at = 0;
      ++row;
    }
  }
};

template <class T>
struct FillBody {
  template <class V>
  static MB_INLINE void step(int i, T* y, T value) {
    V(value).store(y + i);
  }
};

// y: [N,M,out] = bias, or nothing without one. False if it does not fit.
template <class T>
MB_INLINE bool fill_bias(const Tensor& y, const Tensor& bias, int out) {
  if (!MB_CONV_BIAS || !bias) return true;
  if (bias.count != y.dims[1]) return false;
  T* to = y.as<T>();
  for (int n = 0; n < y.dims[0]; ++n)
    for (int m = 0; m < bias.count; ++m, to += out) for_range<T, FillBody<T>>(out, to, bias.as<T>()[m]);
  return true;
}

// y = w * x + bias; scratch: one image's planes, offsets
template <class T>
Status conv(const Call& call) {
  const Tensor &y = call[0], &x = call[1], &w = call[2], &bias = call[3];
  Conv c;
  if (!c.read(x, y, w, call.params)) return Status::kBadPlan;
  int depth = c.channels * c.taps;
  Scratch scratch(call[4]);
  T* planes = scratch.take<T>(c.plain ? 0 : int64_t(c.channels) * c.total);
  int* offsets = scratch.take<int>(depth);
  if (!scratch.ok() || !fill_bias<T>(y, bias, c.out)) return Status::kBadPlan;
  __builtin_memset(call[4].data, 0, call[4].count);
  for (int k = 0; k < depth; ++k) offsets[k] = k / c.taps * c.total + c.offset(k % c.taps);
  const T* from = x.as<T>();
  T* to = y.as<T>();
  for (int n = 0; n < c.batch; ++n) {
    for (int g = 0; g < c.groups; ++g, from += c.channels * c.in, to += c.filters * c.out) {
      if (!c.plain) c.load(from, planes, c.channels);
      Gemm<T> product = {c.filters, c.out, depth, w.as<T>() + g * c.filters * depth, depth, 1, nullptr, 0, 0, to, c.out};
      product.accumulate = MB_CONV_BIAS && bias;
      gemm(product, PlanePacker<T>{c.plain ? from : planes, offsets, c.planes, c.outputs});
    }
  }
  return Status::kOk;
}

// dx: with all weights of a phase of dx turned round, a convolution of dy.
// scratch: planes of one image of dy, one phase of dx where strides are larger than 1, weights, offsets
template <class T>
Status conv_grad_x(const Call& call) {
  const Tensor &dx = call[0], &dy = call[1], &w = call[2];
  Conv c;
  if (!c.read(dx, dy, w, call.params)) return Status::kBadPlan;
  bool strided = MB_CONV_STRIDES && c.strided;
  Grid grid = c.gradient_planes(true, !strided);
  if (!grid.pack()) return Status::kBadPlan;
  int deepest = c.filters * c.taps, target = strided ? c.planes.size : c.in;
  Scratch scratch(call[3]);
  T* planes = scratch.take<T>(int64_t(c.filters) * grid.size);
  T* results = scratch.take<T>(strided ? int64_t(c.channels) * target : 0);
  T* turned = scratch.take<T>(int64_t(c.channels) * deepest);
  int* offsets = scratch.take<int>(deepest);
  if (!scratch.ok()) return Status::kBadPlan;
  __builtin_memset(planes, 0, size_t(c.filters) * grid.size * sizeof(T));
  if (strided) __builtin_memset(dx.data, 0, dx.count * sizeof(T));  // inputs that no tap looks at
  int last = 0, extents[kAxes];
  for (int a = 0; a < kAxes; ++a) {
    last += (c.planes.axes[a].extent - c.outputs[a]) * grid.axes[a].pitch;
    extents[a] = strided ? c.planes.axes[a].extent : c.size[a];
  }
  for (int phase = 0; phase < (strided ? c.phases() : 1); ++phase) {
    for (int g = 0; g < c.groups; ++g) {
      int depth = 0;
      for (int tap = 0; tap < c.taps; ++tap) {
        Conv::Spot spot = c.spot(tap, grid);
        if (strided && spot.phase != phase) continue;
        const T* from = w.as<T>() + g * c.channels * deepest + tap;
        for (int m = 0; m < c.filters; ++m, ++depth) {
          offsets[depth] = m * grid.size + last - spot.at;
          for (int i = 0; i < c.channels; ++i, from += c.taps) turned[i * deepest + depth] = *from;
        }
      }
      for (int n = 0; n < c.batch; ++n) {
        int image = n * c.groups + g;
        T* from = dy.as<T>() + image * c.filters * c.out;
        T* to = dx.as<T>() + image * c.channels * c.in;
        for (int m = 0; m < c.filters; ++m) move_plane(grid, 0, from + m * c.out, planes + m * grid.size, false);
        Gemm<T> product = {c.channels, target, depth, turned, deepest, 1, nullptr, 0, 0, strided ? results : to, target};
        gemm(product, PlanePacker<T>{planes, offsets, grid, extents});
        for (int i = 0; strided && i < c.channels; ++i)
          move_plane(c.planes, phase, to + i * c.in, results + i * target, true);
      }
    }
  }
  return Status::kOk;
}

// dw += dy * x' over the whole grid of outputs at once: dy has zeros where the grid has gaps.
// scratch: planes of one image of x, unless it is its own; of dy, unless the grid has no gaps
template <class T>
Status conv_grad_w(const Call& call) {
  const Tensor &dw = call[0], &dy = call[1], &x = call[2];
  Conv c;
  if (!c.read(x, dy, dw, call.params)) return Status::kBadPlan;
  int depth = c.channels * c.taps;
  bool gaps = c.flat != c.out;
  Grid grid = c.gradient_planes(false, false);
  Scratch scratch(call[3]);
  T* planes = scratch.take<T>(c.plain ? 0 : int64_t(c.channels) * c.total);
  T* spread = scratch.take<T>(gaps ? int64_t(c.filters) * c.flat : 0);
  if (!scratch.ok()) return Status::kBadPlan;
  __builtin_memset(call[3].data, 0, call[3].count);
  if (!call.adds(0)) __builtin_memset(dw.data, 0, dw.count * sizeof(T));
  T *from = dy.as<T>(), *image = x.as<T>();
  for (int n = 0; n < c.batch; ++n) {
    T* to = dw.as<T>();
    for (int g = 0; g < c.groups; ++g, from += c.filters * c.out, image += c.channels * c.in, to += c.filters * depth) {
      if (!c.plain) c.load(image, planes, c.channels);
      for (int m = 0; gaps && m < c.filters; ++m) move_plane(grid, 0, from + m * c.out, spread + m * c.flat, false);
      for (int tap = 0; tap < c.taps; ++tap) {
        const T* seen = (c.plain ? image : planes) + c.offset(tap);
        Gemm<T> product = {c.filters, c.channels, c.flat, gaps ? spread : from, c.flat, 1,
                           seen, 1, c.total, to + tap, depth, c.taps};
        product.accumulate = true;
        gemm(product);
      }
    }
  }
  return Status::kOk;
}

// ------------------------------------------------------------------------------------------------ pointwise

// x: [N,G*C,S]  y: [N,G*M,S]  w: [G*M,C,1...]. False if they do not fit; S is left in `length`.
inline bool pointwise_shapes(const Tensor& x, const Tensor& y, const Tensor& w, int groups, int* length) {
  if (x.rank < 2 || y.rank != x.rank || w.rank != x.rank || groups < 1 || w.dims[0] % groups != 0) return false;
  *length = 1;
  for (int a = 2; a < x.rank; ++a) {
    if (x.dims[a] != y.dims[a] || w.dims[a] != 1) return false;
    *length *= x.dims[a];
  }
  return x.dims[0] == y.dims[0] && y.dims[1] == w.dims[0] && int64_t(w.dims[1]) * groups == x.dims[1];
}

// y = w * x + bias, or, transposed, y = w' * x without: the gradient of inputs.
template <class T>
Status pointwise(const Call& call) {
  const Tensor &y = call[0], &x = call[1], &w = call[2], &bias = call[3];
  int groups = MB_CONV_GROUPS ? call.params[0] : 1, length;
  bool turned = call.params[1] != 0;
  if (!pointwise_shapes(turned ? y : x, turned ? x : y, w, groups, &length) || !fill_bias<T>(y, bias, length))
    return Status::kBadPlan;
  int channels = w.dims[1], m = w.dims[0] / groups, k = channels;
  intptr_t row = k, column = 1;
  if (turned) {
    exchange(m, k);
    exchange(row, column);
  }
  const T* from = x.as<T>();
  T* to = y.as<T>();
  for (int n = 0; n < y.dims[0]; ++n) {
    const T* weights = w.as<T>();
    for (int g = 0; g < groups; ++g, from += k * length, to += m * length, weights += m * k) {
      Gemm<T> product = {m, length, k, weights, row, column, from, length, 1, to, length};
      product.accumulate = MB_CONV_BIAS && bias;
      gemm(product);
    }
  }
  return Status::kOk;
}

// dw += dy * x'
template <class T>
Status pointwise_grad_w(const Call& call) {
  const Tensor &dw = call[0], &dy = call[1], &x = call[2];
  int groups = MB_CONV_GROUPS ? call.params[0] : 1, length;
  if (!pointwise_shapes(x, dy, dw, groups, &length)) return Status::kBadPlan;
  int filters = dw.dims[0] / groups, channels = dw.dims[1];
  if (!call.adds(0)) __builtin_memset(dw.data, 0, dw.count * sizeof(T));
  const T *from = dy.as<T>(), *image = x.as<T>();
  for (int n = 0; n < x.dims[0]; ++n) {
    T* to = dw.as<T>();
    for (int g = 0; g < groups; ++g, from += filters * length, image += channels * length, to += filters * channels) {
      Gemm<T> product = {filters, channels, length, from, length, 1, image, 1, length, to, channels};
      product.accumulate = true;
      gemm(product);
    }
  }
  return Status::kOk;
}

// ------------------------------------------------------------------------------------------------ depthwise

constexpr int kWhole = 32;  // planes are worked on in runs of as many elements, beyond their end

// out[i] = bias + sum over taps of w[tap] * in[offsets[tap] + i]
template <class T>
struct TapsBody {
  template <class V>
  static MB_INLINE void step(int i, T* out, const T* in, const T* w, const int* offsets, int taps, T bias) {
    V x = bias;
    const T* at = in + i;
    for (int t = 0; t < taps; ++t) x = muladd(V(w[t]), V::load(at + offsets[t]), x);
    x.store(out + i);
  }
};
template <class T>
MB_NOINLINE void sum_taps(int count, T* out, const T* in, const T* w, const int* offsets, int taps, T bias) {
  for_range<T, TapsBody<T>>(count, out, in, w, offsets, taps, bias);
}

// dw[tap] += sum over i of dy[i] * x[offsets[tap] + i], for a multiple of kWhole / 2 elements
template <class T>
struct TapDots {
  template <class W>
  static MB_INLINE void run(int count, T* dw, const T* dy, const T* x, const int* offsets, int taps) {
    using V = typename W::template of<T>;
    for (int t = 0; t < taps; ++t) {
      const T* at = x + offsets[t];
      V sums[2] = {T(0), T(0)};
      for (int i = 0; i < count; i += 2 * V::size)
        unroll<2>([&](auto s) MB_LAMBDA {
          sums[s] = muladd(V::load(dy + i + s * V::size), V::load(at + i + s * V::size), sums[s]);
        });
      dw[t] += sum(sums[0] + sums[1]);
    }
  }
};

// What the depthwise kernels share: planes of one channel, a second run of elements, and offsets.
template <class T>
struct Depthwise {
  Conv c;
  Grid grid;  // of y or dy
  T *planes, *others, *weights;
  int *offsets, *phase_of, *found;
  int count;  // elements of `others`, rounded up

  MB_INLINE bool read(const Tensor& x, const Tensor& y, const Tensor& w, const Tensor& bytes, const int32_t* params,
                      bool behind) {
    if (!c.read(x, y, w, params) || c.channels != 1 || c.filters != 1) return false;
    grid = c.gradient_planes(behind, false);
    int length = c.flat, held = c.total;
    if (behind) {
      if (!grid.pack()) return false;
      held = grid.size;
      length = 1;
      for (int a = 0; a < kAxes; ++a) {
        c.planes.axes[a].pitch = grid.axes[a].pitch;
        length += (c.planes.axes[a].extent - 1) * grid.axes[a].pitch;
      }
    }
    count = (length + kWhole - 1) & -kWhole;
    Scratch scratch(bytes);
    planes = scratch.take<T>(held + kWhole);
    others = scratch.take<T>(count);
    weights = scratch.take<T>(c.taps);
    offsets = scratch.take<int>(c.taps);
    phase_of = scratch.take<int>(c.taps);
    found = scratch.take<int>(c.taps);
    if (!scratch.ok()) return false;
    __builtin_memset(bytes.data, 0, bytes.count);
    for (int t = 0; t < c.taps; ++t) offsets[t] = c.offset(t);
    return true;
  }
};

// y = w * x + bias, channel by channel
template <class T>
Status depthwise(const Call& call) {
  const Tensor &y = call[0], &x = call[1], &w = call[2], &bias = call[3];
  Depthwise<T> d;
  if (!d.read(x, y, w, call[4], call.params, false)) return Status::kBadPlan;
  const Conv& c = d.c;
  bool biased = MB_CONV_BIAS && bias;
  if (biased && bias.count != c.groups) return Status::kBadPlan;
  T *from = x.as<T>(), *to = y.as<T>();
  for (int n = 0; n < c.batch; ++n) {
    for (int g = 0; g < c.groups; ++g, from += c.in, to += c.out) {
      c.load(from, d.planes, 1);
      sum_taps(d.count, d.others, d.planes, w.as<T>() + g * c.taps, d.offsets, c.taps, biased ? bias.as<T>()[g] : T(0));
      move_plane(d.grid, 0, to, d.others, true);
    }
  }
  return Status::kOk;
}

// dx: phase by phase the sum over the taps that see it
template <class T>
Status depthwise_grad_x(const Call& call) {
  const Tensor &dx = call[0], &dy = call[1], &w = call[2];
  Depthwise<T> d;
  if (!d.read(dx, dy, w, call[3], call.params, true)) return Status::kBadPlan;
  const Conv& c = d.c;
  if (MB_CONV_STRIDES && c.strided) __builtin_memset(dx.data, 0, dx.count * sizeof(T));
  int last = 0;
  for (int a = 0; a < kAxes; ++a) last += (c.planes.axes[a].extent - c.outputs[a]) * d.grid.axes[a].pitch;
  T *from = dy.as<T>(), *to = dx.as<T>();
  for (int t = 0; t < c.taps; ++t) {
    Conv::Spot spot = c.spot(t, d.grid);
    d.phase_of[t] = spot.phase;
    d.found[t] = last - spot.at;
  }
  for (int n = 0; n < c.batch; ++n) {
    for (int g = 0; g < c.groups; ++g, from += c.out, to += c.in) {
      move_plane(d.grid, 0, from, d.planes, false);
      for (int phase = 0; phase < c.phases(); ++phase) {
        int taps = 0;
        for (int t = 0; t < c.taps; ++t) {
          if (d.phase_of[t] != phase) continue;
          d.offsets[taps] = d.found[t];
          d.weights[taps++] = w.as<T>()[g * c.taps + t];
        }
        sum_taps(d.count, d.others, d.planes, d.weights, d.offsets, taps, T(0));
        move_plane(c.planes, phase, to, d.others, true);
      }
    }
  }
  return Status::kOk;
}

// dw += the products of dy with what every tap sees
template <class T>
Status depthwise_grad_w(const Call& call) {
  const Tensor &dw = call[0], &dy = call[1], &x = call[2];
  Depthwise<T> d;
  if (!d.read(x, dy, dw, call[3], call.params, false)) return Status::kBadPlan;
  const Conv& c = d.c;
  if (!call.adds(0)) __builtin_memset(dw.data, 0, dw.count * sizeof(T));
  T *from = dy.as<T>(), *image = x.as<T>();
  for (int n = 0; n < c.batch; ++n) {
    for (int g = 0; g < c.groups; ++g, from += c.out, image += c.in) {
      c.load(image, d.planes, 1);
      move_plane(d.grid, 0, from, d.others, false);
      dispatch<TapDots<T>>(d.count, dw.as<T>() + g * c.taps, static_cast<const T*>(d.others),
                           static_cast<const T*>(d.planes), static_cast<const int*>(d.offsets), c.taps);
    }
  }
  return Status::kOk;
}

MB_INSTANTIATE_CONV

}  // namespace minbuild
