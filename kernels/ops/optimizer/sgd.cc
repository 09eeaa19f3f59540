// Plain gradient descent over all trained parameters at once: they lie one after the other, and so do gradients.
#include "lib/loops/elementwise.h"

namespace minbuild {

template <class T>
struct DescentOf {
  T rate;
  template <class V>
  MB_INLINE V operator()(V p, V g) const {
    return muladd(V(-rate), g, p);
  }
};

// p -= rate g
template <class T>
Status sgd(const Call& call) {
  const Tensor &p = call[0], &g = call[1], &rate = call[2];
  if (g.count != p.count || rate.count != 1) return Status::kBadPlan;
  using Body = MapBody<T, DescentOf<T>>;
  for_range<kBaseline, T, Body>(p.count, DescentOf<T>{T(rate.as<float>()[0])}, p.as<T>(), p.as<T>(), g.as<T>());
  return Status::kOk;
}

MB_INSTANTIATE_SGD

}  // namespace minbuild
