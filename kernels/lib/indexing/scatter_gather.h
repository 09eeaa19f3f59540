// Elements, or slices, of one tensor that indices name, and what may be done with them. How indices are read and how
// elements are moved are compiled apart: every way of reading serves all types.
#ifndef MINBUILD_LIB_INDEXING_SCATTER_GATHER_H_
#define MINBUILD_LIB_INDEXING_SCATTER_GATHER_H_

#include "minbuild/kernel.h"

namespace minbuild {

// The reduction of an update with the element it replaces.
enum class ScatterReduction : int32_t { kReplace, kAdd, kMultiply, kMin, kMax };

template <class T>
MB_INLINE T reduce_into(ScatterReduction how, T old, T update) {
  switch (how) {
    case ScatterReduction::kAdd: return static_cast<T>(old + update);
    case ScatterReduction::kMultiply: return static_cast<T>(old * update);
    case ScatterReduction::kMin: return update < old || update != update ? update : old;
    case ScatterReduction::kMax: return update > old || update != update ? update : old;
    default: return update;
  }
}

// An index counted from the front; false where it names nothing.
MB_INLINE bool counted(int64_t& index, int32_t size) {
  if (index < 0) index += size;
  return index >= 0 && index < size;
}

// `count` indices one after the other, `inner` elements side by side at each. `next` gives the first element, or -1
// where the index names nothing.
struct IndexIterator {
  int32_t (*next)(IndexIterator& indices);
  int32_t count, inner;
};

// True if all indices exist.
MB_NOINLINE inline bool all_exist(IndexIterator& indices) {
  for (int i = 0; i < indices.count; ++i)
    if (indices.next(indices) < 0) return false;
  return true;
}

// y = what stands in x at the indices
template <class T>
MB_NOINLINE Status gather_at(const Tensor& y, const Tensor& x, IndexIterator& indices) {
  T* to = y.as<T>();
  for (int i = 0; i < indices.count; ++i) {
    int32_t place = indices.next(indices);
    if (place < 0) return Status::kBadValue;
    const T* from = x.as<T>() + place;
    for (int k = 0; k < indices.inner; ++k) *to++ = *from++;
  }
  return Status::kOk;
}

// y = x (arguments 0 and 1; zeros, or what is there, without x) with the updates (argument 3) at the indices, which
// exist: without `meets` they replace what is there.
template <class T, bool kReduces>
MB_NOINLINE Status scatter(const Call& call, IndexIterator& indices, int32_t reduction) {
  const Tensor &y = call[0], &x = call[1];
  size_t bytes = y.count * sizeof(T);
  if (!x) {
    if (!call.adds(0)) clear_bytes(y.data, bytes);
  } else if (x.count != y.count) {
    return Status::kBadPlan;
  } else if (x.data != y.data) {
    copy_bytes(y.data, x.data, bytes);
  }
  const T* from = call[3].as<T>();
  for (int i = 0; i < indices.count; ++i) {
    int32_t place = indices.next(indices);
    if (place < 0) return Status::kBadValue;  // an output over its own indices
    T* to = y.as<T>() + place;
    for (int k = 0; k < indices.inner; ++k, ++to, ++from)
      *to = kReduces ? reduce_into(static_cast<ScatterReduction>(reduction), *to, *from) : *from;
  }
  return Status::kOk;
}

// The same after all indices were looked at, so that nothing changes where one is wrong.
template <class T, bool kReduces, class Found>
MB_INLINE Status scatter_checked(const Call& call, Found indices, int32_t reduction) {
  Found first = indices;
  if (!all_exist(first)) return Status::kBadValue;
  return scatter<T, kReduces>(call, indices, reduction);
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_INDEXING_SCATTER_GATHER_H_
