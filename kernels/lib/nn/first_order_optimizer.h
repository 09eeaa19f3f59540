// Optimizers with one moment: rules that say which way to go, and the step that goes there.
#ifndef MINBUILD_LIB_NN_FIRST_ORDER_OPTIMIZER_H_
#define MINBUILD_LIB_NN_FIRST_ORDER_OPTIMIZER_H_

#include "lib/loops/elementwise.h"
#include "lib/simd/math.h"

namespace minbuild {

// `step` updates a moment, given the gradient, and answers with the direction.
// m = momentum m + take g; direction: m, or g + momentum m
template <class T>
struct MomentumRule {
  T rate, decay, momentum, take;
  bool nesterov;
  template <class V>
  MB_INLINE V step(V& m, V g) const {
    m = muladd(V(momentum), m, V(take) * g);
    return nesterov ? muladd(V(momentum), m, g) : m;
  }
};
// m = keep m + take g^2; direction: g / (sqrt(m) + epsilon)
template <class T>
struct ScalingRule {
  T rate, decay, keep, take, epsilon;
  template <class V>
  MB_INLINE V step(V& m, V g) const {
    m = muladd(V(take) * g, g, V(keep) * m);
    return g / (sqrt(m) + V(epsilon));
  }
};

// g += decay x; then x -= rate direction. Results may stand where x and m do; unless they are `kAsked` for, they may be
// null.
template <class T, class Rule, bool kAsked>
struct DescendBody {
  template <class V>
  static MB_INLINE void step(int i, Rule rule, T* new_x, T* new_m, const T* x, const T* m, const T* g) {
    V from = V::load(x + i), moment = V::load(m + i);
    V direction = rule.step(moment, muladd(V(rule.decay), from, V::load(g + i)));
    if (kAsked || new_x) muladd(V(-rule.rate), direction, from).store(new_x + i);
    if (kAsked || new_m) moment.store(new_m + i);
  }
};

template <class T, bool kAsked, class Rule>
MB_INLINE void descend_range(Rule rule, const Tensor& new_x, const Tensor& new_m, const Tensor& x, const Tensor& m,
                             const Tensor& g) {
  stream_range<T, DescendBody<T, Rule, kAsked>>(x.count, rule, new_x.as<T>(), new_m.as<T>(),
                                                static_cast<const T*>(x.as<T>()), static_cast<const T*>(m.as<T>()),
                                                static_cast<const T*>(g.as<T>()));
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_NN_FIRST_ORDER_OPTIMIZER_H_
