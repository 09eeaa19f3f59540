// Samples of images at positions that a grid gives, and the gradients of images and grid.
#include "minbuild/kernel.h"
#include "lib/simd/math.h"

namespace minbuild {

constexpr int kSampleAxes = 3, kMostSampleTaps = 4;
enum SampleMode : int { kNearest, kLinear, kCubic };
enum SamplePadding : int { kZeros, kBorder, kReflection };

// The stencil of one position along one axis: elements with their weights, and how these change with the grid's number.
template <class T>
struct AxisTaps {
  int at[kMostSampleTaps];
  T weight[kMostSampleTaps], slope[kMostSampleTaps];
};

// x: [N,C,in...]  y: [N,C,out...]  grid: [N,out...,axes], numbers from -1 to 1 across the image, its last axis first
template <class T>
struct Sampler {
  int batch, channels, axes, image, places;
  int sizes[kSampleAxes];
  SampleMode mode;
  SamplePadding padding;
  bool align;
  int taps;
  // All taps of a position: places in an image, weights, and how these change with the grid's numbers.
  int count;
  int at[64];
  T weight[64], slope[kSampleAxes][64];

  bool read(const Tensor& x, const Tensor& y, const Tensor& grid, const int32_t* params) {
    const int rank = x.rank;
    axes = rank - 2;
    if (axes < 1 || axes > kSampleAxes || y.rank != rank || grid.rank != rank) return false;
    if (unsigned(params[0]) > kCubic || unsigned(params[1]) > kReflection) return false;
    mode = SampleMode(params[0]);
    padding = SamplePadding(params[1]);
    align = params[2] != 0;
    taps = MB_GRID_SAMPLE_CUBIC && mode == kCubic ? 4 : mode == kNearest ? 1 : 2;
    batch = x.dims[0], channels = x.dims[1];
    if (y.dims[0] != batch || y.dims[1] != channels || grid.dims[0] != batch || grid.dims[rank - 1] != axes)
      return false;
    image = places = 1;
    for (int a = 0; a < axes; ++a) {
      sizes[a] = x.dims[a + 2];
      if (sizes[a] < 1 || grid.dims[a + 1] != y.dims[a + 2]) return false;
      image *= sizes[a];
      places *= y.dims[a + 2];
    }
    return true;
  }

  // Mirrors v at low and high until it lies between; `sign` turns with every second mirror.
  static MB_INLINE T reflect(T v, T low, T high, T* sign) {
    const T range = high - low;
    if (!(range > T(0))) return *sign = T(0), low;
    const bool below = v < low;
    if (!below && !(v > high)) return v;
    const T beyond = below ? low - v : v - high;
    const T turns = static_cast<T>(static_cast<int>(beyond / range)), rest = beyond - turns * range;
    const bool even = (static_cast<int>(turns) & 1) == 0;
    if (even) *sign = -*sign;
    return below == even ? low + rest : high - rest;
  }

  static MB_INLINE T whole(T v) {
    T cut = static_cast<T>(static_cast<int>(v));
    return cut > v ? cut - T(1) : cut;
  }

  // The weights of taps at distances `f`, 1 - f, ... and their derivatives.
  MB_INLINE void weigh(T f, AxisTaps<T>& t) const {
    if (mode == kNearest) {
      t.weight[0] = T(1), t.slope[0] = T(0);
    } else if (MB_GRID_SAMPLE_CUBIC && mode == kCubic) {
      constexpr T a = T(-0.75);  // Keys' kernel
      for (int i = 0; i < 4; ++i) {
        const T signed_distance = f + T(1 - i), d = signed_distance < T(0) ? -signed_distance : signed_distance;
        const bool near = i == 1 || i == 2;
        t.weight[i] =
            near ? ((a + T(2)) * d - (a + T(3))) * d * d + T(1) : ((a * d - T(5) * a) * d + T(8) * a) * d - T(4) * a;
        const T change =
            near ? (T(3) * (a + T(2)) * d - T(2) * (a + T(3))) * d : (T(3) * a * d - T(10) * a) * d + T(8) * a;
        t.slope[i] = i < 2 ? change : -change;
      }
    } else {
      t.weight[0] = T(1) - f, t.weight[1] = f;
      t.slope[0] = T(-1), t.slope[1] = T(1);
    }
  }

  MB_NOINLINE void look(T number, int size, AxisTaps<T>& t) const {
    const T length = static_cast<T>(size), last = length - T(1);
    T scale = (align ? last : length) * T(0.5);
    T v = align ? (number + T(1)) * T(0.5) * last : ((number + T(1)) * length - T(1)) * T(0.5);
    constexpr T far = T(1 << 30);
    v = v > -far ? v : -far;  // NaN as well
    v = v < far ? v : far;
    if (mode == kNearest) v = (v + Format<T>::round) - Format<T>::round;
    const T low = align ? T(0) : T(-0.5), high = align ? last : length - T(0.5);
    if (padding == kBorder && (v < low || v > high)) {
      v = v < low ? T(0) : last;
      scale = T(0);
    } else if (padding == kReflection) {
      v = reflect(v, low, high, &scale);
    }
    const T first = whole(v);
    weigh(v - first, t);
    for (int i = 0; i < taps; ++i) {
      int place = static_cast<int>(first) + i - (taps == 4);
      if (padding == kReflection) {
        T unused = T(1);
        place = static_cast<int>(reflect(static_cast<T>(place), low, high, &unused));
      }
      const bool outside = unsigned(place) >= unsigned(size);
      if (outside) place = place < 0 ? 0 : size - 1;
      t.at[i] = place;
      t.slope[i] *= scale;
      if (outside && padding == kZeros) t.weight[i] = t.slope[i] = T(0);
    }
  }

  MB_NOINLINE void look(const T* numbers) {
    count = 1;
    at[0] = 0;
    weight[0] = T(1);
    for (int a = 0; a < axes; ++a) {
      AxisTaps<T> t;
      look(numbers[axes - 1 - a], sizes[a], t);
      // Every tap so far times every tap of this axis, from the back, since the first stand where they are read.
      for (int i = count - 1; i >= 0; --i) {
        const int place = at[i] * sizes[a];
        const T before = weight[i];
        T slopes[kSampleAxes];
        for (int b = 0; b < a; ++b) slopes[b] = slope[b][i];
        for (int j = taps - 1; j >= 0; --j) {
          const int to = i * taps + j;
          at[to] = place + t.at[j];
          weight[to] = before * t.weight[j];
          for (int b = 0; b < a; ++b) slope[b][to] = slopes[b] * t.weight[j];
          slope[a][to] = before * t.slope[j];
        }
      }
      count *= taps;
    }
  }
};

template <class T>
Status grid_sample(const Call& call) {
  const Tensor &y = call[0], &x = call[1], &grid = call[2];
  Sampler<T> s;
  if (!s.read(x, y, grid, call.params)) return Status::kTooLarge;
  const T* numbers = grid.as<T>();
  for (int n = 0; n < s.batch; ++n) {
    for (int o = 0; o < s.places; ++o, numbers += s.axes) {
      s.look(numbers);
      const T* from = x.as<T>() + n * s.channels * s.image;
      T* to = y.as<T>() + n * s.channels * s.places + o;
      for (int c = 0; c < s.channels; ++c, from += s.image, to += s.places) {
        T sum = 0;
        for (int t = 0; t < s.count; ++t) sum += s.weight[t] * from[s.at[t]];
        *to = sum;
      }
    }
  }
  return Status::kOk;
}

// dx and dgrid; either may be absent.
template <class T>
Status grid_sample_grad(const Call& call) {
  const Tensor &dx = call[0], &dgrid = call[1], &dy = call[2], &x = call[3], &grid = call[4];
  Sampler<T> s;
  if (!s.read(x, dy, grid, call.params) || (dx && dx.count != x.count) || (dgrid && dgrid.count != grid.count))
    return Status::kTooLarge;
  if (dx) clear_bytes(dx.data, dx.count * sizeof(T));
  const T* numbers = grid.as<T>();
  T* changes = dgrid.as<T>();
  for (int n = 0; n < s.batch; ++n) {
    for (int o = 0; o < s.places; ++o, numbers += s.axes) {
      s.look(numbers);
      T seen[64] = {};
      int image = n * s.channels * s.image;
      const T* flow = dy.as<T>() + n * s.channels * s.places + o;
      for (int c = 0; c < s.channels; ++c, image += s.image, flow += s.places) {
        for (int t = 0; t < s.count; ++t) {
          if (dx) dx.as<T>()[image + s.at[t]] += s.weight[t] * *flow;
          if (dgrid) seen[t] += x.as<T>()[image + s.at[t]] * *flow;
        }
      }
      for (int a = s.axes - 1; dgrid && a >= 0; --a) {
        T sum = 0;
        for (int t = 0; t < s.count; ++t) sum += s.slope[a][t] * seen[t];
        *changes++ = sum;
      }
    }
  }
  return Status::kOk;
}

MB_INSTANTIATE_GRID_SAMPLE

}  // namespace minbuild
