// Tanh and its gradient, over any shape.
#include "shared/elementwise.h"
#include "shared/math.h"

namespace minbuild {

struct TanhOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return tanh(x);
  }
};

// y = tanh(x)
template <class T>
Status tanh(const Call& call) {
  return map<T>(call, TanhOf{}, 1);
}

struct TanhGradOf {
  template <class V>
  MB_INLINE V operator()(V dy, V y) const {
    return dy * (V(1) - y * y);
  }
};

// dx = dy * (1 - y^2), where y = tanh(x)
template <class T>
Status tanh_grad(const Call& call) {
  return map<T>(call, TanhGradOf{}, 1, 2);
}

MB_INSTANTIATE_TANH

}  // namespace minbuild
