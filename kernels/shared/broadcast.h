// Elementwise operators of two operands whose shapes differ. The walk over the shapes is written once per element type;
// an operator brings a loop over one stretch of memory.
#ifndef MINBUILD_SHARED_BROADCAST_H_
#define MINBUILD_SHARED_BROADCAST_H_

#include "shared/elementwise.h"

namespace minbuild {

// y[i] = f(a[i & a_mask], b[i & b_mask]) for i < count. A mask is -1, or 0 where one element serves all i: then the
// operand points to as many copies of it as the widest vector has lanes.
template <class Y, class T>
using BinaryLoop = void (*)(Y* y, const T* a, int a_mask, const T* b, int b_mask, int count);

template <class T, class F>
struct BinaryBody {
  template <class V>
  static MB_INLINE void step(int i, T* y, const T* a, int a_mask, const T* b, int b_mask) {
    F{}(V::load(a + (i & a_mask)), V::load(b + (i & b_mask))).store(y + i);
  }
};
template <class T, class F>
MB_NOINLINE void binary_loop(T* y, const T* a, int a_mask, const T* b, int b_mask, int count) {
  for_range<T, BinaryBody<T, F>>(count, y, a, a_mask, b, b_mask);
}

// One operand: where it stands, and how far it moves along each folded axis of the result.
template <class T>
struct Operand {
  const T* at;
  int steps[MB_MAX_RANK];
  int mask;
  T copies[32 / sizeof(T)];

  // What the loop reads: the elements themselves, or copies of one.
  MB_INLINE const T* stretch(int step) {
    mask = -step;
    if (step != 0) return at;
    for (T& copy : copies) copy = *at;
    return copies;
  }
};

// y: result  a, b: shapes that broadcast to y's. Axes that both operands walk alike are folded into one, so that equal
// shapes and single elements are one stretch.
template <class Y, class T>
MB_NOINLINE Status broadcast(const Tensor& y, const Tensor& a, const Tensor& b, BinaryLoop<Y, T> loop) {
  if (y.count == 0) return Status::kOk;
  const Tensor* given[2] = {&a, &b};
  Operand<T> operands[2];
  int sizes[MB_MAX_RANK] = {1}, index[MB_MAX_RANK], natural[2] = {1, 1}, folded = 0;
  for (int axis = 1; axis <= y.rank; ++axis) {
    int size = y.dims[y.rank - axis], last = folded - 1;
    bool joins = folded > 0;
    for (int o = 0; o < 2; ++o) {
      const Tensor& x = *given[o];
      int own = axis <= x.rank ? x.dims[x.rank - axis] : 1;
      if (x.rank > y.rank || (own != 1 && own != size)) return Status::kBadPlan;
      int* steps = operands[o].steps;
      steps[folded] = own == 1 ? 0 : natural[o];
      joins = joins && steps[folded] == steps[last] * sizes[last];
      natural[o] *= own;
    }
    if (size == 1) continue;
    if (joins) {
      sizes[last] *= size;
    } else {
      index[folded] = 0;
      sizes[folded++] = size;
    }
  }
  if (folded == 0) operands[0].steps[0] = operands[1].steps[0] = 0;
  for (int o = 0; o < 2; ++o) operands[o].at = given[o]->template as<T>();
  for (Y* to = y.as<Y>();; to += sizes[0]) {
    const T* left = operands[0].stretch(operands[0].steps[0]);
    const T* right = operands[1].stretch(operands[1].steps[0]);
    loop(to, left, operands[0].mask, right, operands[1].mask, sizes[0]);
    int axis = 1;
    for (; axis < folded; ++axis) {
      int back = ++index[axis] < sizes[axis] ? 0 : sizes[axis];
      for (Operand<T>& o : operands) o.at += o.steps[axis] * (1 - back);
      if (back == 0) break;
      index[axis] = 0;
    }
    if (axis >= folded) return Status::kOk;
  }
}

// The same where every operand has either y's elements or a single one.
template <class Y, class T>
MB_NOINLINE Status broadcast_scalars(const Tensor& y, const Tensor& a, const Tensor& b, BinaryLoop<Y, T> loop) {
  const Tensor* given[2] = {&a, &b};
  Operand<T> operands[2];
  const T* at[2];
  if (y.count == 0) return Status::kOk;
  for (int o = 0; o < 2; ++o) {
    if (given[o]->count != y.count && given[o]->count != 1) return Status::kBadPlan;
    operands[o].at = given[o]->template as<T>();
    at[o] = operands[o].stretch(given[o]->count == y.count);
  }
  loop(y.as<Y>(), at[0], operands[0].mask, at[1], operands[1].mask, y.count);
  return Status::kOk;
}

// Arguments 0 = f(1, 2), with no more machinery than the library's models need.
template <class T, class F, bool kShapes, bool kScalars>
MB_INLINE Status binary(const Call& call) {
  if constexpr (kShapes) {
    return broadcast<T, T>(call[0], call[1], call[2], binary_loop<T, F>);
  } else if constexpr (kScalars) {
    return broadcast_scalars<T, T>(call[0], call[1], call[2], binary_loop<T, F>);
  } else {
    return map<T>(call, F{}, 1, 2);
  }
}

}  // namespace minbuild
#endif  // MINBUILD_SHARED_BROADCAST_H_
