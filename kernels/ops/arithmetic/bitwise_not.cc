// The complement of every bit, over any shape.
#include "minbuild/kernel.h"

namespace minbuild {

// y = ~x, elements of the size of T
template <class T>
Status bitwise_not(const Call& call) {
  const Tensor &y = call[0], &x = call[1];
  if (x.count != y.count) return Status::kBadPlan;
  for (int i = 0; i < y.count; ++i) y.as<T>()[i] = static_cast<T>(~x.as<T>()[i]);
  return Status::kOk;
}

MB_INSTANTIATE_BITWISE_NOT

}  // namespace minbuild
