// Convolutions that compute the groups of their channels one after the other, in planes that each thread has for itself.
#ifndef MINBUILD_LIB_NN_GROUP_PARTS_H_
#define MINBUILD_LIB_NN_GROUP_PARTS_H_

#include "minbuild/kernel.h"
#include "lib/nn/propagation.h"

namespace minbuild {

// From a row of an image to a row of a plane, or back, by whole vectors, the last of which overlaps the one before.
template <class V, class T>
MB_INLINE void copy_row(const T* from, T* to, int count) {
  using Half = Vec<T, (V::size > 1 ? V::size / 2 : 1)>;
  if (count >= V::size) {
    for (int i = 0; i < count - V::size; i += V::size) V::load(from + i).store(to + i);
    V::load(from + count - V::size).store(to + count - V::size);
  } else if (count >= Half::size) {
    Half::load(from).store(to);
    Half::load(from + count - Half::size).store(to + count - Half::size);
  } else {
    for (int i = 0; i < count; ++i) to[i] = from[i];
  }
}

// Arguments and parameters as those of conv. `c` reads their shapes and lays out `share` elements of scratch memory, its
// planes and behind them its grid, which are zero when run(c, x, y, w, bias, first, count) computes some groups.
template <class T, class C, class Run>
MB_INLINE Status run_in_groups(const Call& call, C& c, const Run& run) {
  c.propagation = Propagation(call.params[0]);
  if (unsigned(c.propagation) > kWeightGradient) return Status::kBadPlan;
  const Tensor &result = call[0], &bias = call[3], &bytes = call[4];
  const Tensor *y = &result, *x = &call[1], *w = &call[2];
  if (c.propagation == kInputGradient) y = &call[1], x = &result;
  if (c.propagation == kWeightGradient) y = &call[2], w = &result;
  if (!c.read_shapes(*x, *y, *w, call.params) || !c.lay_out(result, bytes)) return Status::kTooLarge;
  if (bias && (c.propagation != kOutput || bias.count != w->dims[0])) return Status::kBadPlan;
  if (c.propagation == kWeightGradient && !call.adds(0)) clear_bytes(result.data, result.count * sizeof(T));
  const int groups = call.params[1];
#if MB_THREADS > 1
  const int64_t room = bytes.count / (c.share * int64_t(sizeof(T)));
  const int64_t work = int64_t(y->count) * w->dims[1] * c.taps;
  const int members = members_of(call.team) < room ? members_of(call.team) : int(room);
  if (members > 1 && work >= kLeastWork / 4) {
    const int some = (groups + 4 * members - 1) / (4 * members);
    for_parts(call.team, members, (groups + some - 1) / some, [&](int32_t part, int32_t member) {
      C own = c;
      own.planes += member * c.share, own.grid += member * c.share;
      clear_bytes(own.planes, size_t(c.share) * sizeof(T));
      const int first = part * some, count = groups - first < some ? groups - first : some;
      run(own, x->as<T>(), y->as<T>(), w->as<T>(), bias.as<T>(), first, count);
    });
    return Status::kOk;
  }
#endif
  clear_bytes(c.planes, size_t(c.share) * sizeof(T));
  run(c, x->as<T>(), y->as<T>(), w->as<T>(), bias.as<T>(), 0, groups);
  return Status::kOk;
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_NN_GROUP_PARTS_H_
