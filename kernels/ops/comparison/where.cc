// Where, over any shapes that broadcast.
#include "lib/loops/broadcast.h"

namespace minbuild {

template <class T>
MB_NOINLINE void where_loop(void* y, const void* condition, int condition_mask, const void* a, int a_mask,
                            const void* b, int b_mask, int count) {
  for (int i = 0; i < count; ++i) {
    bool first = static_cast<const uint8_t*>(condition)[i & condition_mask] != 0;
    T left = static_cast<const T*>(a)[i & a_mask], right = static_cast<const T*>(b)[i & b_mask];
    static_cast<T*>(y)[i] = first ? left : right;
  }
}

// y = condition ? a : b, elements of the size of T
template <class T>
Status where(const Call& call) {
  constexpr int bytes = sizes_of(sizeof(T), 1, sizeof(T), sizeof(T));
  return broadcast<MB_WHERE_BROADCAST, 3>(call, &call[1], bytes, where_loop<T>);
}

MB_INSTANTIATE_WHERE

}  // namespace minbuild
