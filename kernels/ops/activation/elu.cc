// Elu, Celu and Selu, which are one function of three numbers, and its gradient, over any shape.
#include "lib/simd/expm1_log1p.h"
#include "lib/loops/elementwise.h"

namespace minbuild {

// Parameters, and numbers made of them.
template <class T>
struct EluParams {
  T slope, scale, rate;

  explicit EluParams(const Call& call) : slope(T(call.real(0))), scale(T(call.real(1))), rate(1 / T(call.real(2))) {}
};

template <class T>
struct EluOf {
  EluParams<T> p;

  template <class V>
  MB_INLINE V operator()(V x) const {
    return V(p.slope) * select(x < V(0), V(p.scale) * expm1(V(p.rate) * x), x);
  }
};

// y = slope * (x where x >= 0, else scale * (e^(x / width) - 1)). params: slope, scale, width
template <class T>
Status elu(const Call& call) {
  return map_padded<kBaseline, T>(call, EluOf<T>{EluParams<T>(call)}, 1);
}

template <class T>
struct EluGradOf {
  EluParams<T> p;

  template <class V>
  MB_INLINE V operator()(V dy, V x) const {
    return V(p.slope) * dy * select(x < V(0), V(p.scale * p.rate) * exp(V(p.rate) * x), V(1));
  }
};

// dx = dy * slope * (1 where x >= 0, else scale / width * e^(x / width)). params: slope, scale, width
template <class T>
Status elu_grad(const Call& call) {
  return map_padded<kBaseline, T>(call, EluGradOf<T>{EluParams<T>(call)}, 1, 2);
}

MB_INSTANTIATE_ELU

}  // namespace minbuild
