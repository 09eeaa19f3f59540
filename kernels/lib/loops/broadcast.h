// Elementwise operators of operands whose shapes differ. The loop nest over the axes is written once for all types; an
// operator brings a loop over one stretch of memory. How the axes fold is worked out when the plan is made
// (ops/core/broadcasting.py).
#ifndef MINBUILD_LIB_LOOPS_BROADCAST_H_
#define MINBUILD_LIB_LOOPS_BROADCAST_H_

#include "lib/loops/elementwise.h"
#include "lib/types/storage_type.h"

namespace minbuild {

// y[i] = f(a[i & a_mask], b[i & b_mask]) for i < count. A mask is -1, or 0 where one element serves all i: then the
// operand points to as many copies of it as the widest vector has lanes. A loop over three operands has c and c_mask too.
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
  for_range<kBaseline, T, BinaryBody<T, F>>(count, static_cast<T*>(y), static_cast<const T*>(a), a_mask,
                                            static_cast<const T*>(b), b_mask);
}
// For what vectors are not worth their bytes: f takes single elements.
template <class To, class T, class F>
MB_NOINLINE void single_loop(void* y, const void* a, int a_mask, const void* b, int b_mask, int count) {
  for (int i = 0; i < count; ++i)
    static_cast<To*>(y)[i] = F{}(static_cast<const T*>(a)[i & a_mask], static_cast<const T*>(b)[i & b_mask]);
}

// One element as often as the widest vector has lanes.
struct Copies {
  char bytes[32];

  MB_INLINE const char* of(const char* element, int size) {
    for (int i = 0; i < 32; ++i) bytes[i] = element[i & (size - 1)];
    return bytes;
  }
};

// Bytes of an element of y and of each operand, a byte each.
MB_INLINE constexpr int sizes_of(int y, int a, int b, int c = 0) { return y | a << 8 | b << 16 | c << 24; }
MB_INLINE int size_in(int sizes, int operand) { return sizes >> (8 * operand + 8) & 0xff; }

template <int N>
struct Operands {
  const char* at[N];
};
// Runs a loop over one stretch of N operands.
template <int N, class Loop>
MB_INLINE void run_loop(Loop loop, void* y, Operands<N> x, const int* masks, int count) {
  if constexpr (N == 2) {
    loop(y, x.at[0], masks[0], x.at[1], masks[1], count);
  } else {
    loop(y, x.at[0], masks[0], x.at[1], masks[1], x.at[2], masks[2], count);
  }
}

// The state of the loop at every axis. Steps are bytes from one element of an axis to the next.
template <int N, class Loop>
struct LoopNest {
  Loop loop;
  const int32_t* sizes;
  int last;   // axis
  int bytes;  // of elements
  char* to;
  ptrdiff_t steps[N][MB_MAX_RANK];
  Copies copies[N];

  // Along the last axis an operand moves, or stands.
  MB_INLINE void run(Operands<N> x) {
    int masks[N];
    for (int o = 0; o < N; ++o) {
      masks[o] = -(steps[o][last] != 0);
      if (masks[o] == 0) x.at[o] = copies[o].of(x.at[o], size_in(bytes, o));
    }
    run_loop(loop, to, x, masks, sizes[last]);
    to += static_cast<ptrdiff_t>(sizes[last]) * (bytes & 0xff);
  }
  MB_NOINLINE void descend(int axis, Operands<N> x) {
    if (axis == last) return run(x);
    for (int i = 0; i < sizes[axis]; ++i) {
      descend(axis + 1, x);
      for (int o = 0; o < N; ++o) x.at[o] += steps[o][axis];
    }
  }
};

// Where each operand has y's elements or a single one.
template <int N, class Loop>
MB_INLINE Status broadcast_scalars(const Tensor& y, const Tensor* x, int bytes, Loop loop) {
  Copies copies[N];
  Operands<N> from;
  int masks[N];
  for (int o = 0; o < N; ++o) {
    masks[o] = -(x[o].count == y.count);
    if (masks[o] == 0 && x[o].count != 1) return Status::kBadPlan;
    from.at[o] = masks[o] == 0 ? copies[o].of(x[o].data, size_in(bytes, o)) : x[o].data;
  }
  run_loop(loop, y.data, from, masks, y.count);
  return Status::kOk;
}

// Argument 0 = f(x[0], x[1], ...), elements of the sizes_of() `bytes`. Argument N + 1 holds the axes of the nest, bit
// i of parameter o says whether x[o] moves along axis i; no bits at all: each operand has y's elements or a single one.
template <bool kShapes, int N, class Loop>
MB_NOINLINE Status broadcast(const Call& call, const Tensor* x, int bytes, Loop loop) {
  const Tensor &y = call[0], &axes = call[N + 1];
  if (y.count == 0) return Status::kOk;
  if (!kShapes) return broadcast_scalars<N>(y, x, bytes, loop);
  int bits = 0;
  for (int o = 0; o < N; ++o) bits |= call.params[o];
  bool shapes = bits != 0;
  if (shapes && (axes.rank == 0 || axes.count != y.count)) return Status::kBadPlan;
  LoopNest<N, Loop> nest;
  nest.loop = loop;
  nest.sizes = shapes ? axes.dims : &y.count;
  nest.last = shapes ? axes.rank - 1 : 0;
  nest.bytes = bytes;
  nest.to = y.data;
  Operands<N> from;
  for (int o = 0; o < N; ++o) {
    int moves = shapes ? call.params[o] : x[o].count == y.count, count = 1;
    from.at[o] = x[o].data;
    for (int axis = nest.last; axis >= 0; --axis) {
      bool own = moves >> axis & 1;
      nest.steps[o][axis] = own ? static_cast<ptrdiff_t>(count) * size_in(bytes, o) : 0;
      if (own) count *= nest.sizes[axis];
    }
    if (count != x[o].count) return Status::kBadPlan;
  }
  nest.descend(0, from);
  return Status::kOk;
}

// Arguments 0 = f(1, 2), elements of To and of T.
template <class To, class T, bool kShapes>
MB_INLINE Status broadcast_two(const Call& call, BinaryLoop loop) {
  return broadcast<kShapes, 2>(call, &call[1], sizes_of(sizeof(To), sizeof(T), sizeof(T)), loop);
}

// Arguments 0 = f(1, 2), with no more machinery than the library's models need: real numbers in vectors, integers one by
// one.
template <class T, class F, bool kShapes, bool kScalars>
MB_INLINE Status binary(const Call& call) {
  if constexpr (!Stored<T>::is_real) {
    return broadcast_two<T, T, kShapes>(call, single_loop<T, T, F>);
  } else if constexpr (kShapes || kScalars) {
    return broadcast_two<T, T, kShapes>(call, binary_loop<T, F>);
  } else {
    return map<kBaseline, T>(call, F{}, 1, 2);
  }
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_LOOPS_BROADCAST_H_
