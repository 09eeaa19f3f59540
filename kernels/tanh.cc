// Tanh and its gradient, over any shape.
#include "shared/elementwise.h"
#include "shared/math.h"
#include "shared/slow_map.h"

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
  return map_slow<T>(call, TanhOf{});
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
  return stream<T>(call, TanhGradOf{}, 1, 2);
}

MB_INSTANTIATE_TANH

}  // namespace minbuild
