// Gelu with the normal distribution or with an approximation of it, and the gradients, over any shape.
#include "lib/simd/sigmoid.h"
#include "lib/loops/elementwise.h"

namespace minbuild {

constexpr int kVectors = MB_GELU_LONG && MB_SIMD ? 4 : 1;  // at once, with the same bits

// The coefficients of Mills' ratio, a polynomial of u = q / (1 + q) with q = 0.27 |x| (tests/slow/derive_polynomials.py).
struct MillsNumbers {
  float scale = 0.27f, one = 1;
  float powers[7] = {-0.132143721f, 0.230601147f, 0.299001664f, -1.37474465f, 1.95179415f, -1.47756445f, 0.5f};
};
constexpr MillsNumbers kMillsNumbers;

// Of a normal variable: e^(-x^2/2), which is its density but for a factor, and the probability that it is below x.
template <class T, int N>
struct Normal {
  using V = Vec<T, N>;
  V bell, distance, tail;  // distance: |x|; tail: the probability to be farther out on the same side

  MB_INLINE explicit Normal(V x) {
    const V exponent = V(T(-0.5)) * x * x;
    if constexpr (sizeof(T) == 4) {
      // The tail is bell times Mills' ratio.
      const MillsNumbers* c = &kMillsNumbers;
      if (kNumbersInMemory) MB_OPAQUE(c);
      bell = exp_of_negative(exponent);
      distance = min(V(4.f / 0.27f), abs(x));  // beyond, bell is 0
      V q = distance * V(c->scale), u = q / (q + V(c->one));
      tail = bell *
             poly(u, c->powers[0], c->powers[1], c->powers[2], c->powers[3], c->powers[4], c->powers[5], c->powers[6]);
    } else {
      bell = exp(exponent);
      distance = abs(x);
      tail = muladd(V(T(-0.5)), erf(distance * V(T(0.70710678118654752440))), V(T(0.5)));
    }
  }
  MB_INLINE V below(V x) const { return select(x < V(T(0)), tail, V(T(1)) - tail); }
};

struct GeluOf {
  template <class T, int N>
  MB_INLINE Vec<T, N> operator()(Vec<T, N> x) const {
    using V = Vec<T, N>;
    const Normal<T, N> normal(x);
    return muladd(-normal.distance, normal.tail, max(V(T(0)), x));
  }
};

// y = x * P(X < x) for a normal X
template <class T>
Status gelu(const Call& call) {
  return map_padded<kWidest, T, kVectors>(call, GeluOf{}, 1);
}

struct GeluGradOf {
  template <class T, int N>
  MB_INLINE Vec<T, N> operator()(Vec<T, N> dy, Vec<T, N> x) const {
    const Normal<T, N> normal(x);
    return dy * muladd(x, normal.bell * Vec<T, N>(T(0.39894228040143267794)), normal.below(x));
  }
};

// dx = dy * (P(X < x) + x * density(x))
template <class T>
Status gelu_grad(const Call& call) {
  return map_padded<kWidest, T, kVectors>(call, GeluGradOf{}, 1, 2);
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
  return map_padded<kWidest, T, kVectors>(call, FastGeluOf<T>{}, 1);
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
  return map_padded<kWidest, T, kVectors>(call, FastGeluGradOf<T>{}, 1, 2);
}

MB_INSTANTIATE_GELU

}  // namespace minbuild
