// Gemm: y = alpha * a' * b' + beta * c, where ' transposes when asked.
#include "shared/gemm.h"

#include "minbuild/kernel.h"

namespace minbuild {

// y: [M,N]  c: anything that broadcasts to [M,N]. Fills y with beta * c, or adds it.
template <class T>
bool broadcast_bias(const Tensor& y, const Tensor& c, T beta, bool add) {
  int columns = c.rank > 0 ? c.dims[c.rank - 1] : 1;
  int rows = c.rank > 1 ? c.dims[0] : 1;
  if (c.rank > 2 || (columns != 1 && columns != y.dims[1]) || (rows != 1 && rows != y.dims[0])) return false;
  T* to = y.as<T>();
  for (int i = 0; i < y.dims[0]; ++i) {
    const T* from = c.as<T>() + (rows == 1 ? 0 : i * columns);
    for (int j = 0; j < y.dims[1]; ++j) *to = (add ? *to : 0) + beta * from[columns == 1 ? 0 : j], ++to;
  }
  return true;
}

template <class T>
Status gemm(const Call& call) {
  const Tensor &y = call[0], &a = call[1], &b = call[2], &c = call[3];
  bool transposed_a = call.params[0] != 0, transposed_b = call.params[1] != 0;
  if (y.rank != 2 || a.rank != 2 || b.rank != 2) return Status::kBadPlan;
  int m = y.dims[0], n = y.dims[1], k = a.dims[!transposed_a];
  if (a.dims[transposed_a] != m || b.dims[transposed_b] != k || b.dims[!transposed_b] != n) return Status::kBadPlan;

  bool accumulate = call.adds(0);
#if MB_GEMM_BIAS
  if (c) {
    if (!broadcast_bias<T>(y, c, static_cast<T>(call.real(3)), accumulate)) return Status::kBadPlan;
    accumulate = true;
  }
#endif
  Gemm<T> product = {m, n, k, a.as<T>(), transposed_a ? 1 : k, transposed_a ? m : 1,
                     b.as<T>(), transposed_b ? 1 : n, transposed_b ? k : 1, y.as<T>(), n};
  product.alpha = static_cast<T>(call.real(2));
  product.accumulate = accumulate;
  gemm(product);
  return Status::kOk;
}

MB_INSTANTIATE_GEMM

}  // namespace minbuild
