// Elements, or slices, of one tensor that indices name, and what may be done with them. How indices are read and how
// elements are moved are compiled apart: every way of reading serves all types.
#ifndef MINBUILD_LIB_INDEXING_SCATTER_GATHER_H_
#define MINBUILD_LIB_INDEXING_SCATTER_GATHER_H_

#include "minbuild/kernel.h"

namespace minbuild {

// How an update meets what is there.
enum class Meeting : int32_t { kReplace, kAdd, kMultiply, kMin, kMax };

template <class T>
MB_INLINE T met(Meeting how, T old, T update) {
  switch (how) {
    case Meeting::kAdd: return static_cast<T>(old + update);
    case Meeting::kMultiply: return static_cast<T>(old * update);
    case Meeting::kMin: return update < old || update != update ? update : old;
    case Meeting::kMax: return update > old || update != update ? update : old;
    default: return update;
  }
}

// An index counted from the front; false where it names nothing.
MB_INLINE bool counted(int64_t& index, int32_t size) {
  if (index < 0) index += size;
  return index >= 0 && index < size;
}

// `count` places one after the other, `inner` elements side by side at each. `next` gives the first element, or -1
// where the index names nothing.
struct Places {
  int32_t (*next)(Places& places);
  int32_t count, inner;
};

// Whether all places exist.
MB_NOINLINE inline bool all_exist(Places& places) {
  for (int i = 0; i < places.count; ++i)
    if (places.next(places) < 0) return false;
  return true;
}

// y = what stands in x at the places
template <class T>
MB_NOINLINE Status take(const Tensor& y, const Tensor& x, Places& places) {
  T* to = y.as<T>();
  for (int i = 0; i < places.count; ++i) {
    int32_t place = places.next(places);
    if (place < 0) return Status::kBadValue;
    const T* from = x.as<T>() + place;
    for (int k = 0; k < places.inner; ++k) *to++ = *from++;
  }
  return Status::kOk;
}

// y = x (arguments 0 and 1; zeros, or what is there, without x) with the updates (argument 3) at the places, which
// exist: without `meets` they replace what is there.
template <class T, bool kMeets>
MB_NOINLINE Status put(const Call& call, Places& places, int32_t meeting) {
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
  for (int i = 0; i < places.count; ++i) {
    int32_t place = places.next(places);
    if (place < 0) return Status::kBadValue;  // an output over its own indices
    T* to = y.as<T>() + place;
    for (int k = 0; k < places.inner; ++k, ++to, ++from)
      *to = kMeets ? met(static_cast<Meeting>(meeting), *to, *from) : *from;
  }
  return Status::kOk;
}

// The same after all indices were looked at, so that nothing changes where one is wrong.
template <class T, bool kMeets, class Found>
MB_INLINE Status put_checked(const Call& call, Found places, int32_t meeting) {
  Found first = places;
  if (!all_exist(first)) return Status::kBadValue;
  return put<T, kMeets>(call, places, meeting);
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_INDEXING_SCATTER_GATHER_H_
