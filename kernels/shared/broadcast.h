// Elementwise operators of two operands whose shapes differ. The walk over the shapes is written once for all types; an
// operator brings a loop over one stretch of memory. How the axes fold is worked out when the plan is made
// (ops/broadcasting.py).
#ifndef MINBUILD_SHARED_BROADCAST_H_
#define MINBUILD_SHARED_BROADCAST_H_

#include "shared/elementwise.h"

namespace minbuild {

// y[i] = f(a[i & a_mask], b[i & b_mask]) for i < count. A mask is -1, or 0 where one element serves all i: then the
// operand points to as many copies of it as the widest vector has lanes.
using BinaryLoop = void (*)(void* y, const void* a, int a_mask, const void* b, int b_mask, int count);

template <class T, class F>
struct BinaryBody {
  template <class V>
  static MB_INLINE void step(int i, T* y, const T* a, int a_mask, const T* b, int b_mask) {
    F{}(V::load(a + (i & a_mask)), V::load(b + (i & b_mask))).store(y + i);
  }
};
template <class T, class F>
MB_NOINLINE void binary_loop(void* y, const void* a, int a_mask, const void* b, int b_mask, int count) {
  for_range<T, BinaryBody<T, F>>(count, static_cast<T*>(y), static_cast<const T*>(a), a_mask, static_cast<const T*>(b),
                                 b_mask);
}

// One operand: where it stands, and by how many elements it moves along each axis of the walk.
struct Operand {
  const char* at;
  int steps[MB_MAX_RANK];
  int mask;
  char copies[32];

  // What the loop reads: the elements themselves, or copies of one.
  MB_INLINE const char* stretch(int step, int size) {
    mask = -step;
    if (step != 0) return at;
    for (int i = 0; i < 32; ++i) copies[i] = at[i & (size - 1)];
    return copies;
  }
};

// Argument 0 = f(a, b), elements of `y_size` and `size` bytes. Argument 3 holds the axes of the walk, bit i of parameters
// 0 and 1 says whether a and b move along axis i; no bits at all: each operand has y's elements or a single one.
template <bool kShapes>
MB_NOINLINE Status broadcast(const Call& call, const Tensor* a, const Tensor* b, int y_size, int size, BinaryLoop loop) {
  const Tensor &y = call[0], &walk = call[3];
  const int32_t* sizes = &y.count;
  int rank = 1, index[MB_MAX_RANK] = {};
  bool shapes = kShapes && (call.params[0] | call.params[1]) != 0;
  if (y.count == 0) return Status::kOk;
  if (shapes) {
    sizes = walk.dims;
    rank = walk.rank;
    if (rank == 0 || walk.count != y.count) return Status::kBadPlan;
  }
  Operand operands[2];
  for (int o = 0; o < 2; ++o) {
    const Tensor& x = o == 0 ? *a : *b;
    int axes = shapes ? call.params[o] : x.count == y.count, count = 1;
    for (int axis = rank - 1; axis >= 0; --axis) {
      bool moves = axes >> axis & 1;
      operands[o].steps[axis] = moves ? count : 0;
      if (moves) count *= sizes[axis];
    }
    if (count != x.count) return Status::kBadPlan;
    operands[o].at = x.data;
  }
  char* to = y.data;
  for (int axis = 0; axis >= 0; to += static_cast<ptrdiff_t>(sizes[rank - 1]) * y_size) {
    const char* left = operands[0].stretch(operands[0].steps[rank - 1], size);
    const char* right = operands[1].stretch(operands[1].steps[rank - 1], size);
    loop(to, left, operands[0].mask, right, operands[1].mask, sizes[rank - 1]);
    for (axis = rank - 2; axis >= 0; --axis) {
      int back = ++index[axis] < sizes[axis] ? 0 : sizes[axis];
      for (Operand& o : operands) o.at += static_cast<ptrdiff_t>(o.steps[axis]) * (1 - back) * size;
      if (back == 0) break;
      index[axis] = 0;
    }
  }
  return Status::kOk;
}

// Arguments 0 = f(1, 2), with no more machinery than the library's models need.
template <class T, class F, bool kShapes, bool kScalars>
MB_INLINE Status binary(const Call& call) {
  if constexpr (kShapes || kScalars) {
    return broadcast<kShapes>(call, &call[1], &call[2], sizeof(T), sizeof(T), binary_loop<T, F>);
  } else {
    return map<T>(call, F{}, 1, 2);
  }
}

}  // namespace minbuild
#endif  // MINBUILD_SHARED_BROADCAST_H_
