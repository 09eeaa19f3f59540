// Gelu with the normal distribution or with an approximation of it, and the gradients, over any shape.
#include "lib/simd/sigmoid.h"
#include "lib/loops/elementwise.h"

namespace minbuild {

// The probability that a normal variable is below x.
template <class T, int N>
MB_INLINE Vec<T, N> below(Vec<T, N> x) {
  using V = Vec<T, N>;
  return muladd(V(T(0.5)), erf(x * V(T(0.70710678118654752440))), V(T(0.5)));
}

struct GeluOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return x * below(x);
  }
};

// y = x * P(X < x) for a normal X
template <class T>
Status gelu(const Call& call) {
  return map_padded<kWidest, T>(call, GeluOf{}, 1);
}

template <class T>
struct GeluGradOf {
  template <class V>
  MB_INLINE V operator()(V dy, V x) const {
    V density = V(T(0.39894228040143267794)) * exp(V(T(-0.5)) * x * x);
    return dy * muladd(x, density, below(x));
  }
};

// dx = dy * (P(X < x) + x * density(x))
template <class T>
Status gelu_grad(const Call& call) {
  return map_padded<kWidest, T>(call, GeluGradOf<T>{}, 1, 2);
}

// Of u = sqrt(2/pi) * (x + 0.044715 x^3), (1 + tanh(u)) / 2 is sigmoid(2u), which takes less.
template <class T>
struct FastGeluOf {
  static constexpr T kLinear = T(1.5957691216057307117), kCubic = kLinear * T(0.044715);

  template <class V>
  MB_INLINE V operator()(V x) const {
    return x * sigmoid(x * muladd(V(kCubic), x * x, V(kLinear)));
  }
};

// y = x * (1 + tanh(u)) / 2
template <class T>
Status fast_gelu(const Call& call) {
  return map_padded<kWidest, T>(call, FastGeluOf<T>{}, 1);
}

template <class T>
struct FastGeluGradOf {
  template <int N>
  MB_INLINE Vec<T, N> operator()(Vec<T, N> dy, Vec<T, N> x) const {
    using V = Vec<T, N>;
    using F = FastGeluOf<T>;
    V square = x * x, slope = x * muladd(V(3 * F::kCubic), square, V(F::kLinear));
    SigmoidAndSlope<T, N> s(x * muladd(V(F::kCubic), square, V(F::kLinear)));
    return dy * muladd(slope, s.slope, s.value);
  }
};

// dx = dy * (s + s * (1 - s) * x * 2 du/dx), s = sigmoid(2u)
template <class T>
Status fast_gelu_grad(const Call& call) {
  return map_padded<kWidest, T>(call, FastGeluGradOf<T>{}, 1, 2);
}

MB_INSTANTIATE_GELU

}  // namespace minbuild
