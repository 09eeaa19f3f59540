// Elementwise drivers. A kernel brings a functor over vectors; the loops over memory are written here once.
//
// Where the vector width is picked at run time, only the wide loop exists twice: what it leaves over, and everything on
// processors without wide vectors, goes through one loop over single elements.
#ifndef MINBUILD_LIB_LOOPS_ELEMENTWISE_H_
#define MINBUILD_LIB_LOOPS_ELEMENTWISE_H_

#include "minbuild/kernel.h"

namespace minbuild {

// Body::step<V>(i, args...) for i = 0, V::size, ... over `count` elements. V is a vector, at last of one lane.
template <class T, class Body>
struct WideLoop {
  template <class W, class... Args>
  static MB_INLINE int run(int count, Args... args) {
    using V = typename W::template of<T>;
    int i = 0;
    for (; i <= count - V::size; i += V::size) Body::template step<V>(i, args...);
    return i;
  }
};

template <class T, class Body, class... Args>
MB_INLINE void for_range(int count, Args... args) {
  int i = 0;
#if MB_DISPATCHES
  if (vector_bytes() >= 32) i = run_avx2<WideLoop<T, Body>>(count, args...);
#else
  i = dispatch<WideLoop<T, Body>>(count, args...);
#endif
  for (; i < count; ++i) Body::template step<Vec<T, 1>>(i, args...);
}

// y[i] = f(x0[i], x1[i], ...); y may be one of the inputs.
template <class T, class F>
struct MapBody {
  template <class V, class... X>
  static MB_INLINE void step(int i, F f, T* y, X... x) {
    f(V::load(x + i)...).store(y + i);
  }
};

template <class T, class F, class... X>
MB_INLINE void map_range(F f, int count, T* y, X... x) {
  for_range<T, MapBody<T, F>>(count, f, y, x...);
}

// One output (argument 0) and as many inputs of the same size as follow in `inputs`.
template <class T, class F, class... Index>
MB_INLINE Status map(const Call& call, F f, Index... inputs) {
  bool same = ((call[inputs].count == call[0].count) && ...);
  if (!same) return Status::kBadPlan;
  map_range<T>(f, call[0].count, call[0].as<T>(), static_cast<const T*>(call[inputs].template as<T>())...);
  return Status::kOk;
}

// For loops that wait for memory: vectors of 16 bytes, which every processor with vectors has, keep up with it, so one
// loop does, and the results are the same everywhere.
template <class T, class Body, class... Args>
MB_INLINE void stream_range(int count, Args... args) {
  using V = Width<16>::of<T>;
  int i = 0;
  for (; i <= count - V::size; i += V::size) Body::template step<V>(i, args...);
  for (; i < count; ++i) Body::template step<Vec<T, 1>>(i, args...);
}

// map() for functions that cost less than reading their arguments.
template <class T, class F, class... Index>
MB_INLINE Status stream(const Call& call, F f, Index... inputs) {
  bool same = ((call[inputs].count == call[0].count) && ...);
  if (!same) return Status::kBadPlan;
  stream_range<T, MapBody<T, F>>(call[0].count, f, call[0].as<T>(), static_cast<const T*>(call[inputs].template as<T>())...);
  return Status::kOk;
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_LOOPS_ELEMENTWISE_H_
