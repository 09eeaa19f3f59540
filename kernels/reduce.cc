// Sums and means over axes.
#include "shared/sum.h"

namespace minbuild {

// y[i] += x[i]
template <class T>
struct AddBody {
  template <class V>
  static MB_INLINE void step(int i, T* y, const T* x) {
    (V::load(y + i) + V::load(x + i)).store(y + i);
  }
};

// x: [A,K,R,I], summed over A and R  y: [K,I]  The groups are x's axes folded together.
template <class T>
Status reduce(const Call& call) {
  const Tensor &y = call[0], &x = call[1], &groups = call[2];
  if (groups.rank != 4 || groups.count != x.count) return Status::kBadPlan;
  int outer = groups.dims[0], kept = groups.dims[1], reduced = groups.dims[2], inner = groups.dims[3];
  if (y.count != kept * inner) return Status::kBadPlan;
  T* to = y.as<T>();
  // The mean divides sums, so what is in y already has to be multiplied first.
  T divisor = MB_REDUCE_MEAN && call.params[0] != 0 ? static_cast<T>(outer * reduced) : T(1);
  for (int i = 0; i < y.count; ++i) to[i] = call.adds(0) ? to[i] * divisor : T(0);
  const T* from = x.as<T>();
  for (int a = 0; a < outer; ++a) {
    for (int k = 0; k < kept; ++k, from += reduced * inner) {
      if (MB_REDUCE_ROWS && inner == 1) {
        to[k] += sum_range<T>(from, reduced);
      } else {
        for (int r = 0; r < reduced; ++r) for_range<T, AddBody<T>>(inner, to + k * inner, from + r * inner);
      }
    }
  }
  for (int i = 0; i < y.count && divisor != 1; ++i) to[i] /= divisor;
  return Status::kOk;
}

MB_INSTANTIATE_REDUCE

}  // namespace minbuild
