// The place of the largest or smallest element along an axis.
#include "minbuild/kernel.h"

namespace minbuild {

// x: [A,D,B]  y: [A,B], the index along D. Of equal elements the first counts, or the last.
template <class T>
Status arg_max(const Call& call) {
  const Tensor &y = call[0], &x = call[1], &groups = call[2];
  if (groups.rank != 3 || groups.count != x.count) return Status::kBadPlan;
  int outer = groups.dims[0], size = groups.dims[1], inner = groups.dims[2];
  if (y.count != int64_t(outer) * inner || size == 0) return Status::kBadPlan;
  bool last = MB_ARG_MAX_LAST && call.params[0] != 0, smallest = MB_ARG_MAX_MIN && call.params[1] != 0;
  int64_t* to = y.as<int64_t>();
  for (int a = 0; a < outer; ++a) {
    for (int b = 0; b < inner; ++b) {
      const T* from = x.as<T>() + a * size * inner + b;
      T best = *from;
      int at = 0;
      for (int i = 1; i < size; ++i) {
        T each = from[i * inner];
        if ((smallest ? each < best : each > best) || (last && each == best)) best = each, at = i;
      }
      *to++ = at;
    }
  }
  return Status::kOk;
}

MB_INSTANTIATE_ARG_MAX

}  // namespace minbuild
