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
  PoolAxis axes[3] = {{1, 1, 1, 1, 0, 1}, {1, 1, 1, 1, 0, 1}, {1, 1, 1, 1, 0, 1}};

  // params: taps, strides, pads at the start, dilations, three each.
  bool read(const Tensor& x, const Tensor& y, const int32_t* params) {
    if (x.rank < 3 || x.rank > 4 + MB_MAX_POOL_VOLUMES || y.rank != x.rank) return false;
    if (x.dims[0] != y.dims[0] || x.dims[1] != y.dims[1]) return false;
    planes = x.dims[0] * x.dims[1];
    for (int i = 5 - x.rank; i < 3; ++i) {
      const int32_t* given = params + i;
      for (int j = 0; j < 4; ++j)
        if (unsigned(given[3 * j] - (j != 2)) >= 1 << 12) return false;  // so that no position overflows
      int at = x.rank - 3 + i;
      axes[i] = {x.dims[at], y.dims[at], given[0], given[3], given[6], given[9]};
      if (x.dims[at] > 1 << 30 || (!MB_MAX_POOL_PADS && given[6] != 0)) return false;
    }
    return true;
  }
};

// How an index names an element: by its tap in the window (one byte), or by its place in x as ONNX has it.
template <class I>
struct PoolMark {
  static constexpr bool by_tap = sizeof(I) == 1;
  static MB_INLINE I at(int tap, int place) { return static_cast<I>(by_tap ? tap : place); }
};

// All bits where `yes`, else none. Opaque, or compilers make a branch of it: which element of a window is the largest
// cannot be predicted.
template <class Bits>
MB_INLINE Bits mask_if(bool yes) {
  int mask = -int(yes);
  MB_OPAQUE(mask);
  return static_cast<Bits>(mask);
}

// Every window of every plane, tap by tap and within a tap row by row, so that each row of outputs is one plain loop:
// output i looks at input i * stride, which stays inside whatever the plan says. Forward: y becomes the largest of each
// window and marks says which it was, the first of equals. Backward: x collects y where marks says so.
template <class T, class I>
MB_NOINLINE void pool_windows(const Pool& pool, T* x, T* y, I* marks, bool backward) {
  const PoolAxis &h = pool.axes[1], &w = pool.axes[2];
  constexpr PoolAxis kFlat = {1, 1, 1, 1, 0, 1};
  const PoolAxis d = MB_MAX_POOL_VOLUMES ? pool.axes[0] : kFlat;
  for (int p = 0; p < pool.planes; ++p) {
    int tap = 0;
    for (int a = 0; a < d.taps; ++a) {
      for (int b = 0; b < h.taps; ++b) {
        for (int c = 0; c < w.taps; ++c, ++tap) {
          int first = w.first(c), end = w.last(c);
          for (int i = d.first(a); i < d.last(a); ++i) {
            for (int j = h.first(b), last = h.last(b); j < last; ++j) {
              int in = ((p * d.in + i * d.stride + d.offset(a)) * h.in + j * h.stride + h.offset(b)) * w.in;
              int out = ((p * d.out + i) * h.out + j) * w.out, stop = out + end;
              in += first * w.stride + w.offset(c);
              for (out += first; out < stop; ++out, in += w.stride) {
                I mark = PoolMark<I>::at(tap, in);
                if (backward) {
                  using Bits = typename LaneBits<T>::type;
                  Vec<Bits, 1> chosen = mask_if<Bits>(marks[out] == mark);
                  x[in] += bits_as<T>(bits_as<Bits>(Vec<T, 1>(y[out])) & chosen).v[0];
                  continue;
                }
                T value = x[in], best = y[out];
                y[out] = value > best ? value : best;
                if (marks) marks[out] ^= (marks[out] ^ mark) & mask_if<I>(value > best);
              }
            }
          }
        }
      }
    }
  }
}

// x: [N,C,...]  y: [N,C,...]  indices: like y, or absent
template <class T, class I>
Status max_pool(const Call& call) {
  const Tensor &y = call[0], &indices = call[1], &x = call[2];
  Pool pool;
  if (!pool.read(x, y, call.params) || (indices && indices.count != y.count)) return Status::kBadPlan;
  T* to = y.as<T>();
  for (int i = 0; i < y.count; ++i) to[i] = -static_cast<T>(__builtin_inff());
  if (indices) __builtin_memset(indices.data, 0, indices.count * sizeof(I));
  pool_windows<T, I>(pool, x.as<T>(), to, indices.as<I>(), false);
  return Status::kOk;
}

// dx[index] += dy, from what max_pool left in indices. An index that names nothing in its window adds nowhere.
template <class T, class I>
Status max_pool_grad(const Call& call) {
  const Tensor &dx = call[0], &dy = call[1], &indices = call[2];
  Pool pool;
  if (!pool.read(dx, dy, call.params) || indices.count != dy.count) return Status::kBadPlan;
  __builtin_memset(dx.data, 0, dx.count * sizeof(T));
  pool_windows<T, I>(pool, dx.as<T>(), dy.as<T>(), indices.as<I>(), true);
  return Status::kOk;
}

MB_INSTANTIATE_MAX_POOL

}  // namespace minbuild
