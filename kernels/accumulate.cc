// Adds a gradient to its accumulation buffer.
#include "shared/elementwise.h"

namespace minbuild {

struct SumOf {
  template <class V>
  MB_INLINE V operator()(V a, V b) const {
    return a + b;
  }
};

// buffer += value, or buffer = value when the gradients were reset
template <class T>
Status accumulate(const Call& call) {
  if (call[0].count != call[1].count) return Status::kBadPlan;
  if (call.adds(0)) return stream<T>(call, SumOf{}, 0, 1);
  __builtin_memcpy(call[0].data, call[1].data, call[0].count * sizeof(T));
  return Status::kOk;
}

MB_INSTANTIATE_ACCUMULATE

}  // namespace minbuild
