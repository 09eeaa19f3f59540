// Optimizers with one moment: update rules that give a direction, and the step along it.
#ifndef MINBUILD_LIB_NN_FIRST_ORDER_OPTIMIZER_H_
#define MINBUILD_LIB_NN_FIRST_ORDER_OPTIMIZER_H_

#include "lib/loops/elementwise.h"
#include "lib/simd/math.h"

namespace minbuild {

// `step` updates a moment, given the gradient, and returns the direction.
// m = momentum m + (1 - beta) g; direction: m, or g + momentum m
template <class T>
struct MomentumUpdate {
  T rate, decay, momentum, one_minus_beta;
  bool nesterov;
  template <class V>
  MB_INLINE V step(V& m, V g) const {
    m = muladd(V(momentum), m, V(one_minus_beta) * g);
    return nesterov ? muladd(V(momentum), m, g) : m;
  }
};
// m = beta m + (1 - beta) g^2; direction: g / (sqrt(m) + epsilon)
template <class T>
struct ScalingUpdate {
  T rate, decay, beta, one_minus_beta, epsilon;
  template <class V>
  MB_INLINE V step(V& m, V g) const {
    m = muladd(V(one_minus_beta) * g, g, V(beta) * m);
    return g / (sqrt(m) + V(epsilon));
  }
};

// g += decay x; then x -= rate direction. Results may stand where x and m do; unless they are `kAsked` for, they may be
// null.
template <class T, class Rule, bool kAsked>
struct ApplyUpdateBody {
  template <class V>
  static MB_INLINE void step(int i, Rule rule, T* new_x, T* new_m, const T* x, const T* m, const T* g) {
    V from = V::load(x + i), moment = V::load(m + i);
    V direction = rule.step(moment, muladd(V(rule.decay), from, V::load(g + i)));
    if (kAsked || new_x) muladd(V(-rule.rate), direction, from).store(new_x + i);
    if (kAsked || new_m) moment.store(new_m + i);
  }
};

template <class T, bool kAsked, class Rule>
MB_INLINE void apply_update(Rule rule, const Tensor& new_x, const Tensor& new_m, const Tensor& x, const Tensor& m,
                            const Tensor& g) {
  for_range<kBaseline, T, ApplyUpdateBody<T, Rule, kAsked>>(
      x.count, rule, new_x.as<T>(), new_m.as<T>(), static_cast<const T*>(x.as<T>()), static_cast<const T*>(m.as<T>()),
      static_cast<const T*>(g.as<T>()));
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_NN_FIRST_ORDER_OPTIMIZER_H_
