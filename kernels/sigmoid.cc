// Sigmoid and its gradient, over any shape.
#include "shared/elementwise.h"
#include "shared/math.h"
#include "shared/slow_map.h"

namespace minbuild {

struct SigmoidOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return sigmoid(x);
  }
};

// y = 1 / (1 + e^-x)
template <class T>
Status sigmoid(const Call& call) {
  return map_slow<T>(call, SigmoidOf{});
}

struct SigmoidGradOf {
  template <class V>
  MB_INLINE V operator()(V dy, V y) const {
    return dy * y * (V(1) - y);
  }
};

// dx = dy * y * (1 - y), where y = sigmoid(x)
template <class T>
Status sigmoid_grad(const Call& call) {
  return stream<T>(call, SigmoidGradOf{}, 1, 2);
}

MB_INSTANTIATE_SIGMOID

}  // namespace minbuild
