// Expand to a larger shape, and multiplication by one number on the way: the gradients of means are both.
#include "lib/loops/broadcast.h"
#include "lib/types/storage_type.h"

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

#if MB_EXPAND_BROADCAST
// b is the factor
template <class T>
MB_NOINLINE void expand_loop(void* y, const void* a, int a_mask, const void* b, int, int count) {
  T factor = *static_cast<const T*>(b);
  for (int i = 0; i < count; ++i) static_cast<T*>(y)[i] = static_cast<T>(static_cast<const T*>(a)[i & a_mask] * factor);
}

template <class T>
Status expand_over_axes(const Call& call, T value) {
  Tensor operands[2] = {call[1], {}};
  operands[1].data = reinterpret_cast<char*>(&value);
  operands[1].count = 1;
  return broadcast<true, 2>(call, operands, sizes_of(sizeof(T), sizeof(T), sizeof(T)), expand_loop<T>);
}
#endif

// y = x * factor, x repeated along the axes where it has size 1. The axes of most fold into two: y: [R,C],
// where x moves along one, both or neither.
template <class Element>
Status expand(const Call& call) {
  using T = typename Stored<Element>::type;
  const Tensor &y = call[0], &x = call[1], &walk = call[3];
  T factor = factor_of<T>(call);
  int moves = call.params[0], rows = 1, columns = y.count;
  if (moves == 0) {
    moves = x.count == y.count ? 2 : 0;
  } else if (walk.rank == 2) {
    rows = walk.dims[0], columns = walk.dims[1];
  } else {
#if MB_EXPAND_BROADCAST
    return expand_over_axes<T>(call, factor);
#else
    return Status::kBadPlan;
#endif
  }
  int step = moves >> 1 & 1, row = moves & 1 ? (step ? columns : 1) : 0;
  if (rows * columns != y.count || x.count != (row ? rows : 1) * (step ? columns : 1)) return Status::kBadPlan;
#if MB_THREADS > 1
  for_ranges(call.team, rows, y.count * int64_t(sizeof(T)), 1, [&](intptr_t first, intptr_t count) {
    T *to = y.as<T>() + first * columns, *from = x.as<T>() + first * row;
#else
  T *to = y.as<T>(), *from = x.as<T>();
  const intptr_t count = rows;
#endif
    for (intptr_t i = 0; i < count; ++i, from += row)
      for (int j = 0; j < columns; ++j) *to++ = static_cast<T>(from[j * step] * factor);
#if MB_THREADS > 1
  });
#endif
  return Status::kOk;
}

MB_INSTANTIATE_EXPAND

}  // namespace minbuild
