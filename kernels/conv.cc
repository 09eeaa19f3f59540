// Convolution over one to three spatial axes, and its gradients.
//
// A window of one element is a matrix product on the images in place. One filter per channel (depthwise) is summed tap
// by tap. For all others a matrix product packs its operand from padded phase planes (shared/image.h).
#include "shared/elementwise.h"
#include "shared/gemm.h"
#include "shared/image.h"

namespace minbuild {

constexpr int kAxes = MB_CONV_VOLUME ? 3 : 2;
using Grid = Planes<kAxes>;

// x: [N,G*C,in...]  y: [N,G*M,out...]  w: [G*M,C,taps...], with leading spatial axes of one element where they lack.
struct Conv {
  int batch, groups, channels, filters, taps;
  int in, out;  // elements of an image
  int window[kAxes], dilation[kAxes], outputs[kAxes];
  bool plain;    // the image itself is its only plane
  bool strided;
  Grid planes;   // of x, for one group

  // params: groups, then strides, pads at the start, and dilations, three each.
  MB_NOINLINE bool read(const Tensor& x, const Tensor& y, const Tensor& w, const int32_t* params) {
    int rank = x.rank;
    groups = MB_CONV_GROUPS ? params[0] : 1;
    if (rank < 3 || rank > kAxes + 2 || y.rank != rank || w.rank != rank || groups < 1) return false;
    batch = x.dims[0];
    channels = w.dims[1];
    filters = MB_CONV_GROUPS ? w.dims[0] / groups : w.dims[0];
    if (y.dims[0] != batch || y.dims[1] != w.dims[0] || filters * groups != w.dims[0] ||
        int64_t(channels) * groups != x.dims[1])
      return false;
    in = out = taps = 1;
    plain = true;
    strided = false;
    for (int a = 0; a < kAxes; ++a) {
      int at = rank - kAxes + a, size = 1;
      outputs[a] = window[a] = 1;
      if (at > 1) size = x.dims[at], outputs[a] = y.dims[at], window[a] = w.dims[at];
      const int32_t* param = params + 4 - kAxes + a;
      int stride = MB_CONV_STRIDES ? param[0] : 1, pad = param[3];
      dilation[a] = MB_CONV_DILATIONS ? param[6] : 1;
      constexpr unsigned kMost = 1 << 12;  // so that no position overflows
      if (unsigned(stride - 1) >= kMost || unsigned(pad) >= kMost || unsigned(dilation[a] - 1) >= kMost ||
          unsigned(window[a] - 1) >= kMost || unsigned(size - 1) >= 1 << 28 || outputs[a] < 1)
        return false;
      int reach = dilation[a] * (window[a] - 1);
      int64_t extent = int64_t(outputs[a]) + reach / stride;
      if (extent * stride >= 1 << 30) return false;
      planes.axes[a] = {size, int(extent), stride, pad, reach < stride ? reach + 1 : stride, 0};
      in *= size;
      out *= outputs[a];
      taps *= window[a];
      if (stride > 1) strided = true;
      if (stride > 1 || pad != 0 || extent != size) plain = false;
    }
    planes.channels = channels;
    return planes.pack();
  }

  // The phase whose plane a tap sees, and where in a plane with these pitches it finds the first output.
  struct Spot {
    int phase, at;
  };
  MB_NOINLINE Spot spot(int tap, const Grid& grid) const {
    Spot found = {0, 0};
    for (int a = kAxes - 1, each = 1; a >= 0; --a) {
      int position = tap % window[a] * dilation[a], stride = MB_CONV_STRIDES ? planes.axes[a].stride : 1;
      tap /= window[a];
      found.phase += position % stride * each;
      found.at += position / stride * grid.axes[a].pitch;
      each *= planes.axes[a].phases;
    }
    return found;
  }

  bool pointwise() const { return MB_CONV_POINTWISE && plain && taps == 1; }
  bool depthwise() const { return MB_CONV_DEPTHWISE && channels == 1 && filters == 1 && groups > 1 && !(plain && taps == 1); }

  // The outputs as one plane per filter, on the grid of x's planes (zeros between rows), `times` as far apart.
  MB_NOINLINE Grid output_planes(int times) const {
    Grid grid;
    for (int a = 0; a < kAxes; ++a) grid.axes[a] = {outputs[a], outputs[a], 1, 0, 1, planes.axes[a].pitch * times};
    grid.channels = filters;
    grid.phases = 1;
    return grid;
  }
};

// Elements from the first to the last of a plane.
MB_NOINLINE inline int span(const Grid& grid, const Grid& pitches) {
  int total = 1;
  for (int a = 0; a < kAxes; ++a) total += (grid.axes[a].extent - 1) * pitches.axes[a].pitch;
  return total;
}

// The columns of a matrix are the elements of a grid, its rows are the taps of all channels.
template <class T>
struct PlanePacker {
  const T* planes;
  const int* offsets;  // of each row
  const Grid &source, &target;

  MB_INLINE void operator()(T* panel, int k, int depth, int j0, int columns, int width) const {
    using V = Width<16>::of<T>;
    const int* offset = offsets + k;
    int length = target.axes[kAxes - 1].extent, lines = target.axes[kAxes - 2].extent;
    int line = j0 / length, at = j0 - line * length;
    while (columns > 0) {
      int run = length - at < columns ? length - at : columns;
      int start = MB_CONV_VOLUME ? line / lines * source.axes[0].pitch + line % lines * source.axes[kAxes - 2].pitch
                                 : line * source.axes[kAxes - 2].pitch;
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
      ++line;
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

constexpr int kWhole = 32;  // depthwise planes are worked on in runs of as many elements, beyond their end

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

// One pass of conv() over one phase: which elements of y it works out, and from where in the planes of x.
struct Pass {
  Grid source, target;
  int columns, start;

  // Turned round, x is the gradient of outputs, with room before and behind for every tap.
  MB_NOINLINE bool turn(const Conv& c) {
    source = c.output_planes(1);
    for (int a = 0; a < kAxes; ++a) {
      PlaneAxis& axis = source.axes[a];
      axis.pad = c.planes.axes[a].extent - axis.in;
      axis.extent += 2 * axis.pad;
    }
    return source.pack();
  }

  // The part of phase `phase` that lies inside the image.
  MB_NOINLINE void take(const Conv& c, int phase) {
    target = c.planes;
    target.phases = columns = 1;
    start = 0;
    for (int a = kAxes - 1; a >= 0; --a) {
      PlaneAxis& axis = target.axes[a];
      int r = axis.phases > 1 ? phase % axis.phases : 0, first = axis.first(r), count = axis.last(r) - first;
      if (axis.phases > 1) phase /= axis.phases;
      axis.extent = count > 0 ? count : 0;
      axis.pad -= r + first * axis.stride;
      axis.phases = 1;
      axis.pitch = columns;
      columns *= axis.extent;
      start += (source.axes[a].pad + first) * source.axes[a].pitch;
    }
  }
};

// y = w * x + bias; or, turned round, the gradient of the input: y = w' * x, phase by phase a convolution of the
// gradient x with the weights that see the phase, last tap first.
// scratch: planes of one image of x; results where they are not y itself; weights turned round; offsets; spots
template <class T>
Status conv(const Call& call) {
  const Tensor &y = call[0], &x = call[1], &w = call[2], &bias = call[3];
  bool turned = MB_CONV_TURNED && call.params[0] != 0, biased = MB_CONV_BIAS && bias;
  Conv c;
  if (!c.read(turned ? y : x, turned ? x : y, w, call.params + 1)) return Status::kBadPlan;
  if (biased && bias.count != y.dims[1]) return Status::kBadPlan;
  bool pointwise = c.pointwise(), depthwise = c.depthwise(), gaps = MB_CONV_STRIDES && turned && c.strided;
  bool spread = depthwise || gaps, direct = c.plain && !turned && !depthwise;
  int sources = c.channels, targets = c.filters, from_size = c.in, to_size = c.out;
  Pass pass;
  pass.source = c.planes;
  if (turned) {
    exchange(sources, targets);
    exchange(from_size, to_size);
    if (!pass.turn(c)) return Status::kBadPlan;
  }
  pass.target = c.output_planes(1);
  pass.columns = to_size;
  int deepest = sources * c.taps, total = pass.source.size * pass.source.phases;
  Scratch scratch(call[4]);
  T *planes = nullptr, *results = nullptr, *weights = nullptr;
  int* offsets = nullptr;
  Conv::Spot* spots = nullptr;
  if (!pointwise) {
    planes = scratch.take<T>(direct ? 0 : int64_t(sources) * total + kWhole);
    results = scratch.take<T>(depthwise ? total + kWhole : gaps ? int64_t(targets) * c.planes.size : 0);
    weights = scratch.take<T>(turned ? int64_t(targets) * deepest : 0);
    offsets = scratch.take<int>(deepest);
    spots = scratch.take<Conv::Spot>(c.taps);
    if (!scratch.ok()) return Status::kBadPlan;
    __builtin_memset(call[4].data, 0, call[4].count);
    for (int tap = 0; tap < c.taps; ++tap) spots[tap] = c.spot(tap, pass.source);
  }
  if (gaps) __builtin_memset(y.data, 0, y.count * sizeof(T));  // inputs that no tap looks at
  for (int phase = 0; phase < (gaps ? c.planes.phases : 1); ++phase) {
    if (turned) pass.take(c, phase);
    if (depthwise) {
      for (int a = 0; a < kAxes; ++a) pass.target.axes[a].pitch = pass.source.axes[a].pitch;
      pass.columns = (span(pass.target, pass.source) + kWhole - 1) & -kWhole;
    }
    pass.target.size = pass.columns;
    for (int g = 0; g < c.groups; ++g) {
      const T* own = w.as<T>() + g * targets * deepest;
      int depth = 0;
      for (int tap = 0; tap < c.taps && !pointwise; ++tap) {
        Conv::Spot spot = spots[tap];
        if (gaps && spot.phase != phase) continue;
        for (int s = 0; s < sources; ++s, ++depth) {
          if (!turned) {
            offsets[s * c.taps + tap] = s * total + spot.phase * pass.source.size + spot.at;
            continue;
          }
          offsets[depth] = s * total + pass.start - spot.at;
          for (int t = 0; t < targets; ++t) weights[t * deepest + depth] = own[(s * targets + t) * c.taps + tap];
        }
      }
      for (int n = 0; n < c.batch; ++n) {
        int number = n * c.groups + g;
        T *from = x.as<T>() + number * sources * from_size, *to = y.as<T>() + number * targets * to_size;
        if (biased && !depthwise)
          for (int t = 0; t < targets; ++t)
            for_range<T, FillBody<T>>(to_size, to + t * to_size, bias.as<T>()[g * targets + t]);
        Gemm<T> product = {targets, pass.columns, depth, turned ? weights : own, deepest, 1, from, from_size, 1,
                           spread ? results : to, pass.columns};
        product.accumulate = biased;
        if (pointwise) {
          product.k = sources;
          product.a = own;
          if (turned) product.a_row = 1, product.a_col = targets;
          gemm(product);
          continue;
        }
        if (!direct) move_planes(pass.source, 0, from, planes, false);
        if (depthwise) {
          for_range<T, TapsBody<T>>(pass.columns, results, static_cast<const T*>(planes), product.a,
                                    static_cast<const int*>(offsets), depth, biased ? bias.as<T>()[g] : T(0));
        } else {
          gemm(product, PlanePacker<T>{direct ? from : planes, offsets, pass.source, pass.target});
        }
        if (spread) move_planes(pass.target, 0, to, results, true);
      }
    }
  }
  return Status::kOk;
}

// dw[tap] += sum over i of dy[i] * x[offsets[tap] + i], for a multiple of kWhole elements
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

constexpr int kNarrow = 8;  // as many filters or more fill vectors

// dw += dy * x' over the whole grid of outputs at once: dy has zeros where the grid has gaps.
// scratch: planes of one image of x; dy on their grid, filters innermost if there are many, and then the sums [taps,C,M];
// offsets
template <class T>
Status conv_grad_w(const Call& call) {
  const Tensor &dw = call[0], &dy = call[1], &x = call[2];
  Conv c;
  if (!c.read(x, dy, dw, call.params)) return Status::kBadPlan;
  bool pointwise = c.pointwise(), depthwise = c.depthwise();
  bool wide = !pointwise && c.filters >= kNarrow;
  int depth = c.channels * c.taps, count = c.filters * depth;
  Grid grid = c.output_planes(wide ? c.filters : 1);
  int flat = span(c.output_planes(1), c.planes);
  if (depthwise) flat = (flat + kWhole - 1) & -kWhole;
  grid.size = wide ? 1 : flat;
  Scratch scratch(call[3]);
  T *planes = nullptr, *spread = nullptr, *sums = nullptr;
  int* offsets = nullptr;
  if (!pointwise) {
    planes = scratch.take<T>(int64_t(c.channels) * c.planes.phases * c.planes.size + kWhole);
    spread = scratch.take<T>(int64_t(c.filters) * flat);
    sums = scratch.take<T>(wide ? count : 0);
    offsets = scratch.take<int>(c.taps);
    if (!scratch.ok()) return Status::kBadPlan;
    __builtin_memset(call[3].data, 0, call[3].count);
    for (int tap = 0; tap < c.taps; ++tap) {
      Conv::Spot spot = c.spot(tap, c.planes);
      offsets[tap] = spot.phase * c.planes.size + spot.at;
    }
  }
  if (!call.adds(0)) __builtin_memset(dw.data, 0, dw.count * sizeof(T));
  for (int g = 0; g < c.groups; ++g) {
    T* to = dw.as<T>() + g * count;
    for (int n = 0; n < c.batch; ++n) {
      int number = n * c.groups + g;
      T *from = dy.as<T>() + number * c.filters * c.out, *image = x.as<T>() + number * c.channels * c.in;
      Gemm<T> product = {c.channels, c.filters, flat, image, c.in, 1, from, 1, flat, to, c.taps, depth};
      product.accumulate = true;
      if (!pointwise) {
        move_planes(c.planes, 0, image, planes, false);
        move_planes(grid, 0, from, spread, false);
        product.a_row = c.planes.phases * c.planes.size;
        product.b = spread;
        if (wide) {
          product.b_row = product.c_row = c.filters;
          product.b_col = product.c_col = 1;
        }
      }
      if (depthwise) {
        dispatch<TapDots<T>>(flat, to, static_cast<const T*>(spread), static_cast<const T*>(planes),
                             static_cast<const int*>(offsets), c.taps);
        continue;
      }
      for (int tap = 0; tap < c.taps; ++tap) {
        if (!pointwise) {
          product.a = planes + offsets[tap];
          product.c = wide ? sums + tap * c.channels * c.filters : to + tap;
        }
        gemm(product);
      }
    }
    T* sum = sums;
    for (int tap = 0; tap < c.taps && wide; ++tap)
      for (int i = 0; i < c.channels; ++i)
        for (int m = 0; m < c.filters; ++m, *sum++ = 0) to[m * depth + i * c.taps + tap] += *sum;
  }
  return Status::kOk;
}

MB_INSTANTIATE_CONV

}  // namespace minbuild
