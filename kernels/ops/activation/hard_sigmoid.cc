// HardSigmoid, HardSwish and their gradients, over any shape.
#include "lib/loops/elementwise.h"

namespace minbuild {

template <class T>
struct HardSigmoidOf {
  T alpha, beta;

  template <class V>
  MB_INLINE V operator()(V x) const {
    return min(V(1), max(V(0), muladd(V(alpha), x, V(beta))));  // in this order NaN stays
  }
};

// y = alpha * x + beta, bounded by 0 and 1. params: alpha, beta
template <class T>
Status hard_sigmoid(const Call& call) {
  return map<kBaseline, T>(call, HardSigmoidOf<T>{T(call.real(0)), T(call.real(1))}, 1);
}

template <class T>
struct HardSigmoidGradOf {
  T alpha, beta;

  template <class V>
  MB_INLINE V operator()(V dy, V x) const {
    V inner = muladd(V(alpha), x, V(beta));
    return select((inner > V(0)) & (inner < V(1)), V(alpha) * dy, V(0));
  }
};

// dx = alpha * dy where y is within its bounds, else 0. params: alpha, beta
template <class T>
Status hard_sigmoid_grad(const Call& call) {
  return map<kBaseline, T>(call, HardSigmoidGradOf<T>{T(call.real(0)), T(call.real(1))}, 1, 2);
}

template <class T>
struct HardSwishOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return x * HardSigmoidOf<T>{T(1) / T(6), T(0.5)}(x);
  }
};

// y = x * (x / 6 + 1/2, bounded by 0 and 1)
template <class T>
Status hard_swish(const Call& call) {
  return map<kBaseline, T>(call, HardSwishOf<T>{}, 1);
}

template <class T>
struct HardSwishGradOf {
  template <class V>
  MB_INLINE V operator()(V dy, V x) const {
    V inside = muladd(V(T(1) / T(3)), x, V(T(0.5)));
    return dy * select(x > V(-3), select(x < V(3), inside, V(1)), V(0));
  }
};

// dx = dy * (0 up to -3, x / 3 + 1/2 up to 3, then 1)
template <class T>
Status hard_swish_grad(const Call& call) {
  return map<kBaseline, T>(call, HardSwishGradOf<T>{}, 1, 2);
}

MB_INSTANTIATE_HARD_SIGMOID

}  // namespace minbuild
