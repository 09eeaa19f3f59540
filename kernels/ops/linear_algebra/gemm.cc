// Gemm: y = alpha * a' * b' + beta * c, where ' transposes when asked.
#include "lib/gemm/gemm.h"

#include "lib/loops/blas1.h"
#include "lib/gemm/integer_gemm.h"
#include "lib/gemm/packed_gemm.h"
#include "lib/types/storage_type.h"

namespace minbuild {

// A third operand that broadcasts to y: [M,N]: how far apart its elements are, 0 where one serves a whole row or column.
struct Bias {
  int row = 0, column = 1;

  MB_INLINE bool read(const Tensor& y, const Tensor& c) {
    int rows = 1, columns = y.dims[1];
    if (MB_GEMM_BIAS_ANY) {
      columns = c.rank > 0 ? c.dims[c.rank - 1] : 1;
      rows = c.rank > 1 ? c.dims[0] : 1;
      if (c.rank > 2 || (columns != 1 && columns != y.dims[1]) || (rows != 1 && rows != y.dims[0])) return false;
      column = columns != 1;
      row = rows != 1 ? columns : 0;
    }
    return c.count == rows * columns;
  }

  // y += beta * c
  template <class T>
  MB_INLINE void add(const Tensor& y, const Tensor& c, T beta) const {
    T* to = y.as<T>();
    for (int i = 0; i < y.dims[0]; ++i, to += y.dims[1]) {
      const T* from = c.as<T>() + i * row;
      if constexpr (Stored<T>::is_real) {
        if (!MB_GEMM_BIAS_ANY || (column != 0 && beta == 1)) {
          add_range(to, from, y.dims[1]);
          continue;
        }
      }
      for (int j = 0; j < y.dims[1]; ++j) to[j] += beta * from[j * column];
    }
  }
};

// `scratch`: scratch memory where the product is packed.
template <class T, class... Scratch>
MB_INLINE Status gemm_with(const Call& call, Scratch... scratch) {
  const Tensor &y = call[0], &a = call[1], &b = call[2], &c = call[3];
  bool transposed_a = call.params[0] != 0, transposed_b = call.params[1] != 0;
  if (y.rank != 2 || a.rank != 2 || b.rank != 2) return Status::kBadPlan;
  int m = y.dims[0], n = y.dims[1], k = a.dims[!transposed_a];
  if (a.dims[transposed_a] != m || b.dims[transposed_b] != k || b.dims[!transposed_b] != n) return Status::kBadPlan;

#if MB_GEMM_BIAS
  Bias bias;
  if (c && !bias.read(y, c)) return Status::kBadPlan;
#endif
  // clang-format off: sizes, then each operand with its steps
  Gemm<T> product = {m, n, k, a.as<T>(), transposed_a ? 1 : k, transposed_a ? m : 1,
                     b.as<T>(), transposed_b ? 1 : n, transposed_b ? k : 1, y.as<T>(), n};
  // clang-format on
  product.alpha = static_cast<T>(call.real(2));
  product.accumulate = call.adds(0);
  if constexpr (sizeof...(scratch) == 0) {
    gemm(product);
  } else {
    if (!take_scratch(product, call, scratch...)) return Status::kBadPlan;
    gemm_in(product, scratch...);
  }
#if MB_GEMM_BIAS
  if (c) bias.add(y, c, static_cast<T>(call.real(3)));
#endif
  return Status::kOk;
}

template <class T>
Status gemm(const Call& call) {
  return gemm_with<T>(call);
}

// The same for sizes that ask for packing.
template <class T>
Status gemm_packed(const Call& call) {
  return gemm_with<T>(call, &call[4]);
}

MB_INSTANTIATE_GEMM

}  // namespace minbuild
