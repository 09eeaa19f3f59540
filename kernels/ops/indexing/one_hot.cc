// One-hot vectors.
#include "lib/loops/fill.h"

namespace minbuild {

// indices: [A,B]  y: [A,D,B]  values: off, on. An index that is not in -D..D-1 has only off values.
template <class T>
Status one_hot(const Call& call) {
  const Tensor &y = call[0], &indices = call[1], &values = call[2], &layout = call[3];
  if (layout.rank != 3 || layout.count != y.count || values.count != 2) return Status::kBadPlan;
  int64_t depth = layout.dims[1], inner = layout.dims[2];
  if (indices.count != layout.dims[0] * inner) return Status::kBadPlan;
  T* to = y.as<T>();
  const T off = values.as<T>()[0], on = values.as<T>()[1];
  fill_range(to, y.count, off);
  const int64_t* index = indices.as<int64_t>();
  for (int a = 0; a < layout.dims[0]; ++a, to += depth * inner) {
    for (int64_t b = 0; b < inner; ++b, ++index) {
      int64_t at = *index < 0 ? *index + depth : *index;
      if (at >= 0 && at < depth) to[at * inner + b] = on;
    }
  }
  return Status::kOk;
}

MB_INSTANTIATE_ONE_HOT

}  // namespace minbuild
