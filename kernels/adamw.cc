// AdamW over all trained parameters at once: they lie one after the other, and so do gradients and moments.
#include "shared/elementwise.h"
#include "shared/math.h"

namespace minbuild {

// High 64 bits of the 128-bit product.
MB_INLINE uint64_t multiply_high(uint64_t a, uint64_t b) {
#ifdef __SIZEOF_INT128__
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
#else
  uint64_t a0 = static_cast<uint32_t>(a), a1 = a >> 32, b0 = static_cast<uint32_t>(b), b1 = b >> 32;
  uint64_t middle = a1 * b0 + (a0 * b0 >> 32);
  return a1 * b1 + (middle >> 32) + ((a0 * b1 + static_cast<uint32_t>(middle)) >> 32);
#endif
}

// base^exponent for 0 <= base < 1, correctly rounded in all but rare cases: the power is taken in 64-bit fixed point,
// because 1 - base^exponent cancels and would show every error of a float product.
inline float power(float base, int64_t exponent) {
  constexpr float kTwo63 = 9223372036854775808.0f;
  uint64_t factor = static_cast<uint64_t>(base * kTwo63) * 2, result = ~uint64_t{0};
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result = multiply_high(result, factor);
    factor = multiply_high(factor, factor);
  }
  return static_cast<float>(result >> 1) / kTwo63;
}

// All factors of one update, the same for every element.
template <class T>
struct AdamW {
  T *p, *m, *v;
  const T* g;
  T alpha, beta, epsilon, decay, step_size, second;
  bool decays_first;
};

template <class T>
struct AdamWBody {
  template <class V>
  static MB_INLINE void step(int i, const AdamW<T>* all) {
    const AdamW<T>& a = *all;
    bool first = MB_ADAMW_DECAY_FIRST && a.decays_first;
    V p = V::load(a.p + i), g = V::load(a.g + i), m = V::load(a.m + i), v = V::load(a.v + i);
    if (first) p = p - p * V(a.decay);
    m = V(a.alpha) * m + V(T(1) - a.alpha) * g;
    v = V(a.beta) * v + V(T(1) - a.beta) * (g * g);
    V scale = sqrt(first ? v / V(a.second) : v);
    p = p - V(a.step_size) * m / (scale + V(a.epsilon));
    if (MB_ADAMW_DECAY && !first) p = p - V(a.decay) * p;
    p.store(a.p + i), m.store(a.m + i), v.store(a.v + i);
  }
};

// p, g, m, v: equally long; rate: learning rate; step: counts from 1.
// m = alpha m + (1 - alpha) g;  v = beta v + (1 - beta) g^2
// mode 1: p -= rate sqrt(1 - beta^t) / (1 - alpha^t) m / (sqrt(v) + epsilon), then p -= rate decay p
// mode 0: p -= rate decay p, then p -= rate / (1 - alpha^t) m / (sqrt(v / (1 - beta^t)) + epsilon)
template <class T>
Status adamw(const Call& call) {
  const Tensor &p = call[0], &m = call[1], &v = call[2], &g = call[3];
  if (m.count != p.count || v.count != p.count || g.count != p.count || call[4].count != 1 || call[5].count != 1)
    return Status::kBadPlan;
  float rate = call[4].as<float>()[0];
  int64_t step = call[5].as<int64_t>()[0];
  float alpha = call.real(0), beta = call.real(1);
  bool corrects = call.params[4] != 0;
  float first = corrects ? 1.0f - power(alpha, step) : 1.0f, second = corrects ? 1.0f - power(beta, step) : 1.0f;
  bool decays_first = MB_ADAMW_DECAY_FIRST && call.params[5] == 0;
  float step_size = (decays_first ? rate : rate * __builtin_sqrtf(second)) / first;
  AdamW<T> all = {p.as<T>(), m.as<T>(), v.as<T>(), g.as<T>(), T(alpha), T(beta), T(call.real(2)),
                  T(rate * call.real(3)), T(step_size), T(second), decays_first};
  for_range<T, AdamWBody<T>>(p.count, static_cast<const AdamW<T>*>(&all));
  return Status::kOk;
}

MB_INSTANTIATE_ADAMW

}  // namespace minbuild
