// Exponentials and log-softmax over ranges, shared by the softmax family.
#ifndef MINBUILD_SHARED_SOFTMAX_H_
#define MINBUILD_SHARED_SOFTMAX_H_

#include "shared/elementwise.h"
#include "shared/math.h"

namespace minbuild {

struct ExpOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return exp(x);
  }
};

// y = e^x
template <class T>
MB_NOINLINE void exp_range(T* y, const T* x, int count) {
  map_range<T>(ExpOf{}, count, y, x);
}

// A single logarithm through the vector function.
template <class T>
MB_INLINE T log_of(T x) {
  T result;
  log(Vec<T, 1>(x)).store(&result);
  return result;
}

// y[c*stride] = x[c*stride] - log(sum over c of e^x[c*stride]), computed below the maximum so that nothing overflows.
template <class T>
MB_NOINLINE void log_softmax_row(T* y, const T* x, int classes, int stride) {
  T largest = x[0], sum = 0;
  for (int c = 1; c < classes; ++c) largest = x[c * stride] > largest ? x[c * stride] : largest;
  constexpr int kChunk = 32;
  T chunk[kChunk];
  for (int first = 0; first < classes; first += kChunk) {
    int count = classes - first < kChunk ? classes - first : kChunk;
    for (int i = 0; i < count; ++i) chunk[i] = x[(first + i) * stride] - largest;
    exp_range<T>(chunk, chunk, count);
    for (int i = 0; i < count; ++i) sum += chunk[i];
  }
  // In this order nothing cancels: at the largest score the answer is the logarithm alone.
  T log_sum = log_of(sum);
  for (int c = 0; c < classes; ++c) y[c * stride] = x[c * stride] - largest - log_sum;
}

// x, y: [N,C,D], log-softmax over C
template <class T>
MB_INLINE void log_softmax(T* y, const T* x, int batch, int classes, int inner) {
  for (int n = 0; n < batch; ++n)
    for (int d = 0; d < inner; ++d)
      log_softmax_row(y + n * classes * inner + d, x + n * classes * inner + d, classes, inner);
}

}  // namespace minbuild
#endif  // MINBUILD_SHARED_SOFTMAX_H_
