// Weighted sums of elements along an axis: interpolation, and with the table transposed its gradient.
#include "lib/loops/blas1.h"

namespace minbuild {

// x: [A,D,B]  y: [A,O,B]  indices, weights: [O,K]  y[a,o] is the sum over k of weights[o,k] * x[a,indices[o,k]].
template <class T>
Status resample(const Call& call) {
  const Tensor &y = call[0], &x = call[1], &index = call[2], &weight = call[3], &groups = call[4];
  if (groups.rank != 3 || groups.count != x.count || index.rank != 2 || index.count != weight.count)
    return Status::kBadPlan;
  const int outer = groups.dims[0], size = groups.dims[1], inner = groups.dims[2];
  const int outputs = index.dims[0], taps = index.dims[1];
  if (y.count != int64_t(outer) * outputs * inner) return Status::kBadPlan;
  const int32_t* indices = index.as<int32_t>();
  const T* weights = weight.as<T>();
  for (int i = 0; i < index.count; ++i)
    if (unsigned(indices[i]) >= unsigned(size)) return Status::kTooLarge;
  clear_bytes(y.data, y.count * sizeof(T));
  T* to = y.as<T>();
  const T* from = x.as<T>();
  for (int a = 0; a < outer; ++a, from += size * inner) {
    for (int i = 0; i < index.count; ++i) {
      // Rows of fewer taps are filled up with weights of zero, which must not spread what is not finite.
      if (weights[i] != T(0)) axpy(to, from + indices[i] * inner, weights[i], inner);
      if ((i + 1) % taps == 0) to += inner;
    }
  }
  return Status::kOk;
}

MB_INSTANTIATE_RESAMPLE

}  // namespace minbuild
