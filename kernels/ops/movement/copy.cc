// Copies a tensor.
#include "minbuild/kernel.h"

namespace minbuild {

// y = x, elements of the size of T
template <class T>
Status copy(const Call& call) {
  if (call[0].count != call[1].count) return Status::kBadPlan;
  copy_bytes(call[0].data, call[1].data, call[0].count * sizeof(T));
  return Status::kOk;
}

MB_INSTANTIATE_COPY

}  // namespace minbuild
