// Sums, y += x and y += a x over ranges of numbers (level 1 of the BLAS).
#ifndef MINBUILD_LIB_LOOPS_BLAS1_H_
#define MINBUILD_LIB_LOOPS_BLAS1_H_

#include "lib/loops/elementwise.h"

namespace minbuild {

// Sum of `count` elements, in partial sums so that long sums lose little and additions do not wait for each other. Less
// than 32 bytes are summed from left to right on every target, as windows are (ops/pooling/average_pool.py).
template <class T>
MB_NOINLINE T sum_range(const T* x, int count) {
  using V = Width<kNarrowBytes>::of<T>;
  V sums = T(0), others = T(0);
  int i = 0;
  const int last = V::size > 1 || count >= 32 / int(sizeof(T)) ? count - 2 * V::size : -1;
  for (; i <= last; i += 2 * V::size) {
    sums = sums + V::load(x + i);
    others = others + V::load(x + i + V::size);
  }
  T rest = 0;
  for (; i < count; ++i) rest += x[i];
  return sum(sums + others) + rest;
}

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
  for_range<kBaseline, T, AddBody<T>>(count, y, x);
}

template <class T>
struct AxpyBody {
  template <class V>
  static MB_INLINE void step(int i, T* y, const T* x, T weight) {
    muladd(V::load(x + i), V(weight), V::load(y + i)).store(y + i);
  }
};

// y[i] += weight * x[i]
template <class T>
MB_NOINLINE void axpy(T* y, const T* x, T weight, int count) {
  for_range<kBaseline, T, AxpyBody<T>>(count, y, x, weight);
}

// y[i * y_step] += weight * x[i * x_step]
template <class T>
MB_NOINLINE void axpy_strided(T* y, int y_step, const T* x, int x_step, T weight, int count) {
  if (y_step == 1 && x_step == 1) return axpy(y, x, weight, count);
  for (; count > 0; --count, y += y_step, x += x_step) *y += weight * *x;
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_LOOPS_BLAS1_H_
