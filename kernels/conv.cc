// Convolution over one to three spatial axes, and its gradients.
//
// A window of one element is a matrix product on the images in place. One filter per channel (depthwise) is summed tap
// by tap. For all others a matrix product packs its operand from padded phase planes (shared/image.h).
#include "shared/apart.h"
#include "shared/elementwise.h"
#include "shared/gemm.h"
#include "shared/image.h"

namespace minbuild {

constexpr int kAxes = MB_CONV_VOLUME ? 3 : 2;
using Grid = Planes<kAxes, bool(MB_CONV_STRIDES)>;

// x: [N,G*C,in...]  y: [N,G*M,out...]  w: [G*M,C,taps...], with leading spatial axes of one element where they lack.
struct Conv {
  int batch, groups, channels, filters, taps;
  int in, out;  // elements of an image
  int window[kAxes], dilation[kAxes], outputs[kAxes];
  bool plain;  // the image itself is its only plane
  bool strided;
  Grid planes;  // of x, for one group

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
      constexpr unsigned kLongest = 1 << 28;
      if (unsigned((stride - 1) | pad | (dilation[a] - 1) | (window[a] - 1)) >= kMost ||
          unsigned((size - 1) | (outputs[a] - 1)) >= kLongest)
        return false;
      int reach = dilation[a] * (window[a] - 1);
      int extent = outputs[a] + reach / stride;
      if (int64_t(extent) * stride >= 1 << 30) return false;
      planes.axes[a] = {size, extent, pad, 0, stride, reach < stride ? reach + 1 : stride};
      in *= size;
      out *= outputs[a];
      taps *= window[a];
      if (stride > 1) strided = true;
      if (stride > 1 || pad != 0 || extent != size) plain = false;
    }
    planes.channels = channels;
    return planes.pack();
  }

  // Where each tap finds the first output: in planes as far apart and with the pitches of `grid`, phases one after the
  // other.
  MB_NOINLINE void find_taps(int* places, const Grid& grid) const {
    for (int number = 0; number < taps; ++number) {
      int tap = number, place = 0, each = grid.size;
      for (int a = kAxes - 1; a >= 0; --a) {
        int position = tap % window[a] * dilation[a], stride = planes.axes[a].stride();
        tap /= window[a];
        place += position % stride * each + position / stride * grid.axes[a].pitch;
        each *= planes.axes[a].phases();
      }
      places[number] = place;
    }
  }

  bool pointwise() const { return MB_CONV_POINTWISE && plain && taps == 1; }
  bool depthwise() const {
    return MB_CONV_DEPTHWISE && channels == 1 && filters == 1 && groups > 1 && !(plain && taps == 1);
  }

  // The outputs as one plane per filter, on the grid of x's planes (zeros between rows), `times` as far apart.
  MB_NOINLINE void output_planes(Grid& grid, int times) const {
    for (int a = 0; a < kAxes; ++a)
      grid.axes[a] = {outputs[a], outputs[a], 0, planes.axes[a].pitch * times, 1, 1};
    grid.channels = filters;
    grid.phases_given = 1;
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
        if (run == 4 * V::size) {
          unroll<4>([&](auto v) MB_LAMBDA { V::load(x + v * V::size).store(to + v * V::size); });
          continue;
        }
        int c = run;
        while (c > 0) {  // from the end; what is left at the start goes with its neighbours once more
          if (run >= V::size) {
            c = c > V::size ? c - V::size : 0;
            V::load(x + c).store(to + c);
          } else {
            --c;
            to[c] = x[c];
          }
        }
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

// What conv() keeps while it runs.
template <class T>
struct Forward {
  // x is the source, y the target, also where conv() runs turned round. Sizes are elements of one group or channel.
  int sources, targets, from_size, to_size, columns, start, depth, deepest, total;
  bool is_turned, is_pointwise, is_depthwise;
  const T *own, *bias;  // of the group
  T *planes, *results, *weights;
  int *offsets, *places;
  Conv c;
  Grid source, target;  // planes of x; what is worked out at once

  // What the plan cannot ask for is false when this is compiled.
  bool turned() const { return MB_CONV_TURNED && is_turned; }
  bool pointwise() const { return MB_CONV_POINTWISE && is_pointwise; }
  bool depthwise() const { return MB_CONV_DEPTHWISE && is_depthwise; }
  bool gaps() const { return MB_CONV_STRIDES && turned() && c.strided; }  // results are every other element of y
  bool spread() const { return depthwise() || gaps(); }                   // results go to y through scratch
  bool direct() const { return c.plain && !turned() && !depthwise(); }    // x needs no planes

  // Turned round, x is the gradient of outputs, with room before and behind for every tap.
  MB_NOINLINE bool turn() {
    exchange(sources, targets);
    exchange(from_size, to_size);
    source = target;
    for (int a = 0; a < kAxes; ++a) {
      auto& axis = source.axes[a];
      axis.pad = c.planes.axes[a].extent - axis.in;
      axis.extent += 2 * axis.pad;
    }
    return source.pack();
  }

  MB_NOINLINE bool prepare(const Call& call) {
    const Tensor &y = call[0], &x = call[1], &bytes = call[4];
    is_turned = call.params[0] != 0;
    if (is_turned != turned()) return false;
    if (!c.read(turned() ? y : x, turned() ? x : y, call[2], call.params + 1)) return false;
    is_pointwise = c.pointwise();
    is_depthwise = c.depthwise();
    sources = c.channels, targets = c.filters;
    from_size = c.in, to_size = c.out;
    source = c.planes;
    c.output_planes(target, 1);
    if (turned() && !turn()) return false;
    columns = to_size;
    deepest = sources * c.taps;
    total = source.size * source.phases();
    if (!pointwise()) {
      planes = results = bytes.as<T>();
      if (!direct()) results += int64_t(sources) * total + kWhole;
      weights = results;
      if (depthwise()) weights += total + kWhole;
      else if (gaps()) weights += int64_t(targets) * c.planes.size;
      T* end = weights;
      if (turned()) end += int64_t(targets) * deepest;
      offsets = reinterpret_cast<int*>(end);
      places = offsets + deepest;
      if (reinterpret_cast<char*>(places + c.taps) - bytes.data > bytes.count) return false;
      if (!apart(y, sizeof(T), bytes, 1)) return false;  // results must not become offsets
      __builtin_memset(bytes.data, 0, bytes.count);
      c.find_taps(places, source);
    }
    if (gaps()) __builtin_memset(y.data, 0, y.count * sizeof(T));  // inputs that no tap looks at
    return true;
  }

  // Makes the target the part of `phase` of y that lies inside the image.
  MB_NOINLINE void take(int phase) {
    target = c.planes;
    columns = 1;
    start = 0;
    for (int a = kAxes - 1; a >= 0; --a) {
      auto& axis = target.axes[a];
      int first = axis.crop(axis.split(&phase));
      if (axis.extent < 0) axis.extent = 0;
      axis.pitch = columns;
      columns *= axis.extent;
      start += (source.axes[a].pad + first) * source.axes[a].pitch;
    }
    target.phases_given = 1;
  }

  // Where every row of the product stands in the planes; turned round, also its weights.
  MB_NOINLINE void gather_rows(int phase) {
    depth = 0;
    for (int tap = 0; tap < c.taps; ++tap) {
      int place = places[tap];
      if (turned()) {
        place -= phase * source.size;
        if (unsigned(place) >= unsigned(source.size)) continue;  // it sees another phase
        place = start - place;
      }
      for (int s = 0; s < sources; ++s, place += total, ++depth) {
        offsets[turned() ? depth : s * c.taps + tap] = place;
        for (int t = 0; turned() && t < targets; ++t)
          weights[t * deepest + depth] = own[(s * targets + t) * c.taps + tap];
      }
    }
  }

  // One group of one image.
  MB_NOINLINE void run(T* from, T* to) {
    if (MB_CONV_BIAS && bias && !depthwise())
      for (int t = 0; t < targets; ++t) for_range<T, FillBody<T>>(to_size, to + t * to_size, bias[t]);
    Gemm<T> product = {targets, columns, sources, own, deepest, 1, from, from_size, 1, to, columns};
    product.accumulate = MB_CONV_BIAS && bias;
    if (pointwise()) {
      if (turned()) product.a_row = 1, product.a_col = targets;
      return gemm(product);
    }
    if (!direct()) {
      move_planes(source, from, planes, false);
      from = planes;
    }
    product.k = depth;
    if (turned()) product.a = weights;
    if (spread()) product.c = results;
    if (depthwise()) {
      for_range<T, TapsBody<T>>(columns, results, static_cast<const T*>(planes), product.a,
                                static_cast<const int*>(offsets), depth, MB_CONV_BIAS && bias ? *bias : T(0));
    } else {
      gemm(product, PlanePacker<T>{from, offsets, source, target});
    }
    if (spread()) move_planes(target, to, results, true);
  }
};

// y = w * x + bias; or, turned round, the gradient of the input: y = w' * x, phase by phase a convolution of the
// gradient x with the weights that see the phase, last tap first.
// scratch: planes of one image of x; results where they are not y itself; weights turned round; offsets; places of taps
template <class T>
Status conv(const Call& call) {
  const Tensor &y = call[0], &x = call[1], &bias = call[3];
  Forward<T> f;
  if (!f.prepare(call)) return Status::kBadPlan;
  f.bias = nullptr;
  if (MB_CONV_BIAS && bias) {
    if (bias.count != y.dims[1] || f.turned()) return Status::kBadPlan;
    f.bias = bias.as<T>();
  }
  for (int phase = 0; phase < (f.gaps() ? f.c.planes.phases() : 1); ++phase) {
    if (f.turned() && !f.pointwise()) f.take(phase);
    if (f.depthwise()) {
      for (int a = 0; a < kAxes; ++a) f.target.axes[a].pitch = f.source.axes[a].pitch;
      f.columns = (span(f.target, f.source) + kWhole - 1) & -kWhole;
    }
    f.target.size = f.columns;
    f.own = call[2].as<T>();
    for (int g = 0; g < f.c.groups; ++g) {
      if (!f.pointwise()) f.gather_rows(phase);
      for (int n = 0; n < f.c.batch; ++n) {
        int at = n * f.c.groups + g;
        f.run(x.as<T>() + at * f.sources * f.from_size, y.as<T>() + at * f.targets * f.to_size);
      }
      f.own += f.targets * f.deepest;
      if (f.bias) f.bias += f.targets;
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

// What conv_grad_w() keeps while it runs.
template <class T>
struct WeightGradient {
  int depth, flat, count;  // elements of one filter; of dy on the grid of x's planes; of a group's weights
  bool is_pointwise, is_wide;
  T *planes, *spread, *sums;
  int* offsets;
  Conv c;
  Grid grid;  // dy with zeros between rows

  bool pointwise() const { return MB_CONV_POINTWISE && is_pointwise; }

  MB_NOINLINE bool prepare(const Call& call) {
    const Tensor& bytes = call[3];
    if (!c.read(call[2], call[1], call[0], call.params)) return false;
    depth = c.channels * c.taps;
    count = c.filters * depth;
    is_pointwise = c.pointwise();
    is_wide = c.filters >= kNarrow && !pointwise();
    c.output_planes(grid, 1);
    flat = span(grid, c.planes);
    if (c.depthwise()) flat = (flat + kWhole - 1) & -kWhole;
    if (pointwise()) return true;
    grid.size = flat;
    if (is_wide) {
      c.output_planes(grid, c.filters);
      grid.size = 1;
    }
    planes = bytes.as<T>();
    spread = planes + int64_t(c.channels) * c.planes.phases() * c.planes.size + kWhole;
    sums = spread + int64_t(c.filters) * flat;
    offsets = reinterpret_cast<int*>(sums + count);
    if (reinterpret_cast<char*>(offsets + c.taps) - bytes.data > bytes.count) return false;
    if (!apart(call[0], sizeof(T), bytes, 1)) return false;  // sums must not become offsets
    __builtin_memset(bytes.data, 0, bytes.count);
    c.find_taps(offsets, c.planes);
    return true;
  }

  // One group of one image.
  MB_NOINLINE void add(T* dy, T* x, T* dw) {
    if (!pointwise()) {
      move_planes(c.planes, x, planes, false);
      move_planes(grid, dy, spread, false);
      if (c.depthwise()) {
        dispatch<TapDots<T>>(flat, dw, static_cast<const T*>(spread), static_cast<const T*>(planes),
                             static_cast<const int*>(offsets), c.taps);
        return;
      }
    }
    for (int tap = 0; tap < c.taps; ++tap) {
      Gemm<T> product = {c.channels, c.filters, flat, x, c.in, 1, dy, 1, flat, dw + tap, c.taps, depth};
      product.accumulate = true;
      if (!pointwise()) {
        product.a = planes + offsets[tap];
        product.a_row = c.planes.phases() * c.planes.size;
        product.b = spread;
        if (is_wide) {
          product.c = sums + tap * c.channels * c.filters;
          product.b_row = product.c_row = c.filters;
          product.b_col = product.c_col = 1;
        }
      }
      gemm(product);
    }
  }

  // dw[m,c,tap] += sums[tap,c,m], which become zero
  MB_NOINLINE void collect(T* dw) {
    T* sum = sums;
    for (int tap = 0; tap < c.taps; ++tap)
      for (int i = tap; i < depth; i += c.taps)
        for (int m = i; m < count; m += depth, *sum++ = 0) dw[m] += *sum;
  }
};

// dw += dy * x' over the whole grid of outputs at once: dy has zeros where the grid has gaps.
// scratch: planes of one image of x; dy on their grid, filters innermost if there are many; sums [taps,C,M]; offsets
template <class T>
Status conv_grad_w(const Call& call) {
  const Tensor &dw = call[0], &dy = call[1], &x = call[2];
  WeightGradient<T> work;
  if (!work.prepare(call)) return Status::kBadPlan;
  if (!call.adds(0)) __builtin_memset(dw.data, 0, dw.count * sizeof(T));
  const Conv& c = work.c;
  T* to = dw.as<T>();
  for (int g = 0; g < c.groups; ++g, to += work.count) {
    for (int n = 0; n < c.batch; ++n) {
      int at = n * c.groups + g;
      work.add(dy.as<T>() + at * c.filters * c.out, x.as<T>() + at * c.channels * c.in, to);
    }
    if (work.is_wide) work.collect(to);
  }
  return Status::kOk;
}

MB_INSTANTIATE_CONV

}  // namespace minbuild
