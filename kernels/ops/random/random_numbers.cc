// Random numbers: those of the C++ standard's minstd_rand0 and of the distributions of GNU's library, which ONNX Runtime
// draws on Linux.
#include "minbuild/kernel.h"
#include "lib/simd/math.h"

namespace minbuild {

constexpr uint32_t kModulus = 0x7fffffff, kMultiplier = 16807;

// a * b modulo 2^31 - 1, for which 2^31 is 1.
constexpr uint32_t times(uint32_t a, uint32_t b) {
  uint64_t product = uint64_t{a} * b;
  uint32_t sum = static_cast<uint32_t>(product & kModulus) + static_cast<uint32_t>(product >> 31);
  return sum < kModulus ? sum : sum - kModulus;
}

struct Engine {
  uint32_t state;

  explicit Engine(uint32_t seed) : state(seed % kModulus) {
    if (state == 0) state = 1;
  }
  uint32_t next() { return state = times(state, kMultiplier); }
  // The next number as a whole one from 0.
  int32_t draw() { return static_cast<int32_t>(next() - 1); }
};

// Draws as a number from 0 to 1, 1 left out.
MB_INLINE float part(int32_t draw) {
  float result = static_cast<float>(draw) / 2147483646.f;
  return result < 1.f ? result : 0x1.fffffep-1f;
}
MB_INLINE double part(int32_t low, int32_t high) {
  double result = (low + high * 2147483646.) / (2147483646. * 2147483646.);
  return result < 1. ? result : 0x1.fffffffffffffp-1;
}
template <class T>
MB_INLINE T uniform(Engine& engine) {
  int32_t draw = engine.draw();
  if constexpr (sizeof(T) == 4) {
    return part(draw);
  } else {
    return part(draw, engine.draw());
  }
}

// The engine of one execution. `draws` counts executions, which seed it, on top of the seed that the node has or 0.
MB_INLINE Engine start(const Call& call, const Tensor& draws) {
  return Engine(static_cast<uint32_t>(call.params[0]) + static_cast<uint32_t>(draws.as<int64_t>()[0]++));
}

// mask = whether to keep an element of x, which all are but for a part of `ratio`. params: seed
template <class R>
Status random_mask(const Call& call) {
  const Tensor &mask = call[0], &draws = call[1], &x = call[2], &ratio = call[3];
  if (mask.count != x.count || draws.count != 1 || ratio.count != 1) return Status::kBadPlan;
  float dropped = static_cast<float>(*ratio.as<R>());
  if (!(dropped >= 0.f && dropped < 1.f)) return Status::kBadValue;
  // The first draw whose number is not below the ratio.
  uint32_t bound = 0;
  for (uint32_t bit = 1u << 30; bit != 0; bit >>= 1)
    if (part(static_cast<int32_t>(bound + bit - 1)) < dropped) bound += bit;
  // Four states side by side, because one would have to wait for itself.
  constexpr uint32_t kSquare = times(kMultiplier, kMultiplier), kFourth = times(kSquare, kSquare);
  Engine engine = start(call, draws);
  uint32_t state[4];
  for (uint32_t& s : state) s = engine.next();
  uint8_t* to = mask.as<uint8_t>();
  for (int i = 0; i < mask.count; i += 4) {
    unroll<4>([&](auto k) MB_LAMBDA {
      if (i + k < mask.count) to[i + k] = state[k] > bound;  // a state is its draw and 1
      state[k] = times(state[k], kFourth);
    });
  }
  return Status::kOk;
}

// y evenly distributed. params: seed, low, high
template <class T>
Status random_uniform(const Call& call) {
  const Tensor &y = call[0], &draws = call[1];
  if (draws.count != 1) return Status::kBadPlan;
  Engine engine = start(call, draws);
  T low = T(call.real(1)), range = T(call.real(2)) - low;
  for (int i = 0; i < y.count; ++i) y.as<T>()[i] = uniform<T>(engine) * range + low;
  return Status::kOk;
}

// y normally distributed, by Marsaglia's polar method. params: seed, mean, scale
template <class T>
Status random_normal(const Call& call) {
  using V = Vec<T, 1>;
  const Tensor &y = call[0], &draws = call[1];
  if (draws.count != 1) return Status::kBadPlan;
  Engine engine = start(call, draws);
  T mean = T(call.real(1)), scale = T(call.real(2)), other = 0;
  for (int i = 0; i < y.count; ++i) {
    T result = other;
    if (i % 2 == 0) {
      T a, b, square;
      do {
        a = 2 * uniform<T>(engine) - 1;
        b = 2 * uniform<T>(engine) - 1;
        square = a * a + b * b;
      } while (square > 1 || square == 0);
      T length = sqrt(V(T(-2)) * log(V(square)) / V(square)).v[0];
      other = a * length;
      result = b * length;
    }
    y.as<T>()[i] = result * scale + mean;
  }
  return Status::kOk;
}

// y: [N, S] classes drawn with the unnormalised logarithms of probability x: [N, C]; sums: [C] scratch. params: seed
template <class T, class I>
Status multinomial(const Call& call) {
  const Tensor &y = call[0], &draws = call[1], &x = call[2], &sums = call[3];
  if (y.rank != 2 || x.rank != 2 || y.dims[0] != x.dims[0] || draws.count != 1) return Status::kBadPlan;
  int classes = x.dims[1];
  if (classes < 1 || sums.count / 8 < classes) return Status::kBadPlan;
  Engine engine = start(call, draws);
  const T* row = x.as<T>();
  I* to = y.as<I>();
  double* sum = sums.scratch<double>();
  for (int n = 0; n < y.dims[0]; ++n, row += classes) {
    T largest = row[0];
    for (int c = 1; c < classes; ++c) largest = row[c] > largest ? row[c] : largest;
    double total = 0;
    for (int c = 0; c < classes; ++c) sum[c] = total += exp(Vec<double, 1>(double(row[c]) - double(largest))).v[0];
    for (int s = 0; s < y.dims[1]; ++s) {
      double threshold = uniform<double>(engine) * total;
      int c = 0;
      while (c < classes - 1 && !(threshold < sum[c])) ++c;
      *to++ = static_cast<I>(c);
    }
  }
  return Status::kOk;
}

MB_INSTANTIATE_RANDOM_NUMBERS

}  // namespace minbuild
