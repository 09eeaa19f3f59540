// Sums over contiguous elements.
#ifndef MINBUILD_LIB_LOOPS_SUM_H_
#define MINBUILD_LIB_LOOPS_SUM_H_

#include "lib/simd/vec.h"

namespace minbuild {

// Sum of `count` elements, in partial sums so that long sums lose little and additions do not wait for each other.
template <class T>
MB_NOINLINE T sum_range(const T* x, int count) {
  using V = Width<16>::of<T>;
  V sums = T(0), others = T(0);
  int i = 0;
  for (; i <= count - 2 * V::size; i += 2 * V::size) {
    sums = sums + V::load(x + i);
    others = others + V::load(x + i + V::size);
  }
  T rest = 0;
  for (; i < count; ++i) rest += x[i];
  return sum(sums + others) + rest;
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_LOOPS_SUM_H_
