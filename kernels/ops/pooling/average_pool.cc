// Averages and sums over windows with one to three spatial axes, and their gradients.
#include "lib/loops/blas1.h"

namespace minbuild {

// One spatial axis: output o looks at o * stride + tap * dilation - pad of the input for every tap of the window.
struct AverageAxis {
  int taps, stride, pad, dilation;
};
constexpr AverageAxis kOneTap = {1, 1, 0, 1};

// The window of an output along one axis: taps first..last-1, the first of them at `at`; `counted` of them divide.
struct Sight {
  int at, seen, counted;
};

// The number of `taps` numbers start, start + dilation, ... are smaller than `end`.
MB_INLINE int taps_below(int end, int start, const AverageAxis& axis) {
  if (end <= start) return 0;
  int count = (end - start - 1) / axis.dilation + 1;
  return count < axis.taps ? count : axis.taps;
}

// `after` is the padding behind the input if padding counts, else negative.
MB_NOINLINE inline Sight look(const AverageAxis& axis, int o, int size, int after) {
  int start = o * axis.stride - axis.pad, outside = taps_below(0, start, axis);
  int seen = taps_below(size, start, axis) - outside;
  return {start + outside * axis.dilation, seen, after < 0 ? seen : taps_below(size + after, start, axis)};
}

// The axes of one call.
struct AverageWindow {
  AverageAxis d, h, w;
  int32_t in[4], out[4], after[3];  // [P,D,H,W], [P,OD,OH,OW], padding behind the axes or -1
  bool divides;

  // params: the axes D, H and W; padding behind them or -1; whether to divide.
  bool read(const Tensor& from, const Tensor& to, const int32_t* params) {
    const AverageAxis* axes = reinterpret_cast<const AverageAxis*>(params);
    d = MB_AVERAGE_POOL_VOLUMES ? axes[0] : kOneTap, h = axes[1], w = axes[2];
    if (from.rank != 4 || to.rank != 4 || from.dims[0] != to.dims[0]) return false;
    if (!MB_AVERAGE_POOL_VOLUMES && from.dims[1] != to.dims[1]) return false;
    for (int a = 0; a < 3; ++a) {
      constexpr int kMost = 1 << 12, kLongest = 1 << 30;  // so that no position overflows
      const AverageAxis& each = axes[a];
      after[a] = params[12 + a];
      if (((each.taps - 1u) | each.pad | (each.dilation - 1u) | (each.stride - 1u)) >= kMost || after[a] >= kMost ||
          int64_t(each.stride) * to.dims[a + 1] >= kLongest || from.dims[a + 1] >= kLongest)
        return false;
    }
    for (int a = 0; a < 4; ++a) in[a] = from.dims[a], out[a] = to.dims[a];
    divides = params[15] != 0;
    return true;
  }
};

// Every window of every plane. Forward, y becomes the mean, or the sum, of what each sees of x; backward, each adds its y,
// divided likewise, to what it sees. Windows side by side that lie within the input go together, tap by tap.
template <class T>
MB_NOINLINE Status average(const Call& call, const Tensor& x, const Tensor& y, bool backward) {
  AverageWindow n;
  if (!n.read(call[2], call[3], call.params) || call[2].count != x.count || call[3].count != y.count)
    return Status::kTooLarge;
  if (y.count == 0) return Status::kOk;
  const int room = n.in[3] + n.w.pad - (n.w.taps - 1) * n.w.dilation;
  const int inner_end = room > 0 ? (room - 1) / n.w.stride + 1 : 0;  // windows from here on reach over the end
  T* to = y.as<T>();
  for (int row = 0; row < n.in[0] * n.out[1] * n.out[2]; ++row) {
    const int plane = row / (n.out[1] * n.out[2]) * n.in[1];
    const Sight d = look(n.d, row / n.out[2] % n.out[1], n.in[1], n.after[0]);
    const Sight h = look(n.h, row % n.out[2], n.in[2], n.after[1]);
    for (int k = 0, run; k < n.out[3]; k += run, to += run) {
      const Sight w = look(n.w, k, n.in[3], n.after[2]);
      run = w.seen == n.w.taps && inner_end > k ? (inner_end < n.out[3] ? inner_end : n.out[3]) - k : 1;
      const int counted = d.counted * h.counted * w.counted;
      const T divisor = static_cast<T>(n.divides && counted > 0 ? counted : 1);
      const T weight = backward ? T(1) / divisor : T(1);
      if (!backward) clear_bytes(to, run * sizeof(T));
      for (int a = 0; a < d.seen; ++a) {
        for (int b = 0; b < h.seen; ++b) {
          T* from =
              x.as<T>() + ((plane + d.at + a * n.d.dilation) * n.in[2] + h.at + b * n.h.dilation) * n.in[3] + w.at;
          if (run == 1) {
            T sum = 0;
            const T share = *to * weight;
            for (int c = 0; c < w.seen; ++c, from += n.w.dilation) {
              if (backward) *from += share;
              else sum += *from;
            }
            if (!backward) *to += sum;
            continue;
          }
          for (int c = 0; c < w.seen; ++c, from += n.w.dilation) {
            if (backward) axpy_strided(from, n.w.stride, to, 1, weight, run);
            else axpy_strided(to, 1, from, n.w.stride, weight, run);
          }
        }
      }
      for (int i = 0; !backward && i < run; ++i) to[i] /= divisor;
    }
  }
  return Status::kOk;
}

// x: [N,C,...]  y: [N,C,...]
template <class T>
Status average_pool(const Call& call) {
  return average<T>(call, call[1], call[0], false);
}

template <class T>
Status average_pool_grad(const Call& call) {
  const Tensor& dx = call[0];
  clear_bytes(dx.data, dx.count * sizeof(T));
  return average<T>(call, dx, call[1], true);
}

MB_INSTANTIATE_AVERAGE_POOL

}  // namespace minbuild
