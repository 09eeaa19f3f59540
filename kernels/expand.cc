// Expand to a larger shape, and multiplication by one number on the way: the gradients of means are both.
#include "shared/broadcast.h"
#include "shared/stored.h"

namespace minbuild {

// The number to multiply with: two parameters as an element of T, or a size, or one over a size.
template <class T>
MB_INLINE T factor_of(const Call& call) {
  T factor;
  __builtin_memcpy(&factor, call.params + 2, sizeof(T));
#if MB_EXPAND_EXTENT
  if constexpr (Stored<T>::is_real) {
    T size = static_cast<T>(call[2].count);
    if (call.params[4] > 0) factor = size;
    if (call.params[4] < 0) factor = T(1) / size;
  }
#endif
  return factor;
}

// b is the factor
template <class T>
MB_NOINLINE void expand_loop(void* y, const void* a, int a_mask, const void* b, int, int count) {
  T factor = *static_cast<const T*>(b);
  for (int i = 0; i < count; ++i) static_cast<T*>(y)[i] = static_cast<T>(static_cast<const T*>(a)[i & a_mask] * factor);
}

// y = x * factor, x repeated along the axes where it has size 1
template <class Element>
Status expand(const Call& call) {
  using T = typename Stored<Element>::type;
  T value = factor_of<T>(call);
  Tensor factor;
  factor.data = reinterpret_cast<char*>(&value);
  factor.count = 1;
  return broadcast<MB_EXPAND_BROADCAST>(call, &call[1], &factor, sizeof(T), sizeof(T), expand_loop<T>);
}

MB_INSTANTIATE_EXPAND

}  // namespace minbuild
