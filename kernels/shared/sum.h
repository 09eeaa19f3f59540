// Sums over contiguous elements.
#ifndef MINBUILD_SHARED_SUM_H_
#define MINBUILD_SHARED_SUM_H_

#include "shared/elementwise.h"

namespace minbuild {

constexpr int kPartialSums = 8;

// total[lane] += x[i]
template <class T>
struct PartialSums {
  template <class V>
  static MB_INLINE void step(int i, T* totals, const T* x) {
    (V::load(totals) + V::load(x + i)).store(totals);
  }
};

// Sum of `count` elements, in partial sums so that long sums lose little and lanes work side by side.
template <class T>
MB_NOINLINE T sum_range(const T* x, int count) {
  T totals[kPartialSums] = {};
  for_range<T, PartialSums<T>>(count, totals, x);
  T sum = 0;
  for (T total : totals) sum += total;
  return sum;
}

}  // namespace minbuild
#endif  // MINBUILD_SHARED_SUM_H_
