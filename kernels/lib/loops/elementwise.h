// Elementwise loops: a kernel brings a functor over vectors, the walk over memory is written once, here.
//
//   form                        vectors                 rest of a range       take it for
//   map<kBaseline, T>           16 bytes, everywhere    one element a time    functions that cost less than reading their
//                                                                             arguments (add, relu): memory is the limit
//   map<kWidest, T>             widest at run time      one element a time    short functions with some arithmetic
//   map_padded<kBaseline, T>    16 bytes, everywhere    padded with zeros     long functions that models seldom compute
//   map_padded<kWidest, T>      widest at run time      padded with zeros     long functions in hot places (exp, tanh, gelu)
//
// map compiles the functor once more for single elements, which is free where the functor is a few instructions;
// map_padded zero-fills the tail lanes of the last vector instead, so that a long functor exists once per width.
// for_range<...> and map_range<...> are the same loops over plain pointers, for kernels with their own arguments.
#ifndef MINBUILD_LIB_LOOPS_ELEMENTWISE_H_
#define MINBUILD_LIB_LOOPS_ELEMENTWISE_H_

#include "minbuild/kernel.h"

namespace minbuild {

// Bytes of a vector: what every processor with vectors has, or the most that the processor at hand has.
enum Lanes : int { kBaseline = 16, kWidest = 32 };

// Body::step<V>(i, args...) for i = 0, V::size, ... as far as whole vectors reach; returns where they end.
template <class T, class Body>
struct WholeVectors {
  template <class W, class... Args>
  static MB_INLINE int run(int count, Args... args) {
    using V = typename W::template of<T>;
    int i = 0;
    for (; i <= count - V::size; i += V::size) Body::template step<V>(i, args...);
    return i;
  }
};

// The same over `count` elements, single elements last. Where the vector width is picked at run time only the wide loop
// exists twice: its rest, and everything on processors without wide vectors, goes through one loop over single elements.
template <Lanes kLanes, class T, class Body, class... Args>
MB_INLINE void for_range(int count, Args... args) {
  int i = 0;
  if constexpr (kLanes == kBaseline) {
    i = WholeVectors<T, Body>::template run<Width<kNarrowBytes>>(count, args...);
  } else {
#if MB_DISPATCHES
    if (vector_bytes() >= 32) i = run_avx2<WholeVectors<T, Body>>(count, args...);
#else
    i = dispatch<WholeVectors<T, Body>>(count, args...);
#endif
  }
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

template <Lanes kLanes, class T, class F, class... X>
MB_INLINE void map_range(F f, int count, T* y, X... x) {
  for_range<kLanes, T, MapBody<T, F>>(count, f, y, x...);
}

// One output (argument 0) and as many inputs of the same size as follow in `inputs`.
template <Lanes kLanes, class T, class F, class... Index>
MB_INLINE Status map(const Call& call, F f, Index... inputs) {
  bool same = ((call[inputs].count == call[0].count) && ...);
  if (!same) return Status::kBadPlan;
  map_range<kLanes>(f, call[0].count, call[0].as<T>(), static_cast<const T*>(call[inputs].template as<T>())...);
  return Status::kOk;
}

template <class T, class F, int kAtOnce>
struct PaddedLoop {
  template <class W, class... X>
  static MB_INLINE void run(F f, int left, T* y, X... x) {
    using V = Vec<T, W::template of<T>::size * kAtOnce>;
    for (; left > 0; left -= V::size, y += V::size, ((x += V::size), ...)) f(V::load(x, left)...).store(y, left);
  }
};

// The same with the tail lanes of the last vector zero-filled. double serves tests of gradients and takes 16 bytes. Of
// several vectors at once the steps overlap, and constants are read once; they may be of AVX-512.
template <Lanes kLanes, class T, int kAtOnce = 1, class F, class... Index>
MB_INLINE Status map_padded(const Call& call, F f, Index... inputs) {
  bool same = ((call[inputs].count == call[0].count) && ...);
  if (!same) return Status::kBadPlan;
  int count = call[0].count;
  T* y = call[0].as<T>();
  if constexpr (kLanes == kWidest && sizeof(T) == 4 && kAtOnce > 1) {
    run_at<PaddedLoop<T, F, kAtOnce>, 64>(widest_bytes(), f, count, y,
                                          static_cast<const T*>(call[inputs].template as<T>())...);
  } else if constexpr (kLanes == kWidest && sizeof(T) == 4) {
    dispatch<PaddedLoop<T, F, kAtOnce>>(f, count, y, static_cast<const T*>(call[inputs].template as<T>())...);
  } else {
    PaddedLoop<T, F, 1>::template run<Width<kNarrowBytes>>(f, count, y,
                                                           static_cast<const T*>(call[inputs].template as<T>())...);
  }
  return Status::kOk;
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_LOOPS_ELEMENTWISE_H_
