// Adam and AdamW over all trained parameters at once: they lie one after the other, and so do gradients and moments.
#include "minbuild/kernel.h"
#include "lib/simd/math.h"
#include "lib/simd/bias_correction.h"

namespace minbuild {

// The factors of one update, the same for every element.
template <class T>
struct AdamW {
  const Call* call;  // for p, m, v and g
  T one_less[2];     // 1 - alpha, 1 - beta
  T correction[2];   // 1 - alpha^t, 1 - beta^t
  T epsilon, decay, step_size;
  bool corrects_moments;  // both of them, in place of the step size
  bool decays_gradients;  // in place of parameters
};

template <class T>
struct AdamWBody {
  template <class W>
  static MB_INLINE void run(const AdamW<T>* all, int count) {
    using V = typename W::template of<T>;
    if (!MB_ADAMW_TAIL) return update<V>(*all, 0, count);
    const int whole = count - count % V::size;
    update<V>(*all, 0, whole);
    update<Vec<T, 1>>(*all, whole, count);
  }

  template <class V>
  static MB_INLINE void update(const AdamW<T>& a, intptr_t i, int count) {
    const Call& call = *a.call;
    T *ps = call[0].as<T>(), *ms = call[1].as<T>(), *vs = call[2].as<T>(), *gs = call[3].as<T>();
    const bool first = MB_ADAMW_DECAY_FIRST && a.corrects_moments, regular = MB_ADAMW_REGULAR && a.decays_gradients;
    for (; i < count; i += V::size) {
      V p = V::load(ps + i), g = V::load(gs + i), m = V::load(ms + i), v = V::load(vs + i);
      if (regular) g = g + p * V(a.decay);
      else if (MB_ADAMW_DECAY && first) p = p - p * V(a.decay);
      m = m + V(a.one_less[0]) * (g - m);
      v = v + V(a.one_less[1]) * (g * g - v);
      V scale = sqrt(first ? v / V(a.correction[1]) : v);
      p = p - V(a.step_size) * m / (scale + V(a.epsilon));
      if (MB_ADAMW_DECAY && !first) p = p - V(a.decay) * p;
      p.store(ps + i), m.store(ms + i), v.store(vs + i);
    }
  }
};

// p, g, m, v: equally long, whole vectors unless there is a tail; rate: learning rate; step: counts from 1.
// m += (1 - alpha) (g - m);  v += (1 - beta) (g^2 - v)
// mode 1: p -= rate sqrt(1 - beta^t) / (1 - alpha^t) m / (sqrt(v) + epsilon), then p -= rate decay p
// mode 0: p -= rate decay p, then p -= rate / (1 - alpha^t) m / (sqrt(v / (1 - beta^t)) + epsilon)
// mode 2: g += decay p first of all, then as mode 0 without a decay of p
// A decay of -0.0 leaves every p as it is, also -0.0, which +0.0 would not: p - 0 p is +0.0 then.
template <class T>
Status adamw(const Call& call) {
  const int count = call[0].count;
  for (int i = 1; i < 4; ++i)
    if (call[i].count != count) return Status::kBadPlan;
  if ((!MB_ADAMW_TAIL && count % (32 / int(sizeof(T))) != 0) || call[4].count != 1 || call[5].count != 1)
    return Status::kBadPlan;
  AdamW<T> all;
  all.call = &call;
  for (int i = 0; i < 2; ++i) {
    T factor = call.real(i);
    all.one_less[i] = 1 - factor;
    all.correction[i] = 1;
    if (!MB_ADAMW_UNCORRECTED || call.params[4] != 0) all.correction[i] -= power<T>(factor, *call[5].as<int64_t>());
  }
  all.corrects_moments = MB_ADAMW_DECAY_FIRST && call.params[5] != 1;
  all.decays_gradients = MB_ADAMW_REGULAR && call.params[5] == 2;
  T rate = *call[4].as<float>(), length = all.correction[1];
  length = sizeof(T) == 4 ? __builtin_sqrtf(length) : __builtin_sqrt(length);
  all.step_size = (all.corrects_moments ? rate : rate * length) / all.correction[0];
  all.epsilon = call.real(2);
  if (MB_ADAMW_DECAY) all.decay = (all.decays_gradients ? 1 : rate) * call.real(3);
  dispatch_or_single<AdamWBody<T>, T>(static_cast<const AdamW<T>*>(&all), count);
  return Status::kOk;
}

MB_INSTANTIATE_ADAMW

}  // namespace minbuild
