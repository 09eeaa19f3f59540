// Adds one range of numbers to another.
#ifndef MINBUILD_LIB_LOOPS_ADD_RANGE_H_
#define MINBUILD_LIB_LOOPS_ADD_RANGE_H_

#include "lib/loops/elementwise.h"

namespace minbuild {

template <class T>
struct AddBody {
  template <class V>
  static MB_INLINE void step(int i, T* y, const T* x) {
    (V::load(y + i) + V::load(x + i)).store(y + i);
  }
};

// y[i] += x[i]
template <class T>
MB_NOINLINE void add_range(T* y, const T* x, int count) {
  stream_range<T, AddBody<T>>(count, y, x);
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_LOOPS_ADD_RANGE_H_
