// The axes of a product of two tensors, and the matrix products that it is made of.
#ifndef MINBUILD_LIB_GEMM_PRODUCT_AXES_H_
#define MINBUILD_LIB_GEMM_PRODUCT_AXES_H_

#include "minbuild/kernel.h"

namespace minbuild {

constexpr int kMostAxes = 2 * MB_MAX_RANK;

// Elements from one index of an axis to the next, for every axis of the product; 0 along axes that an operand lacks.
struct Steps {
  int32_t of[kMostAxes];

  // `order` names the axes of x from the last one to the first, four bits each; a number that is no axis ends it. An axis
  // that comes twice is a diagonal. In one word of the plan, not one an axis: see strided_copy.cc.
  MB_NOINLINE bool read(const Tensor& x, const int32_t* sizes, int axes, int32_t order) {
    int32_t count = 1;
    for (int i = 0; i < axes; ++i) of[i] = 0;
    for (int i = 0; i < MB_MAX_RANK; ++i) {
      int axis = order >> 4 * i & 15;
      if (axis >= axes) break;
      of[axis] += count;
      if (__builtin_mul_overflow(count, sizes[axis], &count)) return false;
    }
    return count == x.count;
  }
};

// The axes: those of the result, where the last two are rows and columns of matrices, then those summed over.
struct Axes {
  int32_t sizes[kMostAxes];
  int count, rows;  // `rows` is the place of the rows; columns follow, and the last axis is the depth
  Steps y, a, b;

  template <int Outer = 4>
  MB_NOINLINE bool read(const Call& call) {
    const Tensor &outer = call[Outer], &inner = call[Outer + 1];
    if (outer.rank < 2 || inner.rank < 1 || outer.count != call[0].count) return false;
    count = outer.rank + inner.rank;
    rows = outer.rank - 2;
    if (count >= kMostAxes) return false;
    for (int i = 0; i < count; ++i) sizes[i] = i < outer.rank ? outer.dims[i] : inner.dims[i - outer.rank];
    return y.read(call[0], sizes, count, call.params[0]) && a.read(call[1], sizes, count, call.params[1]) &&
           b.read(call[2], sizes, count, call.params[2]);
  }

  // The product for every index of the axes from `axis` on that are not of the matrices. Along an axis that y lacks all
  // but the first one are added.
  template <class Product, class... Scratch>
  MB_NOINLINE void multiply(Product g, int axis, Scratch... scratch) const {
    if (axis == rows) axis += 2;
    if (axis == count - 1) {
      if constexpr (sizeof...(scratch) == 0) return gemm(g);
      else return gemm_in(g, scratch...);
    }
    for (int i = 0; i < sizes[axis]; ++i) {
      multiply(g, axis + 1, scratch...);
      g.a += a.of[axis];
      g.b += b.of[axis];
      g.c += y.of[axis];
      if (axis > rows) g.accumulate = true;
    }
  }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_GEMM_PRODUCT_AXES_H_
