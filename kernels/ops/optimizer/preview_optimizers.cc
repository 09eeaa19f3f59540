// One step of an optimizer on one tensor, new values apart from old ones or in their place.
#include "lib/nn/first_order_optimizer.h"
#include "lib/simd/bias_correction.h"

namespace minbuild {

// Arguments: new x, new moments, each of them if asked for; rate, count of steps; x, gradient, moments.
template <int kMoments>
struct ArgumentIndex {
  static constexpr int rate = 1 + kMoments, step = rate + 1, x = step + 1, g = x + 1, moments = g + 1;

  static MB_INLINE bool fit(const Call& call) {
    for (int i = 0; i < moments + kMoments; ++i)
      if ((i > kMoments || call[i]) && call[i].count != (i == rate || i == step ? 1 : call[x].count)) return false;
    return true;
  }
};

template <class T, class Rule>
MB_INLINE Status descend_once(const Call& call, Rule rule) {
  using At = ArgumentIndex<1>;
  rule.decay = call.real(0);
  apply_update<T, false>(rule, call[0], call[1], call[At::x], call[At::moments], call[At::g]);
  return Status::kOk;
}

// g += decay x;  v = alpha v + beta g, beta 1 at step 0;  x -= rate v, or x -= rate (g + alpha v)
template <class T>
Status preview_momentum(const Call& call) {
  using At = ArgumentIndex<1>;
  if (!At::fit(call)) return Status::kBadPlan;
  MomentumUpdate<T> rule;
  rule.rate = *call[At::rate].as<T>();
  rule.momentum = call.real(1);
  rule.one_minus_beta = *call[At::step].as<int64_t>() > 0 ? call.real(2) : 1;
  rule.nesterov = call.params[3] != 0;
  return descend_once<T>(call, rule);
}

// g += decay x;  h += g^2;  x -= rate / (1 + slowing step) g / (sqrt(h) + epsilon)
template <class T>
Status preview_adagrad(const Call& call) {
  using At = ArgumentIndex<1>;
  if (!At::fit(call)) return Status::kBadPlan;
  ScalingUpdate<T> rule;
  T slowing = call.real(1);
  rule.rate = *call[At::rate].as<T>() / (1 + static_cast<T>(*call[At::step].as<int64_t>()) * slowing);
  rule.beta = rule.one_minus_beta = 1;
  rule.epsilon = call.real(2);
  return descend_once<T>(call, rule);
}

// The factors of one step of Adam, the same for every element.
template <class T>
struct AdamStep {
  T rate, decay, one_less[2], epsilon, kept;
};

template <class T>
struct AdamStepBody {
  template <class V>
  static MB_INLINE void step(int i, const AdamStep<T>* all, T* new_x, T* new_v, T* new_h, const T* xs, const T* gs,
                             const T* vs, const T* hs) {
    const AdamStep<T>& a = *all;
    V x = V::load(xs + i), v = V::load(vs + i), h = V::load(hs + i), g = muladd(V(a.decay), x, V::load(gs + i));
    v = muladd(V(a.one_less[0]), g - v, v);
    h = muladd(V(a.one_less[1]), g * g - h, h);
    if (new_v) v.store(new_v + i);
    if (new_h) h.store(new_h + i);
    x = x - V(a.rate) * v / (sqrt(h) + V(a.epsilon));
    if (new_x) (V(a.kept) * x).store(new_x + i);
  }
};

// g += decay x;  v += (1 - alpha) (g - v);  h += (1 - beta) (g^2 - h)
// x = (1 - decay_after) (x - rate sqrt(1 - beta^step) / (1 - alpha^step) v / (sqrt(h) + epsilon)), at step 0 with rate
template <class T>
Status preview_adam(const Call& call) {
  using At = ArgumentIndex<2>;
  if (!At::fit(call)) return Status::kBadPlan;
  AdamStep<T> all;
  const int64_t step = *call[At::step].as<int64_t>();
  T missing[2];
  for (int i = 0; i < 2; ++i) {
    float factor = call.real(2 + i);
    if (!(factor >= 0 && factor < 1)) return Status::kTooLarge;
    all.one_less[i] = 1 - T(factor);
    missing[i] = 1 - power<T>(factor, step);
  }
  all.rate = *call[At::rate].as<T>();
  if (step > 0) all.rate = all.rate * sqrt(Vec<T, 1>(missing[1])).v[0] / missing[0];
  all.decay = call.real(0);
  all.kept = 1 - T(call.real(1));
  all.epsilon = call.real(4);
  const T *x = call[At::x].as<T>(), *g = call[At::g].as<T>(), *v = call[At::moments].as<T>();
  for_range<kWidest, T, AdamStepBody<T>>(call[At::x].count, static_cast<const AdamStep<T>*>(&all), call[0].as<T>(),
                                         call[1].as<T>(), call[2].as<T>(), x, g, v,
                                         static_cast<const T*>(call[At::moments + 1].as<T>()));
  return Status::kOk;
}

MB_INSTANTIATE_PREVIEW_OPTIMIZERS

}  // namespace minbuild
