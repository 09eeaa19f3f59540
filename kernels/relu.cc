// Relu and its gradient, over any shape.
#include "shared/elementwise.h"

namespace minbuild {

struct ReluOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return max(x, V(0));
  }
};

// y = max(x, 0)
template <class T>
Status relu(const Call& call) {
  return stream<T>(call, ReluOf{}, 1);
}

struct ReluGradOf {
  template <class V>
  MB_INLINE V operator()(V dy, V x) const {
    return select(x > V(0), dy, V(0));
  }
};

// dx = dy where x > 0, else 0. `x` may as well be relu's output: both are positive at the same places.
template <class T>
Status relu_grad(const Call& call) {
  return stream<T>(call, ReluGradOf{}, 1, 2);
}

MB_INSTANTIATE_RELU

}  // namespace minbuild
