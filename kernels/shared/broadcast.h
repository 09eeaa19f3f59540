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
  stream_range<T, BinaryBody<T, F>>(count, static_cast<T*>(y), static_cast<const T*>(a), a_mask,
                                    static_cast<const T*>(b), b_mask);
}

// One element as often as the widest vector has lanes.
struct Copies {
  char bytes[32];

  MB_INLINE const char* of(const char* element, int size) {
    for (int i = 0; i < 32; ++i) bytes[i] = element[i & (size - 1)];
    return bytes;
  }
};

// What the walk needs to know at every axis. Steps are bytes from one element of an axis to the next.
struct Walk {
  BinaryLoop loop;
  const int32_t* sizes;
  int last;  // axis
  int size, y_size;
  char* to;
  ptrdiff_t steps[2][MB_MAX_RANK];
  Copies copies[2];

  // Along the last axis an operand moves, or stands.
  MB_INLINE const char* stretch(int o, const char* at) {
    return steps[o][last] != 0 ? at : copies[o].of(at, size);
  }
  MB_INLINE void run(const char* a, const char* b) {
    loop(to, stretch(0, a), -(steps[0][last] != 0), stretch(1, b), -(steps[1][last] != 0), sizes[last]);
    to += static_cast<ptrdiff_t>(sizes[last]) * y_size;
  }
  MB_NOINLINE void descend(int axis, const char* a, const char* b) {
    if (axis == last) return run(a, b);
    for (int i = 0; i < sizes[axis]; ++i, a += steps[0][axis], b += steps[1][axis]) descend(axis + 1, a, b);
  }
};

// Where each operand has y's elements or a single one.
MB_INLINE Status broadcast_scalars(const Tensor& y, const Tensor* a, const Tensor* b, int size, BinaryLoop loop) {
  bool one_a = a->count != y.count, one_b = b->count != y.count;
  if ((one_a && a->count != 1) || (one_b && b->count != 1)) return Status::kBadPlan;
  Copies copies[2];
  const char* left = one_a ? copies[0].of(a->data, size) : a->data;
  const char* right = one_b ? copies[1].of(b->data, size) : b->data;
  loop(y.data, left, one_a - 1, right, one_b - 1, y.count);
  return Status::kOk;
}

// Argument 0 = f(a, b), elements of `y_size` and `size` bytes. Argument 3 holds the axes of the walk, bit i of parameters
// 0 and 1 says whether a and b move along axis i; no bits at all: each operand has y's elements or a single one.
template <bool kShapes>
MB_NOINLINE Status broadcast(const Call& call, const Tensor* a, const Tensor* b, int y_size, int size, BinaryLoop loop) {
  const Tensor &y = call[0], &axes = call[3];
  if (y.count == 0) return Status::kOk;
  if (!kShapes) return broadcast_scalars(y, a, b, size, loop);
  bool shapes = (call.params[0] | call.params[1]) != 0;
  if (shapes && (axes.rank == 0 || axes.count != y.count)) return Status::kBadPlan;
  Walk walk;
  walk.loop = loop;
  walk.sizes = shapes ? axes.dims : &y.count;
  walk.last = shapes ? axes.rank - 1 : 0;
  walk.size = size;
  walk.y_size = y_size;
  walk.to = y.data;
  for (int o = 0; o < 2; ++o) {
    const Tensor& x = o == 0 ? *a : *b;
    int moves = shapes ? call.params[o] : x.count == y.count, count = 1;
    for (int axis = walk.last; axis >= 0; --axis) {
      bool own = moves >> axis & 1;
      walk.steps[o][axis] = own ? static_cast<ptrdiff_t>(count) * size : 0;
      if (own) count *= walk.sizes[axis];
    }
    if (count != x.count) return Status::kBadPlan;
  }
  walk.descend(0, a->data, b->data);
  return Status::kOk;
}

// Arguments 0 = f(1, 2), with no more machinery than the library's models need.
template <class T, class F, bool kShapes, bool kScalars>
MB_INLINE Status binary(const Call& call) {
  if constexpr (kShapes || kScalars) {
    return broadcast<kShapes>(call, &call[1], &call[2], sizeof(T), sizeof(T), binary_loop<T, F>);
  } else {
    return stream<T>(call, F{}, 1, 2);
  }
}

}  // namespace minbuild
#endif  // MINBUILD_SHARED_BROADCAST_H_
