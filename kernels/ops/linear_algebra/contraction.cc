// Products of two tensors summed over the axes that the result lacks: MatMul whatever its batch axes, Einsum of two
// operands, and either with transpositions folded in.
#include "minbuild/kernel.h"
#include "lib/gemm/gemm.h"
#include "lib/gemm/integer_gemm.h"
#include "lib/gemm/packed_gemm.h"
#include "lib/gemm/product_axes.h"

namespace minbuild {

#if MB_THREADS > 1
// The products for all indices of the axes before the matrices, side by side, and each in parts of some rows where these are
// few.
template <class T>
MB_INLINE void multiply_side_by_side(const Axes& axes, Gemm<T> g, const Tensor* scratch, const T* start) {
  intptr_t products = 1;
  for (int axis = 0; axis < axes.rows; ++axis) products *= axes.sizes[axis];
  if (g.members < 2 || products < 2 || int64_t(g.m) * g.n * g.k * products < kLeastWork)
    return axes.multiply(g, 0, scratch, start);
  Cuts rows = cuts_of(g.m, 1, 1, false);
  if (products < 4 * g.members && takes_packing(g)) {
    const Cuts finer = partition_of(g, widest_bytes(), int32_t(products), {kPackingWork, kPackingWork, 0}).rows;
    // The last rows, too, are packed, as all of them together: sums have another order where they are not.
    if (takes_packing(part_of(g, finer.at(finer.count - 1), g.m, 0, g.n))) rows = finer;
  }
  const intptr_t all = products * rows.count, each = (all + 4 * g.members - 1) / (4 * g.members);
  for_parts(g.team, g.members, (all + each - 1) / each, [&](int32_t part, int32_t member) {
    const intptr_t first = part * each, end = first + each < all ? first + each : all;
    for (intptr_t number = first; number < end; ++number) {
      const int32_t down = int32_t(number % rows.count);
      Gemm<T> one = part_of(g, rows.at(down), rows.length(down), 0, g.n);
      one.members = 1;
      intptr_t left = number / rows.count;
      for (int axis = axes.rows - 1; axis >= 0; --axis) {
        const intptr_t i = left % axes.sizes[axis];
        left /= axes.sizes[axis];
        one.a += i * axes.a.of[axis];
        one.b += i * axes.b.of[axis];
        one.c += i * axes.y.of[axis];
      }
      Tensor share = *scratch;
      share.data = reinterpret_cast<char*>(scratch->scratch<T>() + member * g.share);
      axes.multiply(one, axes.rows, static_cast<const Tensor*>(&share), start);
    }
  });
}
#endif

#if MB_CONTRACTION_BIAS
// y = bias, which has the elements of y's last axes, or y += bias
template <class T>
MB_INLINE void start_with_bias(const Tensor& y, const Tensor& bias, bool adds) {
  T* to = y.as<T>();
  for (int left = y.count; left > 0; left -= bias.count, to += bias.count) {
    if (!adds) {
      copy_bytes(to, bias.data, bias.count * sizeof(T));
    } else {
      for (int i = 0; i < bias.count; ++i) to[i] += bias.as<T>()[i];
    }
  }
}
#endif

// y = alpha * (a * b summed over axes) + bias; `scratch`: scratch memory where the products are packed
template <class T, class... Scratch>
MB_INLINE Status contract(const Call& call, Scratch... scratch) {
  const Tensor &y = call[0], &a = call[1], &b = call[2], &bias = call[3];
  Axes axes;
  if (!axes.read(call)) return Status::kTooLarge;
  if (bias && (bias.count == 0 ? y.count != 0 : y.count % bias.count != 0)) return Status::kBadPlan;

  const int m = axes.rows, n = m + 1, k = axes.count - 1;
  // clang-format off: sizes, then each operand with its steps
  Gemm<T> product = {axes.sizes[m], axes.sizes[n], axes.sizes[k], a.as<T>(), axes.a.of[m], axes.a.of[k],
                     b.as<T>(), axes.b.of[k], axes.b.of[n], y.as<T>(), axes.y.of[m], axes.y.of[n]};
  // clang-format on
  product.alpha = static_cast<T>(call.real(3));
  product.accumulate = call.adds(0);
  if constexpr (sizeof...(scratch) != 0) {
    if (!take_scratch(product, call, scratch...)) return Status::kBadPlan;
  }
  [[maybe_unused]] const T* start = nullptr;
#if MB_CONTRACTION_BIAS
  // Tiles of a packed product start from a bias of their columns.
  if (sizeof...(scratch) != 0 && bias && bias.count == product.n && product.c_col == 1 && !product.accumulate &&
      call[5].count != 0 && takes_packing(product)) {
    start = bias.as<T>();
  } else if (bias) {
    start_with_bias<T>(y, bias, product.accumulate);
    product.accumulate = true;
  }
#endif
  if (call[5].count != 0) {
#if MB_THREADS > 1
    if constexpr (sizeof...(scratch) != 0) {
      multiply_side_by_side(axes, product, scratch..., start);
      return Status::kOk;
    }
#endif
    if constexpr (sizeof...(scratch) == 0) axes.multiply(product, 0);
    else axes.multiply(product, 0, scratch..., start);
  } else if (!product.accumulate) {
    clear_bytes(y.data, y.count * sizeof(T));  // empty sums
  }
  return Status::kOk;
}

template <class T>
Status contraction(const Call& call) {
  return contract<T>(call);
}

// The same for sizes that ask for packing.
template <class T>
Status contraction_packed(const Call& call) {
  return contract<T>(call, &call[6]);
}

MB_INSTANTIATE_CONTRACTION

}  // namespace minbuild
