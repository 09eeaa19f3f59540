// Sequences of different lengths, each reversed.
#include "minbuild/kernel.h"

namespace minbuild {

// x, y: [T,B,S], or [B,T,S] where parameter 0 is not 0; lengths: [B], at most T. What is behind a sequence stays.
template <class T>
Status reverse_sequence(const Call& call) {
  const Tensor &y = call[0], &x = call[1], &lengths = call[2], &layout = call[3];
  if (layout.rank != 3 || layout.count != x.count || y.count != x.count) return Status::kBadPlan;
  bool batch_first = call.params[0] != 0;
  int batches = layout.dims[batch_first ? 0 : 1], times = layout.dims[batch_first ? 1 : 0], inner = layout.dims[2];
  if (lengths.count != batches) return Status::kBadPlan;
  const int64_t* length = lengths.as<int64_t>();
  for (int b = 0; b < batches; ++b)
    if (length[b] < 0 || length[b] > times) return Status::kBadValue;
  if (x.count == 0) return Status::kOk;
  int step = batch_first ? inner : batches * inner, next = batch_first ? times * inner : inner;
  for (int b = 0; b < batches; ++b) {
    const int64_t given = length[b];  // which a damaged plan may have put under the output
    if (given < 0 || given > times) return Status::kBadValue;
    int end = static_cast<int>(given);
    T* to = y.as<T>() + b * next;
    const T* from = x.as<T>() + b * next;
    for (int t = 0; t < times; ++t)
      copy_bytes(to + t * step, from + (t < end ? end - 1 - t : t) * step, inner * sizeof(T));
  }
  return Status::kOk;
}

MB_INSTANTIATE_REVERSE_SEQUENCE

}  // namespace minbuild
