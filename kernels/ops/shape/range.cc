// Numbers at equal distances.
#include "minbuild/kernel.h"

namespace minbuild {

// y[i] = start + i * delta; two words of parameters each, as elements of T.
template <class T>
Status range(const Call& call) {
  const Tensor& y = call[0];
  T start, delta;
  __builtin_memcpy(&start, call.params, sizeof(T));
  __builtin_memcpy(&delta, call.params + 2, sizeof(T));
  T* to = y.as<T>();
  for (int i = 0; i < y.count; ++i) to[i] = static_cast<T>(start + static_cast<T>(i) * delta);
  return Status::kOk;
}

MB_INSTANTIATE_RANGE

}  // namespace minbuild
