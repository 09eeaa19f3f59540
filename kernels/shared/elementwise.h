// Elementwise drivers. A kernel brings a functor over vectors; the loops over memory are written here once.
#ifndef MINBUILD_SHARED_ELEMENTWISE_H_
#define MINBUILD_SHARED_ELEMENTWISE_H_

#include "minbuild/kernel.h"

namespace minbuild {

// y[i] = f(x0[i], x1[i], ...) over contiguous elements; y may be one of the inputs.
template <class T, class F>
struct MapBody {
  template <class W, class... X>
  static MB_INLINE void run(F f, int count, T* y, X... x) {
    using V = typename W::template of<T>;
    int i = 0;
    for (; i <= count - V::size; i += V::size) f(V::load(x + i)...).store(y + i);
    int rest = count - i;
    if (rest > 0) f(V::load(x + i, rest)...).store(y + i, rest);
  }
};

template <class T, class F, class... X>
MB_INLINE void map_range(F f, int count, T* y, X... x) {
  dispatch<MapBody<T, F>>(f, count, y, x...);
}

// One output (argument 0) and as many inputs of the same shape as follow in `inputs`.
template <class T, class F, class... Index>
MB_INLINE Status map(const Call& call, F f, Index... inputs) {
  bool same = ((call[inputs].count == call[0].count) && ...);
  if (!same) return Status::kBadPlan;
  map_range<T>(f, call[0].count, call[0].as<T>(), static_cast<const T*>(call[inputs].template as<T>())...);
  return Status::kOk;
}

}  // namespace minbuild
#endif  // MINBUILD_SHARED_ELEMENTWISE_H_
