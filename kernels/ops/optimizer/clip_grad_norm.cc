// Scales all gradients down where their common length is above a limit.
#include "lib/loops/elementwise.h"
#include "lib/simd/math.h"

namespace minbuild {

// As many partial sums as hide the time an addition takes; the block must be a multiple.
constexpr int kNormLanes = 64, kNormBlock = 1024;

// totals[i modulo their number] += x[i]^2
template <class T>
struct PartialSquares {
  template <class V>
  static MB_INLINE void step(int i, T* totals, const T* x) {
    V each = V::load(x + i);
    T* total = totals + i % kNormLanes;
    muladd(each, each, V::load(total)).store(total);
  }
};

template <class T>
struct ScaledBy {
  T factor;
  template <class V>
  MB_INLINE V operator()(V x) const {
    return x * V(factor);
  }
};

// g *= min(1, max_norm / (|g| + 1e-6)), with |g| over all gradients: they lie one after the other. The squares are
// summed in blocks, the blocks with a correction for what rounding loses.
template <class T>
Status clip_grad_norm(const Call& call) {
  const Tensor& g = call[0];
  T* data = g.as<T>();
  T sum = 0, lost = 0;
  for (int first = 0; first < g.count; first += kNormBlock) {
    int left = g.count - first;
    T totals[kNormLanes] = {}, block = -lost;
    for_range<kBaseline, T, PartialSquares<T>>(left < kNormBlock ? left : kNormBlock, totals, data + first);
    for (T total : totals) block += total;
    T next = sum + block;
    lost = (next - sum) - block;
    sum = next;
  }
  T norm;
  sqrt(Vec<T, 1>(sum)).store(&norm);
  T factor = static_cast<T>(call.real(0)) / (norm + static_cast<T>(1e-6f));
  // No number above 1 changes anything; what is no number reaches all gradients, as in ORT.
  if (!(factor >= 1)) for_range<kBaseline, T, MapBody<T, ScaledBy<T>>>(g.count, ScaledBy<T>{factor}, data, data);
  return Status::kOk;
}

MB_INSTANTIATE_CLIP_GRAD_NORM

}  // namespace minbuild
