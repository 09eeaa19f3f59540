// Products of two tensors of 16-bit numbers, by the processor's own arithmetic; axes as in contraction.cc.
#include "minbuild/kernel.h"
#include "lib/gemm/half_gemm.h"
#include "lib/gemm/product_axes.h"
#include "lib/types/bytes.h"

namespace minbuild {

// y = alpha * (a * b summed over axes), in float
template <class T>
Status half_contraction(const Call& call) {
  const Tensor &y = call[0], &a = call[1], &b = call[2];
  Axes axes;
  if (!axes.read<3>(call)) return Status::kTooLarge;
  const int m = axes.rows, n = m + 1, k = axes.count - 1;
  // clang-format off: sizes, then each operand with its steps
  HalfGemm<T> product = {axes.sizes[m], axes.sizes[n], axes.sizes[k], a.as<T>(), axes.a.of[m], axes.a.of[k],
                         b.as<T>(), axes.b.of[k], axes.b.of[n], y.as<float>(), axes.y.of[m], axes.y.of[n],
                         call.real(3), call.adds(0)};
  // clang-format on
#if MB_THREADS > 1
  product.team = call.team;
#endif
  if (call[4].count != 0) {
    axes.multiply(product, 0);
  } else if (!product.accumulate) {
    clear_bytes(y.data, size_t(y.count) * sizeof(float));  // empty sums
  }
  return Status::kOk;
}

MB_INSTANTIATE_HALF_CONTRACTION

}  // namespace minbuild
