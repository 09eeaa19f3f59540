// Refuses indices that name nothing.
#include "minbuild/kernel.h"

namespace minbuild {

// least = the least index of x, at most 0, where all but ignored ones are from..to-1
template <class I>
Status index_range(const Call& call) {
  const Tensor &least = call[0], &x = call[1];
  const int32_t from = call.params[0], to = call.params[1], ignored = call.params[3];
  if (least.count != 1) return Status::kBadPlan;
  I found = 0;
  for (int i = 0; i < x.count; ++i) {
    const I index = x.as<I>()[i];
    if (call.params[2] != 0 && index == ignored) continue;
    if (index < from || index >= to) return Status::kBadValue;
    found = index < found ? index : found;
  }
  *least.as<I>() = found;
  return Status::kOk;
}

MB_INSTANTIATE_INDEX_RANGE

}  // namespace minbuild
