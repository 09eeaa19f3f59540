// Takes slices of a tensor by index, and adds their gradients back.
#include "lib/loops/blas1.h"
#include "lib/threads/parallel.h"

namespace minbuild {

// whole: [A,D,B]  indices: [I], in -D..D-1  part: [A,I,B]
template <class I>
struct Slices {
  int outer, size, inner, count;
  const I* indices;

  // Reads the layout; kBadValue where an index names no slice.
  Status read(const Tensor& whole, const Tensor& part, const Tensor& index, const Tensor& groups) {
    if (groups.rank != 3 || groups.count != whole.count) return Status::kBadPlan;
    outer = groups.dims[0], size = groups.dims[1], inner = groups.dims[2], count = index.count;
    if (part.count != int64_t(outer) * count * inner) return Status::kBadPlan;
    indices = index.as<I>();
    for (int i = 0; i < count; ++i)
      if (indices[i] < -size || indices[i] >= size) return Status::kBadValue;
    return Status::kOk;
  }

  // slice(at_part, at_whole) for the first elements of every slice. A damaged plan may put what is written over the
  // indices, so they are not what they were.
#if MB_THREADS > 1
  template <class Slice>
  MB_INLINE Status each(Slice slice) const {
    return each(slice, 0, count);
  }
  template <class Slice>
  MB_INLINE Status each(Slice slice, int first, int end) const {
    for (int a = 0; a < outer; ++a) {
      int part = (a * count + first) * inner;
      for (int i = first; i < end; ++i, part += inner) {
#else
  template <class Slice>
  MB_INLINE Status each(Slice slice) const {
    int part = 0;
    for (int a = 0; a < outer; ++a) {
      for (int i = 0; i < count; ++i, part += inner) {
#endif
        I at = indices[i];
        if (at < 0) at += static_cast<I>(size);
        if (static_cast<uint64_t>(at) >= static_cast<uint64_t>(size)) return Status::kBadValue;
        slice(part, (a * size + static_cast<int>(at)) * inner);
      }
    }
    return Status::kOk;
  }
};

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
#if MB_THREADS > 1
  uint32_t failed = 0;
  for_ranges(call.team, slices.count, call[0].count * int64_t(sizeof(T)), 1, [&](intptr_t first, intptr_t count) {
    if (slices.each(copy, int(first), int(first + count)) != Status::kOk)
      __atomic_store_n(&failed, 1u, __ATOMIC_RELAXED);
  });
  return failed == 0 ? Status::kOk : Status::kBadValue;
#else
  return slices.each(copy);
#endif
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
  const int inner = slices.inner, all = dx.count / (inner > 0 ? inner : 1);
  uint32_t failed = 0;
  for_ranges(call.team, all, dx.count * int64_t(sizeof(T)), 1, [&](intptr_t some, intptr_t count) {
    const int first = int(some) * inner, size = int(count) * inner;
    if (!call.adds(0)) clear_bytes(to + first, size * sizeof(T));
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
