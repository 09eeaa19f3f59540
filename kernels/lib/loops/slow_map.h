// Elementwise functions that take much code.
#ifndef MINBUILD_LIB_LOOPS_SLOW_MAP_H_
#define MINBUILD_LIB_LOOPS_SLOW_MAP_H_

#include "minbuild/kernel.h"

namespace minbuild {

// y = f(x), arguments 0 and 1. The library holds the code of f once: vectors of 16 bytes, which every processor with
// vectors has, and of which the last is filled up with zeros.
template <class T, class F>
MB_INLINE Status map_slow(const Call& call, F f) {
  using V = Width<16>::of<T>;
  const Tensor &y = call[0], &x = call[1];
  if (x.count != y.count) return Status::kBadPlan;
  T* to = y.as<T>();
  const T* from = x.as<T>();
  for (int left = y.count; left > 0; left -= V::size, to += V::size, from += V::size)
    f(V::load(from, left)).store(to, left);
  return Status::kOk;
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_LOOPS_SLOW_MAP_H_
