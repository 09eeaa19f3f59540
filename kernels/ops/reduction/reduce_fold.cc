// The largest, the smallest and the product of elements, and sums and means of whole numbers.
#include "minbuild/kernel.h"

namespace minbuild {

// x: [A,K,R,I,Q], folded over A, R and Q with f, from `start` on  y: [K,I]  The groups are x's axes folded together.
template <class T, class F>
MB_INLINE Status fold(const Call& call, T start, F f) {
  const Tensor &y = call[0], &x = call[1], &groups = call[2];
  if (groups.rank != 5 || groups.count != x.count) return Status::kBadPlan;
  const int32_t* size = groups.dims;
  const int kept = size[1], reduced = size[2], inner = size[3], last = size[4];
  if (y.count != int64_t(kept) * inner) return Status::kBadPlan;
  T* to = y.as<T>();
  for (int i = 0; i < y.count && !call.adds(0); ++i) to[i] = start;
  const T* from = x.as<T>();
  for (int row = 0, left = x.count; left > 0; ++row) {
    T* each = to + row / reduced % kept * inner;
    for (int i = 0; i < inner; ++i) {
      T so_far = each[i];
      for (int q = 0; q < last; ++q) so_far = f(so_far, *from++);
      each[i] = so_far;
    }
    left -= inner * last;
  }
  return Status::kOk;
}

// The bounds of a type: infinities, or the ends of whole numbers.
template <class T>
MB_INLINE T end_of(bool largest) {
  constexpr bool real = T(0.5) != T(0) && T(1.5) != T(1), is_signed = T(-1) < T(0);
  if constexpr (real) {
    return static_cast<T>(largest ? __builtin_inff() : -__builtin_inff());
  } else {
    T top = is_signed ? static_cast<T>((uint64_t{1} << (sizeof(T) * 8 - 1)) - 1) : static_cast<T>(-1);
    return largest ? top : static_cast<T>(is_signed ? -top - 1 : 0);
  }
}

// The largest element, or the smallest; no number if one of them is none.
template <class T>
Status reduce_extremum(const Call& call) {
  if (MB_REDUCE_FOLD_MIN && call.params[0] != 0)
    return fold(call, end_of<T>(true), [](T a, T x) MB_LAMBDA { return x < a || x != x ? x : a; });
  if (MB_REDUCE_FOLD_MAX)
    return fold(call, end_of<T>(false), [](T a, T x) MB_LAMBDA { return x > a || x != x ? x : a; });
  return Status::kBadPlan;
}

template <class T>
Status reduce_product(const Call& call) {
  return fold(call, T(1), [](T a, T x) MB_LAMBDA { return static_cast<T>(a * x); });
}

// Sums of whole numbers wrap around. Means are rounded towards zero; the mean of nothing is 0.
template <class T>
Status reduce_integers(const Call& call) {
  Status status = fold(call, T(0), [](T a, T x) MB_LAMBDA { return static_cast<T>(uint64_t(a) + uint64_t(x)); });
  const Tensor &y = call[0], &x = call[1];
  if (MB_REDUCE_FOLD_MEAN && call.params[0] != 0 && status == Status::kOk && x.count != 0)
    for (int i = 0; i < y.count; ++i) y.as<T>()[i] /= static_cast<T>(x.count / y.count);
  return status;
}

MB_INSTANTIATE_REDUCE_FOLD

}  // namespace minbuild
