// Products with a sigmoid: Swish, QuickGelu and the gradient of Softplus; and the gradient of Swish. Over any shape.
#include "lib/simd/sigmoid.h"
#include "lib/loops/elementwise.h"

namespace minbuild {

template <class T>
struct GatedOf {
  T alpha;

  template <class V>
  MB_INLINE V operator()(V a, V b) const {
    return a * sigmoid(V(alpha) * b);
  }
};

// y = a * sigmoid(alpha * b). params: alpha
template <class T>
Status gated(const Call& call) {
  return map_padded<kWidest, T>(call, GatedOf<T>{T(call.real(0))}, 1, 2);
}

template <class T>
struct SwishGradOf {
  T alpha;

  template <int N>
  MB_INLINE Vec<T, N> operator()(Vec<T, N> dy, Vec<T, N> x) const {
    Vec<T, N> u = Vec<T, N>(alpha) * x;
    SigmoidAndSlope<T, N> s(u);
    return dy * muladd(u, s.slope, s.value);
  }
};

// dx = dy * (s + alpha * x * s * (1 - s)), s = sigmoid(alpha * x). params: alpha
template <class T>
Status swish_grad(const Call& call) {
  return map_padded<kWidest, T>(call, SwishGradOf<T>{T(call.real(0))}, 1, 2);
}

MB_INSTANTIATE_SWISH

}  // namespace minbuild
