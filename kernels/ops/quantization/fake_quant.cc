// FakeQuant: rounds to the numbers that a quantised type can hold, over any shape.
#include "minbuild/kernel.h"
#include "lib/simd/math.h"

namespace minbuild {

// x, y, inside: any shape  scale, zero_point: one element  Parameters: the smallest and largest quantised number.
template <class T>
Status fake_quant(const Call& call) {
  using V = Width<kNarrowBytes>::of<T>;
  const Tensor &y = call[0], &inside = call[1], &x = call[2];
  if ((y && y.count != x.count) || (inside && inside.count != x.count)) return Status::kBadPlan;
  if (call[3].count != 1 || call[4].count != 1) return Status::kBadPlan;
  const V scale = *call[3].as<T>(), zero = *call[4].as<T>(), low = T(call.real(0)), high = T(call.real(1));
  const V limit = T(1 << 22), round = Format<T>::round;  // adding and taking `round` rounds what is within the limit
  const T* from = x.as<T>();
  for (int start = 0; start < x.count; start += V::size) {
    const int left = x.count - start;
    V steps = min(limit, max(-limit, V::load(from + start, left) / scale));  // in this order NaN stays
    V whole = (steps + round) - round + zero;
    if (y) ((min(high, max(low, whole)) - zero) * scale).store(y.as<T>() + start, left);
    auto good = (whole >= low) & (whole <= high);
    for (int i = 0; inside && i < V::size && i < left; ++i) inside.as<bool>()[start + i] = good.v[i] != 0;
  }
  return Status::kOk;
}

MB_INSTANTIATE_FAKE_QUANT

}  // namespace minbuild
