// Functions of one element, over any shape.
#include "lib/loops/elementwise_functions.h"
#include "lib/types/storage_type.h"

namespace minbuild {

// On vectors of real numbers, or on single integers, which wrap around.
template <class T, class F>
MB_INLINE Status of_number(const Call& call, F f) {
  if constexpr (Stored<T>::is_real) {
    return map<kBaseline, T>(call, f, 1);
  } else {
    const Tensor &y = call[0], &x = call[1];
    if (x.count != y.count) return Status::kBadPlan;
    for (int i = 0; i < y.count; ++i) y.as<T>()[i] = f(x.as<T>()[i]);
    return Status::kOk;
  }
}
struct LogOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return log(x);
  }
};
struct ExpOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return exp(x);
  }
};
struct ErfOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return erf(x);
  }
};

template <class T>
Status neg(const Call& call) {
  return of_number<T>(call, NegOf{});
}
template <class T>
Status abs(const Call& call) {
  return of_number<T>(call, AbsOf{});
}
template <class T>
Status sign(const Call& call) {
  return of_number<T>(call, SignOf{});
}
template <class T>
Status log(const Call& call) {
  return map_padded<kBaseline, T>(call, LogOf{}, 1);
}
template <class T>
Status sqrt(const Call& call) {
  return map<kBaseline, T>(call, SqrtOf{}, 1);
}
template <class T>
Status exp(const Call& call) {
  return map_padded<kWidest, T>(call, ExpOf{}, 1);
}
template <class T>
Status erf(const Call& call) {
  return map_padded<kWidest, T>(call, ErfOf{}, 1);
}
template <class T>
Status reciprocal(const Call& call) {
  return map<kBaseline, T>(call, ReciprocalOf{}, 1);
}

MB_INSTANTIATE_UNARY

}  // namespace minbuild
