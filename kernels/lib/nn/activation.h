// The activations of recurrent networks, and their slopes from their values.
#ifndef MINBUILD_LIB_NN_ACTIVATION_H_
#define MINBUILD_LIB_NN_ACTIVATION_H_

#include "lib/loops/elementwise.h"
#include "lib/simd/math.h"
#include "lib/simd/expm1_log1p.h"

namespace minbuild {

// A function and its two numbers, as three words of a plan. The order is that of ops/recurrent/recurrent.py.
struct Activation {
  // clang-format off
  enum Kind : int32_t {
    kSigmoid, kTanh, kRelu, kAffine, kLeakyRelu, kThresholdedRelu, kScaledTanh, kHardSigmoid, kElu, kSoftsign, kSoftplus
  };
  // clang-format on
  int32_t kind;
  float alpha, beta;
};

struct SigmoidFunction {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return sigmoid(x);
  }
};
struct TanhFunction {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return tanh(x);
  }
};
struct UncommonActivation {
  Activation a;

  template <class T, int N>
  MB_INLINE Vec<T, N> operator()(Vec<T, N> x) const {
    using V = Vec<T, N>;
    V zero = T(0), one = T(1), alpha = T(a.alpha), beta = T(a.beta);
    switch (a.kind) {
      case Activation::kRelu: return max(zero, x);
      case Activation::kAffine: return muladd(alpha, x, beta);
      case Activation::kLeakyRelu: return select(x < zero, alpha * x, x);
      case Activation::kThresholdedRelu: return select(x < alpha, zero, x);
      case Activation::kScaledTanh: return alpha * tanh(beta * x);
      case Activation::kHardSigmoid: return min(one, max(zero, muladd(alpha, x, beta)));
      case Activation::kElu: return select(x < zero, alpha * expm1(min(zero, x)), x);
      case Activation::kSoftsign: return x / (one + abs(x));
      default: return max(zero, x) + log1p(exp(-abs(x)));
    }
  }
};
struct SeldomSlope {
  Activation a;

  template <class T, int N>
  MB_INLINE Vec<T, N> operator()(Vec<T, N> y) const {
    using V = Vec<T, N>;
    V zero = T(0), one = T(1), alpha = T(a.alpha), beta = T(a.beta), rest;
    switch (a.kind) {
      case Activation::kRelu: return select(y > zero, one, zero);
      case Activation::kAffine: return alpha;
      case Activation::kLeakyRelu: return select(y > zero, one, alpha);
      case Activation::kThresholdedRelu: return select(y == zero, zero, one);
      case Activation::kScaledTanh: return beta * (alpha - y * y / alpha);
      case Activation::kHardSigmoid: return select((y > zero) & (y < one), alpha, zero);
      case Activation::kElu: return select(y > zero, one, y + alpha);
      case Activation::kSoftsign: rest = one - abs(y); return rest * rest;
      default: return -expm1(-y);
    }
  }
};

template <class T, class F>
struct FunctionLoop {
  template <class W>
  static MB_INLINE void run(F f, int left, T* x) {
    using V = typename W::template of<T>;
    for (; left > 0; left -= V::size, x += V::size) f(V::load(x, left)).store(x, left);
  }
};

// x = f(x). `kAny`: other functions than the sigmoid and tanh may be asked for.
template <class T, bool kAny>
MB_NOINLINE void activate(const Activation& a, T* x, int count) {
  if (a.kind == Activation::kSigmoid) return dispatch<FunctionLoop<T, SigmoidFunction>>(SigmoidFunction{}, count, x);
  if (!kAny || a.kind == Activation::kTanh) return dispatch<FunctionLoop<T, TanhFunction>>(TanhFunction{}, count, x);
  if constexpr (kAny)
    FunctionLoop<T, UncommonActivation>::template run<Width<kNarrowBytes>>(UncommonActivation{a}, count, x);
}

// The same of what is first limited to [-limit, limit].
template <class T>
struct LimitBody {
  template <class V>
  static MB_INLINE void step(int i, T* x, T limit) {
    max(V(-limit), min(V(limit), V::load(x + i))).store(x + i);
  }
};
template <class T, bool kAny>
MB_INLINE void activate_limited(const Activation& a, T* x, int count, float limit) {
  if (kAny && limit < __builtin_inff()) for_range<kBaseline, T, LimitBody<T>>(count, x, T(limit));
  activate<T, kAny>(a, x, count);
}

template <class T>
struct SigmoidSlopeBody {
  template <class V>
  static MB_INLINE void step(int i, T* d, const T* y) {
    V value = V::load(y + i);
    (V::load(d + i) * (value * (V(T(1)) - value))).store(d + i);
  }
};
template <class T>
struct TanhSlopeBody {
  template <class V>
  static MB_INLINE void step(int i, T* d, const T* y) {
    V value = V::load(y + i);
    (V::load(d + i) * (V(T(1)) - value * value)).store(d + i);
  }
};
template <class T>
struct InsideBody {
  template <class V>
  static MB_INLINE void step(int i, T* d, const T* y, T low, T high) {
    V value = V::load(y + i);
    select((value > V(low)) & (value < V(high)), V::load(d + i), V(T(0))).store(d + i);
  }
};

// d *= f'(x), where y = f(x).
template <class T, bool kAny>
MB_NOINLINE void multiply_by_slope(const Activation& a, const T* y, T* d, int count) {
  if (a.kind == Activation::kSigmoid) return for_range<kBaseline, T, SigmoidSlopeBody<T>>(count, d, y);
  if (!kAny || a.kind == Activation::kTanh) return for_range<kBaseline, T, TanhSlopeBody<T>>(count, d, y);
  if constexpr (kAny) {
    using V = Width<kNarrowBytes>::of<T>;
    SeldomSlope slope{a};
    for (; count > 0; count -= V::size, d += V::size, y += V::size)
      (V::load(d, count) * slope(V::load(y, count))).store(d, count);
  }
}

template <class T>
MB_INLINE T magnitude(T x) {
  return x < 0 ? -x : x;
}

// The same where x was limited first: nothing flows where it was, which the value tells but for rounding, since all
// functions are monotone.
template <class T, bool kAny>
MB_INLINE void multiply_by_limited_slope(const Activation& a, const T* y, T* d, int count, float limit) {
  if (kAny && limit < __builtin_inff()) {
    T ends[2] = {T(-limit), T(limit)};
    activate<T, kAny>(a, ends, 2);
    const bool falls = ends[1] < ends[0];
    const T unit = sizeof(T) == 4 ? T(1e-6) : T(1e-15), low = ends[falls], high = ends[!falls];
    for_range<kBaseline, T, InsideBody<T>>(count, d, y, low + unit * magnitude(low), high - unit * magnitude(high));
  }
  multiply_by_slope<T, kAny>(a, y, d, count);
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_NN_ACTIVATION_H_
