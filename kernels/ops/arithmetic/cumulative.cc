// Sums and products of all elements up to each.
#include "minbuild/kernel.h"

namespace minbuild {

// x, y: [A,D,B], along D. Parameters: products instead of sums, without the element itself, from the end.
template <class T>
Status cumulative(const Call& call) {
  const Tensor &y = call[0], &x = call[1], &groups = call[2];
  if (groups.rank != 3 || groups.count != x.count || y.count != x.count) return Status::kBadPlan;
  if (x.count == 0) return Status::kOk;
  bool product = call.params[0] != 0, exclusive = call.params[1] != 0, reverse = call.params[2] != 0;
  int size = groups.dims[1], inner = groups.dims[2], block = size * inner, step = reverse ? -inner : inner;
  for (int first = 0; first < x.count; first += block) {
    int start = first + (reverse ? block - inner : 0);
    T* to = y.as<T>() + start;
    const T* from = x.as<T>() + start;
    for (int b = 0; b < inner; ++b) to[b] = exclusive ? static_cast<T>(product) : from[b];
    for (int i = 1; i < size; ++i) {
      const T *sums = to, *next = exclusive ? from : from + step;
      to += step, from += step;
      for (int b = 0; b < inner; ++b) to[b] = static_cast<T>(product ? sums[b] * next[b] : sums[b] + next[b]);
    }
  }
  return Status::kOk;
}

MB_INSTANTIATE_CUMULATIVE

}  // namespace minbuild
