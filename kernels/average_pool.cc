// Averages and sums over windows with one to three spatial axes, and their gradients.
#include "minbuild/kernel.h"

namespace minbuild {

// One spatial axis: output o looks at o * stride + tap * dilation - pad of the input for every tap of the window.
struct AverageAxis {
  int taps, stride, pad, dilation;
};
constexpr AverageAxis kOneTap = {1, 1, 0, 1};

// What an output sees along one axis: taps first..last-1, of which the first stands at `at`; `counted` of them divide.
struct Sight {
  int at, seen, counted;
};

// How many of `taps` numbers start, start + dilation, ... are smaller than `end`.
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

// Every window of every plane. Forward, y becomes the mean, or the sum, of what each sees of x; backward, each adds its y,
// divided likewise, to what it sees.
// in: [P,D,H,W]  out: [P,OD,OH,OW]  params: the axes D, H and W; padding behind them or -1; whether to divide.
template <class T>
MB_NOINLINE Status average(const Call& call, const Tensor& x, const Tensor& y, bool backward) {
  const Tensor &in = call[2], &out = call[3];
  const AverageAxis* axes = reinterpret_cast<const AverageAxis*>(call.params);
  const AverageAxis &d = MB_AVERAGE_POOL_VOLUMES ? axes[0] : kOneTap, &h = axes[1], &w = axes[2];
  const int32_t *from = in.dims, *size = out.dims, *after = call.params + 12;
  if (in.rank != 4 || out.rank != 4 || in.count != x.count || out.count != y.count || from[0] != size[0] ||
      (!MB_AVERAGE_POOL_VOLUMES && from[1] != size[1]))
    return Status::kBadPlan;
  for (int a = 0; a < 3; ++a) {
    constexpr int kMost = 1 << 12, kLongest = 1 << 30;  // so that no position overflows
    const AverageAxis& each = axes[a];
    if (unsigned(each.taps) >= kMost || unsigned(each.pad) >= kMost || unsigned(each.dilation - 1) >= kMost ||
        unsigned(each.stride) >= kMost || int64_t(each.stride) * size[a + 1] >= kLongest || after[a] >= kMost ||
        from[a + 1] >= kLongest)
      return Status::kBadPlan;
  }
  const bool divides = call.params[15] != 0;
  T* to = y.as<T>();
  for (int p = 0; p < from[0]; ++p) {
    for (int i = 0; i < size[1]; ++i) {
      const Sight in_d = look(d, i, from[1], after[0]);
      for (int j = 0; j < size[2]; ++j) {
        const Sight in_h = look(h, j, from[2], after[1]);
        for (int k = 0; k < size[3]; ++k, ++to) {
          const Sight in_w = look(w, k, from[3], after[2]);
          const int counted = in_d.counted * in_h.counted * in_w.counted;
          const T divisor = static_cast<T>(divides && counted > 0 ? counted : 1);
          const T share = backward ? *to / divisor : T(0);
          T sum = 0;
          for (int a = 0; a < in_d.seen; ++a) {
            const int plane = p * from[1] + in_d.at + a * d.dilation;
            for (int b = 0; b < in_h.seen; ++b) {
              T* row = x.as<T>() + (plane * from[2] + in_h.at + b * h.dilation) * from[3] + in_w.at;
              for (int c = 0; c < in_w.seen; ++c, row += w.dilation) {
                if (backward) *row += share;
                else sum += *row;
              }
            }
          }
          if (!backward) *to = sum / divisor;
        }
      }
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
  __builtin_memset(dx.data, 0, dx.count * sizeof(T));
  return average<T>(call, dx, call[1], true);
}

MB_INSTANTIATE_AVERAGE_POOL

}  // namespace minbuild
