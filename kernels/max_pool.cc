// Max pooling over one to three spatial axes, and its gradient.
#include "minbuild/kernel.h"

namespace minbuild {

// One spatial axis: output o looks at o * stride + tap * dilation - pad of the input for every tap of the window.
struct PoolAxis {
  int in, out, taps, stride, pad, dilation;

  int offset(int tap) const { return tap * dilation - pad; }
  // The outputs whose `tap` lies inside the input are first(tap) <= o < last(tap).
  int first(int tap) const {
    int missing = MB_MAX_POOL_PADS ? -offset(tap) : 0;
    return missing > 0 ? (missing + stride - 1) / stride : 0;
  }
  int last(int tap) const {
    int room = in - 1 - offset(tap);
    int fits = room < 0 ? 0 : room / stride + 1;
    return fits < out ? fits : out;
  }
};

// x: [P,D,H,W]  y: [P,OD,OH,OW], where P counts planes and leading spatial axes may be missing.
struct Pool {
  int planes;
  PoolAxis axes[3];

  // params: taps, strides, pads at the start, dilations, three each.
  bool read(const Tensor& x, const Tensor& y, const int32_t* params) {
    if (x.rank < 3 || x.rank > 5 || y.rank != x.rank || x.dims[0] != y.dims[0] || x.dims[1] != y.dims[1]) return false;
    planes = x.dims[0] * x.dims[1];
    for (int i = 0; i < 3; ++i) {
      int at = x.rank - 3 + i;
      bool given = at > 1;
      constexpr unsigned kMost = 1 << 12;  // so that no position overflows
      for (int j = 0; j < 4; ++j)
        if (unsigned(params[3 * j + i] - (j != 2)) >= kMost) return false;
      axes[i] = {given ? x.dims[at] : 1, given ? y.dims[at] : 1, params[i], params[3 + i], params[6 + i], params[9 + i]};
      if (axes[i].in > 1 << 30 || (!MB_MAX_POOL_PADS && axes[i].pad != 0)) return false;
    }
    return true;
  }

  int size_in() const { return axes[0].in * axes[1].in * axes[2].in; }
  int size_out() const { return axes[0].out * axes[1].out * axes[2].out; }

  // row(mark, at_out, at_in, count) for every row of outputs and every tap of the window, planes one after the other
  // and taps in order. Output at_out + i looks at input at_in + i * stride, which stays inside whatever the plan says.
  template <class Row>
  MB_INLINE void each_row(Row row) const {
    const PoolAxis &d = axes[0], &h = axes[1], &w = axes[2];
    for (int p = 0; p < planes; ++p) {
      int tap = 0;
      for (int a = 0; a < d.taps; ++a) {
        for (int b = 0; b < h.taps; ++b) {
          for (int c = 0; c < w.taps; ++c, ++tap) {
            int first = w.first(c), count = w.last(c) - first;
            if (count <= 0) continue;
            for (int i = d.first(a); i < d.last(a); ++i) {
              for (int j = h.first(b), end = h.last(b); j < end; ++j) {
                int from = ((p * d.in + i * d.stride + d.offset(a)) * h.in + j * h.stride + h.offset(b)) * w.in;
                int to = ((p * d.out + i) * h.out + j) * w.out;
                row(tap, to + first, from + first * w.stride + w.offset(c), count);
              }
            }
          }
        }
      }
    }
  }
};

// How an index names an element: by its tap in the window (one byte), or by its place in x as ONNX has it.
template <class I>
struct PoolMark {
  static constexpr bool by_tap = sizeof(I) == 1;
  static MB_INLINE I at(int tap, int place) { return static_cast<I>(by_tap ? tap : place); }
};

// y: [N,C,...], the largest of each window; indices: like y, or absent. The first of equals counts.
template <class T, class I>
Status max_pool(const Call& call) {
  const Tensor &y = call[0], &indices = call[1], &x = call[2];
  Pool pool;
  if (!pool.read(x, y, call.params) || (indices && indices.count != y.count)) return Status::kBadPlan;
  T* to = y.as<T>();
  I* marks = MB_MAX_POOL_INDICES ? indices.as<I>() : nullptr;
  const T* from = x.as<T>();
  for (int i = 0; i < y.count; ++i) to[i] = -static_cast<T>(__builtin_inff());
  if (marks) __builtin_memset(marks, 0, y.count * sizeof(I));
  int stride = pool.axes[2].stride;
  pool.each_row([&](int tap, int out, int in, int count) MB_LAMBDA {
    for (int end = out + count; out < end; ++out, in += stride) {
      T value = from[in], best = to[out];
      bool larger = value > best;
      to[out] = larger ? value : best;
      if (marks) marks[out] = larger ? PoolMark<I>::at(tap, in) : marks[out];
    }
  });
  return Status::kOk;
}

// dx[index] += dy, from what max_pool left in indices. An index that names nothing in its window adds nowhere.
template <class T, class I>
Status max_pool_grad(const Call& call) {
  const Tensor &dx = call[0], &dy = call[1], &indices = call[2];
  Pool pool;
  if (!pool.read(dx, dy, call.params) || indices.count != dy.count) return Status::kBadPlan;
  T* to = dx.as<T>();
  const T* from = dy.as<T>();
  const I* marks = indices.as<I>();
  __builtin_memset(to, 0, dx.count * sizeof(T));
  int stride = pool.axes[2].stride;
  pool.each_row([&](int tap, int out, int in, int count) MB_LAMBDA {
    for (int end = out + count; out < end; ++out, in += stride)
      to[in] += marks[out] == PoolMark<I>::at(tap, in) ? from[out] : T(0);
  });
  return Status::kOk;
}

MB_INSTANTIATE_MAX_POOL

}  // namespace minbuild
