// Expand to a larger shape, and multiplication by one number on the way: the gradients of means are both.
#include "shared/broadcast.h"
#include "shared/stored.h"

namespace minbuild {

// The number to multiply with: the first two parameters as an element of T, times or divided by a size.
template <class T>
MB_INLINE T factor_of(const Call& call) {
  T factor;
  __builtin_memcpy(&factor, call.params, sizeof(T));
#if MB_EXPAND_EXTENT
  if constexpr (Stored<T>::is_real) {
    T size = static_cast<T>(call[2].count);
    if (call.params[2] > 0) factor = size;
    if (call.params[2] < 0) factor = T(1) / size;
  }
#endif
  return factor;
}

// b is the factor
template <class T>
MB_NOINLINE void expand_loop(T* y, const T* a, int a_mask, const T* b, int, int count) {
  T factor = b[0];
  for (int i = 0; i < count; ++i) y[i] = static_cast<T>(a[i & a_mask] * factor);
}

// y = x * factor, x repeated along the axes where it has size 1
template <class Element>
Status expand(const Call& call) {
  using T = typename Stored<Element>::type;
  T value = factor_of<T>(call);
  Tensor factor;
  factor.data = reinterpret_cast<char*>(&value);
  factor.count = 1;
  factor.rank = 0;
#if MB_EXPAND_BROADCAST
  return broadcast<T, T>(call[0], call[1], factor, expand_loop<T>);
#else
  return broadcast_scalars<T, T>(call[0], call[1], factor, expand_loop<T>);
#endif
}

MB_INSTANTIATE_EXPAND

}  // namespace minbuild
