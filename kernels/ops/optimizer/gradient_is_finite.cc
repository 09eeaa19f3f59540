// Refuses a gradient that is infinite or no number, before its parameter is updated.
#include "minbuild/kernel.h"

namespace minbuild {

// p: the parameter, which stays as it is; g: its gradient. Both equally long.
template <class T>
Status gradient_is_finite(const Call& call) {
  const Tensor& g = call[1];
  if (g.count != call[0].count) return Status::kBadPlan;
  for (int i = 0; i < g.count; ++i) {
    const T x = g.as<T>()[i];
    if (!(x - x == 0)) return Status::kNotFinite;
  }
  return Status::kOk;
}

MB_INSTANTIATE_GRADIENT_IS_FINITE

}  // namespace minbuild
