// The sigmoid together with its slope.
#ifndef MINBUILD_LIB_SIMD_SIGMOID_H_
#define MINBUILD_LIB_SIMD_SIGMOID_H_

#include "lib/simd/math.h"

namespace minbuild {

// value = 1 / (1 + e^-x), slope = value * (1 - value) without the loss of that difference where the value is near 1.
template <class T, int N>
struct SigmoidAndSlope {
  Vec<T, N> value, slope;

  MB_INLINE explicit SigmoidAndSlope(Vec<T, N> x) {
    using V = Vec<T, N>;
    V e = exp(-abs(x)), below_one = V(T(1)) / (V(T(1)) + e);
    value = select(x < V(T(0)), e * below_one, below_one);
    slope = e * below_one * below_one;
  }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_SIMD_SIGMOID_H_
