// Optimizers with one moment, over all trained parameters at once: they lie one after the other, and so do gradients
// and moments.
#include "lib/nn/first_order_optimizer.h"

namespace minbuild {

// p, m, g, rate
template <class T, class Rule>
MB_INLINE Status descend(const Call& call, Rule rule) {
  const Tensor &p = call[0], &m = call[1], &g = call[2], &rate = call[3];
  if (m.count != p.count || g.count != p.count || rate.count != 1) return Status::kBadPlan;
  rule.rate = *rate.as<float>();
  rule.decay = call.real(0);
  apply_update<T, true>(rule, p, m, p, m, g);
  return Status::kOk;
}

// g += decay p;  m = momentum m + g;  p -= rate m, or p -= rate (g + momentum m)
template <class T>
Status momentum(const Call& call) {
  MomentumUpdate<T> rule;
  rule.momentum = call.real(1);
  rule.one_minus_beta = 1;
  rule.nesterov = call.params[2] != 0;
  return descend<T>(call, rule);
}

// g += decay p;  m = keep m + take g^2;  p -= rate g / (sqrt(m) + epsilon)
template <class T>
Status scaled_descent(const Call& call) {
  ScalingUpdate<T> rule;
  rule.beta = call.real(1);
  rule.one_minus_beta = call.real(2);
  rule.epsilon = call.real(3);
  return descend<T>(call, rule);
}

MB_INSTANTIATE_FLAT_OPTIMIZERS

}  // namespace minbuild
