// Takes slices of a tensor by index, and adds their gradients back.
#include "lib/indexing/slices.h"
#include "lib/loops/blas1.h"
#include "lib/threads/parallel.h"

namespace minbuild {

template <class T, class I>
Status gather(const Call& call) {
  Slices<I> slices;
  Status status = slices.read(call[1], call[0], call[2], call[3]);
  if (status != Status::kOk) return status;
  T* to = call[0].as<T>();
  const T* from = call[1].as<T>();
  const auto copy = [&](int part, int whole) MB_LAMBDA {
    if (slices.inner == 1) {
      to[part] = from[whole];
    } else {
      copy_bytes(to + part, from + whole, slices.inner * sizeof(T));
    }
  };
  return slices.each_in_parts(call, call[0].count * int64_t(sizeof(T)), copy);
}

// dx = 0, then dx[index] += dy for every index: they may repeat.
template <class T, class I>
Status gather_grad(const Call& call) {
  const Tensor& dx = call[0];
  Slices<I> slices;
  Status status = slices.read(dx, call[1], call[2], call[3]);
  if (status != Status::kOk) return status;
  T* to = dx.as<T>();
  const T* from = call[1].as<T>();
#if MB_THREADS > 1
  // Parts are some slices of dx; each adds those of dy that belong there, in their order.
  constexpr int64_t kFar = 1 << 24;  // bytes that caches do not keep until gradients are read
  const bool far = dx.count * int64_t(sizeof(T)) >= kFar;
  const int inner = slices.inner, all = dx.count / (inner > 0 ? inner : 1);
  uint32_t failed = 0;
  for_ranges(call.team, all, dx.count * int64_t(sizeof(T)), 1, [&](intptr_t some, intptr_t count) {
    const int first = int(some) * inner, size = int(count) * inner;
    if (!call.adds(0)) {
      if (far) clear_past_caches(to + first, size * sizeof(T));
      else clear_bytes(to + first, size * sizeof(T));
    }
    const Status found = slices.each([&](int part, int whole) MB_LAMBDA {
      if (whole >= first && whole - first < size) add_range<T>(to + whole, from + part, inner);
    });
    if (found != Status::kOk) __atomic_store_n(&failed, 1u, __ATOMIC_RELAXED);
  });
  return failed == 0 ? Status::kOk : Status::kBadValue;
#else
  if (!call.adds(0)) clear_bytes(to, dx.count * sizeof(T));
  return slices.each([&](int part, int whole) MB_LAMBDA { add_range<T>(to + whole, from + part, slices.inner); });
#endif
}

MB_INSTANTIATE_GATHER

}  // namespace minbuild
