// Relu, LeakyRelu and their gradients, over any shape.
#include "lib/loops/elementwise_functions.h"
#include "lib/types/storage_type.h"

namespace minbuild {

// y = max(x, 0)
template <class T>
Status relu(const Call& call) {
  if constexpr (Stored<T>::is_real) {
    return map<kBaseline, T>(call, ReluOf{}, 1);
  } else {
    const Tensor &y = call[0], &x = call[1];
    if (x.count != y.count) return Status::kBadPlan;
    for (int i = 0; i < y.count; ++i) y.as<T>()[i] = x.as<T>()[i] > 0 ? x.as<T>()[i] : T(0);
    return Status::kOk;
  }
}

// dx = dy where x > 0, else 0. `x` may as well be relu's output: both are positive at the same places.
template <class T>
Status relu_grad(const Call& call) {
  return map<kBaseline, T>(call, ReluGradOf{}, 1, 2);
}

template <class T>
struct LeakyReluGradOf {
  T alpha;

  template <class V>
  MB_INLINE V operator()(V dy, V x) const {
    return select(x > V(0), dy, V(alpha) * dy);
  }
};

// dx = dy where x > 0, else alpha * dy. params: alpha
template <class T>
Status leaky_relu_grad(const Call& call) {
  return map<kBaseline, T>(call, LeakyReluGradOf<T>{T(call.real(0))}, 1, 2);
}

template <class T>
struct LeakyReluOf {
  T alpha;

  template <class V>
  MB_INLINE V operator()(V x) const {
    return LeakyReluGradOf<T>{alpha}(x, x);
  }
};

// y = x where x > 0, else alpha * x. params: alpha
template <class T>
Status leaky_relu(const Call& call) {
  return map<kBaseline, T>(call, LeakyReluOf<T>{T(call.real(0))}, 1);
}

MB_INSTANTIATE_RELU

}  // namespace minbuild
