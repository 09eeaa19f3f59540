// Gives every element the same value.
#include "lib/loops/fill.h"

namespace minbuild {

// y = value: argument 1, or else the two parameters as an element of the size of T.
template <class T>
Status fill(const Call& call) {
  const Tensor &y = call[0], &value = call[1];
  T element;
  __builtin_memcpy(&element, call.params, sizeof(T));
  if (value) {
    if (value.count != 1) return Status::kBadPlan;
    element = *value.as<T>();
  }
  fill_range(y.as<T>(), y.count, element);
  return Status::kOk;
}

MB_INSTANTIATE_FILL

}  // namespace minbuild
