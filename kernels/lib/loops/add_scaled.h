// Adds one range of numbers, scaled, to another.
#ifndef MINBUILD_LIB_LOOPS_ADD_SCALED_H_
#define MINBUILD_LIB_LOOPS_ADD_SCALED_H_

#include "lib/loops/elementwise.h"

namespace minbuild {

template <class T>
struct AddScaledBody {
  template <class V>
  static MB_INLINE void step(int i, T* y, const T* x, T weight) {
    muladd(V::load(x + i), V(weight), V::load(y + i)).store(y + i);
  }
};

// y[i] += weight * x[i]
template <class T>
MB_NOINLINE void add_scaled(T* y, const T* x, T weight, int count) {
  stream_range<T, AddScaledBody<T>>(count, y, x, weight);
}

// y[i * y_step] += weight * x[i * x_step]
template <class T>
MB_NOINLINE void add_scaled_strided(T* y, int y_step, const T* x, int x_step, T weight, int count) {
  if (y_step == 1 && x_step == 1) return add_scaled(y, x, weight, count);
  for (; count > 0; --count, y += y_step, x += x_step) *y += weight * *x;
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_LOOPS_ADD_SCALED_H_
