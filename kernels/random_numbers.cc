// Random numbers: those of the C++ standard's minstd_rand0 and of the distributions of GNU's library, which ONNX Runtime
// draws on Linux.
#include "minbuild/kernel.h"
#include "shared/math.h"

namespace minbuild {

constexpr uint32_t kModulus = 0x7fffffff;

struct Engine {
  uint32_t state;

  explicit Engine(uint32_t seed) : state(seed % kModulus) {
    if (state == 0) state = 1;
  }
  // 16807 * state modulo 2^31 - 1, for which 2^31 is 1.
  uint32_t next() {
    uint64_t product = uint64_t{state} * 16807;
    uint32_t sum = static_cast<uint32_t>(product & kModulus) + static_cast<uint32_t>(product >> 31);
    state = sum < kModulus ? sum : sum - kModulus;
    return state;
  }
  // The next number as a whole one from 0.
  int32_t draw() { return static_cast<int32_t>(next() - 1); }
};

// From 0 to 1, 1 left out. A double takes two draws.
template <class T>
MB_INLINE T uniform(Engine& engine) {
  constexpr T kNumbers = T(2147483646);
  T sum = T(engine.draw()), total = kNumbers, most = T(0x1.fffffep-1);
  if constexpr (sizeof(T) == 8) {
    sum += T(engine.draw()) * kNumbers;
    total *= kNumbers;
    most = T(0x1.fffffffffffffp-1);
  }
  T result = sum / total;
  return result < T(1) ? result : most;
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
  Engine engine = start(call, draws);
  for (int i = 0; i < mask.count; ++i) mask.as<uint8_t>()[i] = uniform<float>(engine) >= dropped;
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
  double* sum = sums.as<double>();
  for (int n = 0; n < y.dims[0]; ++n, row += classes) {
    T largest = row[0];
    for (int c = 1; c < classes; ++c) largest = row[c] > largest ? row[c] : largest;
    double total = 0;
    for (int c = 0; c < classes; ++c) sum[c] = total += exp(Vec<double, 1>(double(row[c]) - double(largest))).v[0];
    for (int s = 0; s < y.dims[1]; ++s) {
      double wanted = uniform<double>(engine) * total;
      int c = 0;
      while (c < classes - 1 && !(wanted < sum[c])) ++c;
      *to++ = static_cast<I>(c);
    }
  }
  return Status::kOk;
}

MB_INSTANTIATE_RANDOM_NUMBERS

}  // namespace minbuild
