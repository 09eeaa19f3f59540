// Sigmoid, Tanh and their gradients, over any shape.
#include "lib/loops/elementwise_functions.h"

namespace minbuild {

struct SigmoidOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return sigmoid(x);
  }
};
struct TanhOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return tanh(x);
  }
};

// y = 1 / (1 + e^-x)
template <class T>
Status sigmoid(const Call& call) {
  return map_padded<kWidest, T>(call, SigmoidOf{}, 1);
}

// dx = dy * y * (1 - y), where y = sigmoid(x)
template <class T>
Status sigmoid_grad(const Call& call) {
  return map<kBaseline, T>(call, SigmoidGradOf{}, 1, 2);
}

// y = tanh(x)
template <class T>
Status tanh(const Call& call) {
  return map_padded<kWidest, T>(call, TanhOf{}, 1);
}

// dx = dy * (1 - y^2), where y = tanh(x)
template <class T>
Status tanh_grad(const Call& call) {
  return map<kBaseline, T>(call, TanhGradOf{}, 1, 2);
}

MB_INSTANTIATE_SIGMOID

}  // namespace minbuild
