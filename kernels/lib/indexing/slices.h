// Slices of a tensor along one axis, which indices name.
#ifndef MINBUILD_LIB_INDEXING_SLICES_H_
#define MINBUILD_LIB_INDEXING_SLICES_H_

#include "lib/threads/parallel.h"
#include "minbuild/kernel.h"

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
    return checked();
  }

  // kBadValue where an index names no slice.
  MB_INLINE Status checked() const {
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

  // The same with the slices in parts, of so many bytes in all.
  template <class Slice>
  MB_INLINE Status each_in_parts([[maybe_unused]] const Call& call, [[maybe_unused]] int64_t bytes, Slice slice) const {
#if MB_THREADS > 1
    uint32_t failed = 0;
    for_ranges(call.team, count, bytes, 1, [&](intptr_t first, intptr_t some) {
      if (each(slice, int(first), int(first + some)) != Status::kOk) __atomic_store_n(&failed, 1u, __ATOMIC_RELAXED);
    });
    return failed == 0 ? Status::kOk : Status::kBadValue;
#else
    return each(slice);
#endif
  }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_INDEXING_SLICES_H_
