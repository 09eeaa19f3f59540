// Elements, or rows of them, of one tensor that indices name, and what may be done with them.
#ifndef MINBUILD_SHARED_INDEXED_H_
#define MINBUILD_SHARED_INDEXED_H_

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

// Arguments 0 (whole, written) and 1 (what it was, or absent: zeros) before updates come. Zeros are not written over
// where the output adds to what is there.
template <class T>
MB_INLINE void start_updates(const Call& call) {
  const Tensor &y = call[0], &x = call[1];
  size_t bytes = y.count * sizeof(T);
  if (!x) {
    if (!call.adds(0)) __builtin_memset(y.data, 0, bytes);
  } else if (x.data != y.data) {
    __builtin_memcpy(y.data, x.data, bytes);
  }
}

// y = what stands in x (arguments 0 and 1) at the places that Places finds by indices (argument 2) and `how`: `inner`
// elements side by side at each.
template <class T, class Places, class How>
MB_INLINE Status take(const Call& call, const How& how) {
  Places places;
  const Tensor &part = call[0], &whole = call[1];
  if (!places.read(whole, part, call[2], how)) return Status::kBadPlan;
  const T* from = whole.as<T>();
  T* to = part.as<T>();
  bool good = places.each([&](int place) MB_LAMBDA {
    for (int i = 0; i < places.inner; ++i) *to++ = from[place + i];
  });
  return good ? Status::kOk : Status::kBadValue;
}

// y = x (argument 1) with the updates (argument 3) at the places. Nothing changes where an index is wrong.
template <class T, bool kMeets, class Places, class How>
MB_INLINE Status put(const Call& call, const How& how, int32_t meeting) {
  Places places;
  const Tensor &whole = call[0], &updates = call[3];
  if (!places.read(whole, updates, call[2], how)) return Status::kBadPlan;
  if (call[1] && call[1].count != whole.count) return Status::kBadPlan;
  if (!places.each([](int) MB_LAMBDA {})) return Status::kBadValue;
  start_updates<T>(call);
  const T* from = updates.as<T>();
  T* to = whole.as<T>();
  places.each([&](int place) MB_LAMBDA {
    for (int i = 0; i < places.inner; ++i, ++from)
      to[place + i] = kMeets ? met(static_cast<Meeting>(meeting), to[place + i], *from) : *from;
  });
  return Status::kOk;
}

}  // namespace minbuild
#endif  // MINBUILD_SHARED_INDEXED_H_
