// Softplus, Mish and the gradient of Mish, over any shape.
#include "lib/simd/expm1_log1p.h"
#include "lib/loops/elementwise.h"

namespace minbuild {

struct SoftplusOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return max(V(0), x) + log1p(exp(-abs(x)));  // never overflows
  }
};

// y = log(1 + e^x)
template <class T>
Status softplus(const Call& call) {
  return map_padded<kBaseline, T>(call, SoftplusOf{}, 1);
}

// tanh(log(1 + e^x)) is n / (n + 2) with n = e^2x + 2e^x, and 1 in all digits from 20 on.
template <class T, int N>
struct MishParts {
  Vec<T, N> power, part;  // e^x, n

  MB_INLINE MishParts(Vec<T, N> x) {
    power = exp(min(Vec<T, N>(T(20)), x));
    part = power * (power + Vec<T, N>(T(2)));
  }
  MB_INLINE Vec<T, N> tanh() const { return part / (part + Vec<T, N>(T(2))); }
};

struct MishOf {
  template <class T, int N>
  MB_INLINE Vec<T, N> operator()(Vec<T, N> x) const {
    return x * MishParts<T, N>(x).tanh();
  }
};

// y = x * tanh(log(1 + e^x))
template <class T>
Status mish(const Call& call) {
  return map_padded<kBaseline, T>(call, MishOf{}, 1);
}

// With 1 - tanh^2 = 4 (n + 1) / (n + 2)^2 and n + 1 = (1 + e^x)^2, whose root goes away against the sigmoid.
struct MishGradOf {
  template <class T, int N>
  MB_INLINE Vec<T, N> operator()(Vec<T, N> dy, Vec<T, N> x) const {
    using V = Vec<T, N>;
    MishParts<T, N> m(x);
    V more = m.part + V(T(2));
    return dy * (m.tanh() + x * V(T(4)) * m.power * (m.power + V(T(1))) / (more * more));
  }
};

// dx = dy * (t + x * (1 - t^2) * sigmoid(x)), t = tanh(log(1 + e^x))
template <class T>
Status mish_grad(const Call& call) {
  return map_padded<kBaseline, T>(call, MishGradOf{}, 1, 2);
}

MB_INSTANTIATE_SOFTPLUS

}  // namespace minbuild
