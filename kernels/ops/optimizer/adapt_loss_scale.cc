// Dynamic loss scaling: an update does not happen where the scaled loss made gradients infinite, and the scale follows.
#include "minbuild/kernel.h"

namespace minbuild {

// True if no element is infinite or no number.
template <class T>
MB_INLINE bool all_finite(const Tensor& x) {
  for (int i = 0; i < x.count; ++i) {
    const T each = x.as<T>()[i];
    if (!(each - each == 0)) return false;
  }
  return true;
}

// g: all gradients, which stay as they are; scale: [1]; good: [1], how many updates there were since the scale changed.
// Parameters: updates from one doubling to the next.
template <class T>
Status adapt_loss_scale(const Call& call) {
  const Tensor &g = call[0], &scale = call[1], &good = call[2];
  if (scale.count != 1 || good.count != 1) return Status::kBadPlan;
  constexpr float kLargest = 0x1p24f, kSmallest = 0x1p-24f;
  float *factor = scale.as<float>(), *updates = good.as<float>();
  if (!all_finite<T>(g)) {
    *updates = 0;
    if (*factor > kSmallest) *factor *= 0.5f;
    return Status::kSkipUpdate;
  }
  *updates += 1;
  if (*updates >= static_cast<float>(call.params[0])) {
    *updates = 0;
    if (*factor < kLargest) *factor *= 2;
  }
  return Status::kOk;
}

MB_INSTANTIATE_ADAPT_LOSS_SCALE

}  // namespace minbuild
