// Optimizers with one moment, over all trained parameters at once: they lie one after the other, and so do gradients
// and moments.
#include "shared/elementwise.h"
#include "shared/math.h"

namespace minbuild {

// What a step is made of. `step` updates a moment and says which way to go.
template <class T>
struct MomentumRule {
  T rate, decay, momentum;
  bool nesterov;
  template <class V>
  MB_INLINE V step(V& m, V g) const {
    m = muladd(V(momentum), m, g);
    return nesterov ? muladd(V(momentum), m, g) : m;
  }
};
template <class T>
struct ScalingRule {
  T rate, decay, keep, take, epsilon;
  template <class V>
  MB_INLINE V step(V& m, V g) const {
    m = muladd(V(take) * g, g, V(keep) * m);
    return g / (sqrt(m) + V(epsilon));
  }
};

template <class T, class Rule>
struct DescendBody {
  template <class V>
  static MB_INLINE void step(int i, Rule rule, T* p, T* m, const T* g) {
    V from = V::load(p + i), moment = V::load(m + i);
    V direction = rule.step(moment, muladd(V(rule.decay), from, V::load(g + i)));
    muladd(V(-rule.rate), direction, from).store(p + i);
    moment.store(m + i);
  }
};

// p, m, g, rate
template <class T, class Rule>
MB_INLINE Status descend(const Call& call, Rule rule) {
  const Tensor &p = call[0], &m = call[1], &g = call[2], &rate = call[3];
  if (m.count != p.count || g.count != p.count || rate.count != 1) return Status::kBadPlan;
  rule.rate = *rate.as<float>();
  rule.decay = call.real(0);
  stream_range<T, DescendBody<T, Rule>>(p.count, rule, p.as<T>(), m.as<T>(), static_cast<const T*>(g.as<T>()));
  return Status::kOk;
}

// g += decay p;  m = momentum m + g;  p -= rate m, or p -= rate (g + momentum m)
template <class T>
Status momentum(const Call& call) {
  MomentumRule<T> rule;
  rule.momentum = call.real(1);
  rule.nesterov = call.params[2] != 0;
  return descend<T>(call, rule);
}

// g += decay p;  m = keep m + take g^2;  p -= rate g / (sqrt(m) + epsilon)
template <class T>
Status scaled_descent(const Call& call) {
  ScalingRule<T> rule;
  rule.keep = call.real(1);
  rule.take = call.real(2);
  rule.epsilon = call.real(3);
  return descend<T>(call, rule);
}

MB_INSTANTIATE_FLAT_OPTIMIZERS

}  // namespace minbuild
