// The sizes of a shape, as numbers to compute with.
#include "minbuild/kernel.h"

namespace minbuild {

// y: [rank of x], element i the size of axis i
template <class T>
Status sizes(const Call& call) {
  const Tensor &y = call[0], &x = call[1];
  if (y.count != x.rank) return Status::kBadPlan;
  for (int i = 0; i < x.rank; ++i) y.as<T>()[i] = x.dims[i];
  return Status::kOk;
}

MB_INSTANTIATE_SYMBOLIC_DIMS

}  // namespace minbuild
