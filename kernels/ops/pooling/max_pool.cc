// Max pooling over one to three spatial axes, and its gradient.
#include "minbuild/kernel.h"
#include "lib/simd/pairs.h"
#include "lib/threads/parallel.h"

namespace minbuild {

// One spatial axis: output o looks at o * stride + tap * dilation - pad of the input for every tap of the window.
struct PoolAxis {
  unsigned taps, stride, pad, dilation;

  // Outside of the input this is no less than its size, whatever a plan says.
  MB_INLINE unsigned look(unsigned o, unsigned tap) const { return o * stride + tap * dilation - pad; }
};
constexpr bool kVolumes = MB_MAX_POOL_VOLUMES;  // else the depth is 1

// True where the pointer to a row moves from output to output: engines of WebAssembly would else compute each place anew;
// pointers wrap around there as positions do.
#if defined(__wasm32__)
constexpr bool kMovesRow = true;
#else
constexpr bool kMovesRow = false;
#endif

// True where vectors pool the windows of a line.
#define MB_POOLS_LINES (MB_FAST_WASM || (MB_MAX_POOL_LINES && MB_SIMD && !MB_ONE_VARIANT))

// All bits if `yes`, else none. Opaque, or compilers make a branch of it, which is mispredicted half of the time: any
// element of a window may be the largest. Without it results are the same, only later.
template <class Bits>
MB_INLINE Bits mask_if(bool yes) {
  int mask = -int(yes);
  MB_OPAQUE(mask);
  return static_cast<Bits>(mask);
}

#if MB_POOLS_LINES
// Neighbouring windows of a line and one tap of each, `stride` apart from `row` on, one or two elements, whose number is
// `tap`: as the loop of pool_planes over single ones, for as many as whole vectors have of `count`, which it returns. Bytes
// of marks become lanes and back.
template <class T>
struct PoolLine {
  template <class W>
  static MB_INLINE int run(T* row, unsigned stride, T* to, uint8_t* mark, int count, unsigned tap, bool backward) {
    using V = typename W::template of<T>;
    using Bits = typename V::Bits;
    typedef uint8_t Marks __attribute__((vector_size(V::size)));
    int left = count;
    for (; left >= V::size; left -= V::size, row += stride * V::size, to += V::size, mark += V::size) {
      V each = V::load(row), between;
      if (stride == 2) {
        const V high = V::load(row + V::size);
        between = of_pairs<1>(each, high), each = of_pairs<0>(each, high);
      }
      const V best = V::load(to);
      Marks marks;
      __builtin_memcpy(&marks, mark, sizeof marks);
      Bits old = __builtin_convertvector(marks, typename Bits::Raw);
      if (backward) {
        each = each + bits_as<T>(bits_as<int32_t>(best) & (old == Bits(int32_t(tap))));
        if (stride == 2) {
          in_pairs<0>(each, between).store(row), in_pairs<1>(each, between).store(row + V::size);
        } else {
          each.store(row);
        }
      } else {
        old = select(each > best, Bits(int32_t(tap)), old);
        marks = __builtin_convertvector(old.v, Marks);
        __builtin_memcpy(mark, &marks, sizeof marks);
        max(each, best).store(to);
      }
    }
    return count - left;
  }
};
#endif

// Nothing was found in so many windows.
template <class T, class I>
MB_INLINE void start_windows(T* y, I* marks, int count) {
  for (int i = 0; i < count; ++i) y[i] = -static_cast<T>(__builtin_inff());
  clear_bytes(marks, count * sizeof(I));
}

// Every window of every plane, tap by tap, so that each row of outputs is one plain loop. Forward, y becomes the
// largest of each window, and marks say which that is, the first of equals: by its tap in the window if they are bytes,
// else as ONNX has it, by its place in x. Backward, x collects y where marks say so.
// in: [P,D,H,W]  out: [P,OD,OH,OW]  params: the axes D, H and W.
template <class T, class I>
MB_INLINE Status pool_planes(const Call& call, const Tensor& x, const Tensor& y, const Tensor& marks, bool backward,
                             int first, int last) {
  const Tensor &in = call[3], &out = call[4];
  const PoolAxis* axes = reinterpret_cast<const PoolAxis*>(call.params);
  const PoolAxis &d = axes[0], &h = axes[1], &w = axes[2];
  const int32_t *from = in.dims, *size = out.dims;
  const unsigned depth_taps = kVolumes ? d.taps : 1;
  if (MB_WRONG(in.rank != 4 || out.rank != 4 || in.count != x.count || out.count != y.count || marks.count != y.count ||
               from[0] != size[0] || (!kVolumes && (from[1] != 1 || size[1] != 1))) ||
      (depth_taps | h.taps | w.taps) >> 12 != 0)  // more would keep us busy for ever
    return Status::kTooLarge;
  T* to = y.as<T>();
  I* mark = marks.as<I>();
  // One loop over taps and one over planes, whose places are counted along: fewer counters to keep.
  const unsigned taps = depth_taps * h.taps * w.taps;
#if MB_THREADS > 1
  const int outputs = size[1] * size[2] * size[3], inputs = from[1] * from[2] * from[3];
  to += first * outputs, mark += first * outputs;
  if (backward) clear_bytes(x.as<T>() + first * inputs, (last - first) * inputs * sizeof(T));
  else start_windows(to, mark, (last - first) * outputs);
#endif
  if (kVolumes) first *= size[1], last *= size[1];
  for (int p = first; p < last; ++p) {
    for (int j = 0; j < size[2]; ++j, to += size[3], mark += size[3]) {
      unsigned a = 0, b = 0, c = 0;
      for (unsigned tap = 0; tap < taps; ++tap, ++c) {
        if (c == w.taps) c = 0, ++b;
        if (kVolumes && b == h.taps) b = 0, ++a;
        const unsigned in_d = kVolumes ? d.look(p % size[1], a) : 0, in_h = h.look(j, b);
        if ((kVolumes && in_d >= unsigned(from[1])) || in_h >= unsigned(from[2])) continue;
        unsigned in_w = w.look(0, c);
        T* row = x.as<T>() + ((kVolumes ? p / size[1] * from[1] + in_d : p) * from[2] + in_h) * from[3];
        if (kMovesRow) row += int(in_w);
        for (int k = 0; k < size[3]; ++k, in_w += w.stride, row += kMovesRow ? int(w.stride) : 0) {
          if (in_w >= unsigned(from[3])) continue;
#if MB_POOLS_LINES
          if constexpr (sizeof(T) == 4 && sizeof(I) == 1) {
            // A shift: this is asked for every element that vectors leave, and a division takes longer than those.
            const int inside = w.stride - 1 < 2 ? int((from[3] - in_w) >> (w.stride - 1)) : 0, left = size[3] - k;
            const int count = left < inside ? left : inside;
            if (count >= lanes_of<T>(vector_bytes())) {
              T* at = row + (kMovesRow ? 0 : in_w);
              const int some = dispatch<PoolLine<T>>(at, w.stride, to + k, mark + k, count, tap, backward);
              k += some - 1, in_w += (some - 1) * w.stride, row += kMovesRow ? (some - 1) * int(w.stride) : 0;
              continue;
            }
          }
#endif
          T& each = row[kMovesRow ? 0 : in_w];
          I here = static_cast<I>(sizeof(I) == 1 ? tap : &each - x.as<T>());
          if (backward) {
            using Bits = typename LaneBits<T>::type;
            Vec<Bits, 1> chosen = mask_if<Bits>(mark[k] == here);
            each += bits_as<T>(bits_as<Bits>(Vec<T, 1>(to[k])) & chosen).v[0];
          } else {
            mark[k] ^= (mark[k] ^ here) & mask_if<I>(each > to[k]);
            to[k] = max(Vec<T, 1>(each), Vec<T, 1>(to[k])).v[0];
          }
        }
      }
    }
  }
  return Status::kOk;
}

template <class T, class I>
MB_NOINLINE Status pool(const Call& call, const Tensor& x, const Tensor& y, const Tensor& marks, bool backward) {
#if MB_THREADS > 1
  // Parts are some planes.
  uint32_t failed = 0;
  for_ranges(call.team, call[4].dims[0], x.count * int64_t(sizeof(T)), 1, [&](intptr_t first, intptr_t some) {
    if (pool_planes<T, I>(call, x, y, marks, backward, int(first), int(first + some)) != Status::kOk)
      __atomic_store_n(&failed, 1u, __ATOMIC_RELAXED);
  });
  return failed == 0 ? Status::kOk : Status::kTooLarge;
#else
  return pool_planes<T, I>(call, x, y, marks, backward, 0, call[4].dims[0]);
#endif
}

// x: [N,C,...]  y: [N,C,...]  indices: like y
template <class T, class I>
Status max_pool(const Call& call) {
#if MB_THREADS == 1
  start_windows(call[0].as<T>(), call[1].as<I>(), call[0].count);
#endif
  return pool<T, I>(call, call[2], call[0], call[1], false);
}

// dx[index] += dy, from what max_pool left in indices. An index that names nothing in its window adds nowhere.
template <class T, class I>
Status max_pool_grad(const Call& call) {
  const Tensor& dx = call[0];
#if MB_THREADS == 1
  clear_bytes(dx.data, dx.count * sizeof(T));
#endif
  return pool<T, I>(call, dx, call[1], call[2], true);
}

MB_INSTANTIATE_MAX_POOL

}  // namespace minbuild
