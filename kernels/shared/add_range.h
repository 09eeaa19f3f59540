// Adds one range of numbers to another.
#ifndef MINBUILD_SHARED_ADD_RANGE_H_
#define MINBUILD_SHARED_ADD_RANGE_H_

#include "shared/elementwise.h"

namespace minbuild {

struct AddOf {
  template <class V>
  MB_INLINE V operator()(V a, V b) const {
    return a + b;
  }
};

// y[i] += x[i]
template <class T>
MB_NOINLINE void add_range(T* y, const T* x, int count) {
  map_range<T>(AddOf{}, count, y, static_cast<const T*>(y), x);
}

}  // namespace minbuild
#endif  // MINBUILD_SHARED_ADD_RANGE_H_
