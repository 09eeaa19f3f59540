// Hyperbolic functions but tanh, and their inverses, over any shape.
#include "lib/simd/expm1_log1p.h"
#include "lib/loops/elementwise.h"

namespace minbuild {

// Far from zero e^|x| / 2 and its inverse, in two factors because e^|x| overflows too early; near zero with the help of
// what is accurate there.
struct SinhOf {
  template <class T, int N>
  MB_INLINE Vec<T, N> operator()(Vec<T, N> x) const {
    using V = Vec<T, N>;
    V a = abs(x), half = exp(a * V(T(0.5))), small = expm1(min(V(T(1)), a));
    V far = V(T(0.5)) * half * half - V(T(0.5)) / half / half;
    V near = V(T(0.5)) * (small + small / (small + V(T(1))));
    return with_sign_of(select(a < V(T(1)), near, far), x);
  }
};
struct CoshOf {
  template <class T, int N>
  MB_INLINE Vec<T, N> operator()(Vec<T, N> x) const {
    using V = Vec<T, N>;
    V half = exp(abs(x) * V(T(0.5)));
    return V(T(0.5)) * half * half + V(T(0.5)) / half / half;
  }
};

// log(1 + small) up to a bound beyond which 1 + x is x, log(x) + log(2) from there.
template <class T, int N>
MB_INLINE Vec<T, N> log_either(Vec<T, N> x, Vec<T, N> small) {
  using V = Vec<T, N>;
  auto large = x > V(T(typename LaneBits<T>::type(1) << (Format<T>::mantissa + 2)));
  V y = log1p(select(large, x, small));
  return select(large, y + V(T(0.6931471805599453)), y);
}
struct AsinhOf {
  template <class T, int N>
  MB_INLINE Vec<T, N> operator()(Vec<T, N> x) const {
    using V = Vec<T, N>;
    V a = abs(x), square = a * a;
    return with_sign_of(log_either(a, a + square / (V(T(1)) + sqrt(V(T(1)) + square))), x);
  }
};
struct AcoshOf {
  template <class T, int N>
  MB_INLINE Vec<T, N> operator()(Vec<T, N> x) const {
    using V = Vec<T, N>;
    V t = x - V(T(1));
    return log_either(x, t + sqrt(t) * sqrt(x + V(T(1))));
  }
};
struct AtanhOf {
  template <class T, int N>
  MB_INLINE Vec<T, N> operator()(Vec<T, N> x) const {
    using V = Vec<T, N>;
    V a = abs(x);
    V y = V(T(0.5)) * log1p((a + a) / (V(T(1)) - a));
    return with_sign_of(select(a > V(T(1)), (x - x) / (x - x), y), x);
  }
};

template <class T>
Status sinh(const Call& call) {
  return map_padded<kBaseline, T>(call, SinhOf{}, 1);
}
template <class T>
Status cosh(const Call& call) {
  return map_padded<kBaseline, T>(call, CoshOf{}, 1);
}
template <class T>
Status asinh(const Call& call) {
  return map_padded<kBaseline, T>(call, AsinhOf{}, 1);
}
template <class T>
Status acosh(const Call& call) {
  return map_padded<kBaseline, T>(call, AcoshOf{}, 1);
}
template <class T>
Status atanh(const Call& call) {
  return map_padded<kBaseline, T>(call, AtanhOf{}, 1);
}

MB_INSTANTIATE_HYPERBOLIC

}  // namespace minbuild
