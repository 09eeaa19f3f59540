// Keeps one triangle of matrices.
#include "minbuild/kernel.h"

namespace minbuild {

// x, y: [M,R,C]. Diagonal k and what is above it (parameter 1 not 0) or below it stay; the rest becomes zero.
template <class T>
Status trilu(const Call& call) {
  const Tensor &y = call[0], &x = call[1], &layout = call[2];
  if (layout.rank != 3 || layout.count != y.count || x.count != y.count) return Status::kBadPlan;
  int columns = layout.dims[2];
  int64_t diagonal = call.params[0];
  bool upper = call.params[1] != 0;
  T* to = y.as<T>();
  const T* from = x.as<T>();
  for (int m = 0; m < layout.dims[0]; ++m) {
    for (int64_t r = 0; r < layout.dims[1]; ++r, to += columns, from += columns) {
      int64_t edge = r + diagonal + (upper ? 0 : 1);  // the first column of the right part
      int split = static_cast<int>(edge < 0 ? 0 : edge > columns ? columns : edge);
      int first = upper ? split : 0, last = upper ? columns : split;
      if (to != from) copy_bytes(to + first, from + first, (last - first) * sizeof(T));
      if (upper) {
        clear_bytes(to, split * sizeof(T));
      } else {
        clear_bytes(to + split, (columns - split) * sizeof(T));
      }
    }
  }
  return Status::kOk;
}

MB_INSTANTIATE_TRILU

}  // namespace minbuild
