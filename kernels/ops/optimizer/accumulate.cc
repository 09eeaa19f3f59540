// Adds a gradient to its accumulation buffer, or clears the buffer.
#include "lib/loops/elementwise.h"
#include "lib/types/half.h"

namespace minbuild {

struct SumOf {
  template <class V>
  MB_INLINE V operator()(V a, V b) const {
    return a + b;
  }
};

// buffer += value. Halves are added as floats.
template <class T>
MB_NOINLINE Status add_value(const Call& call) {
  if (call[0].count != call[1].count) return Status::kBadPlan;
  if constexpr (sizeof(T) > 2) {
    return map<kBaseline, T>(call, SumOf{}, 0, 1);
  } else {
    T *to = call[0].as<T>(), *from = call[1].as<T>();
    for (int i = 0; i < call[0].count; ++i) to[i] = T(float(to[i]) + float(from[i]));
    return Status::kOk;
  }
}

// buffer += value, always
template <class T>
Status add_in_place(const Call& call) {
  return add_value<T>(call);
}

// buffer += value, or buffer = value when the gradients were reset
template <class T>
Status accumulate(const Call& call) {
  if (call.adds(0)) return add_value<T>(call);
  if (call[0].count != call[1].count) return Status::kBadPlan;
  copy_bytes(call[0].data, call[1].data, call[0].count * sizeof(T));
  return Status::kOk;
}

// buffer = 0, elements of the size of T
template <class T>
Status clear(const Call& call) {
  clear_bytes(call[0].data, call[0].count * sizeof(T));
  return Status::kOk;
}

MB_INSTANTIATE_ACCUMULATE

}  // namespace minbuild
