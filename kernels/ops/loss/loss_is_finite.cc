// Refuses a loss that is infinite or no number.
#include "minbuild/kernel.h"

namespace minbuild {

// y = x, which may be the same bytes, unless one of them is not finite
template <class T>
Status loss_is_finite(const Call& call) {
  const Tensor &y = call[0], &x = call[1];
  if (y.count != x.count) return Status::kBadPlan;
  for (int i = 0; i < x.count; ++i) {
    const T loss = x.as<T>()[i];
    if (!(loss - loss == 0)) return Status::kBadValue;
    y.as<T>()[i] = loss;
  }
  return Status::kOk;
}

MB_INSTANTIATE_LOSS_IS_FINITE

}  // namespace minbuild
