// IsNaN and IsInf, over any shape.
#include "minbuild/kernel.h"

namespace minbuild {

// y = whether x is no number
template <class T>
Status is_nan(const Call& call) {
  const Tensor &y = call[0], &x = call[1];
  if (x.count != y.count) return Status::kBadPlan;
  for (int i = 0; i < y.count; ++i) y.as<uint8_t>()[i] = x.as<T>()[i] != x.as<T>()[i];
  return Status::kOk;
}

// y = whether x is infinite, of the signs that count. params: negative, positive
template <class T>
Status is_inf(const Call& call) {
  const Tensor &y = call[0], &x = call[1];
  if (x.count != y.count) return Status::kBadPlan;
  constexpr T kInfinity = static_cast<T>(__builtin_inff());
  bool negative = call.params[0] != 0, positive = call.params[1] != 0;
  for (int i = 0; i < y.count; ++i) {
    T value = x.as<T>()[i];
    y.as<uint8_t>()[i] = (negative & (value == -kInfinity)) | (positive & (value == kInfinity));
  }
  return Status::kOk;
}

MB_INSTANTIATE_SPECIAL_VALUES

}  // namespace minbuild
