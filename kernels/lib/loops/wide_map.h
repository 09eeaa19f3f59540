// Elementwise functions that take much code, at the widest vectors of the processor. What a vector has too much at the
// end is filled up with zeros, so that the code of a function exists once per width.
#ifndef MINBUILD_LIB_LOOPS_WIDE_MAP_H_
#define MINBUILD_LIB_LOOPS_WIDE_MAP_H_

#include "minbuild/kernel.h"

namespace minbuild {

template <class T, class F>
struct FilledLoop {
  template <class W, class... X>
  static MB_INLINE void run(F f, int left, T* y, X... x) {
    using V = typename W::template of<T>;
    for (; left > 0; left -= V::size, y += V::size, ((x += V::size), ...)) f(V::load(x, left)...).store(y, left);
  }
};

template <class T, class F, int kMost, class... Index>
MB_INLINE Status map_filled(const Call& call, F f, Index... inputs) {
  bool same = ((call[inputs].count == call[0].count) && ...);
  if (!same) return Status::kBadPlan;
  int count = call[0].count;
  T* y = call[0].as<T>();
  if constexpr (kMost > 16) {
    dispatch<FilledLoop<T, F>>(f, count, y, static_cast<const T*>(call[inputs].template as<T>())...);
  } else {
    FilledLoop<T, F>::template run<Width<16>>(f, count, y, static_cast<const T*>(call[inputs].template as<T>())...);
  }
  return Status::kOk;
}

// y = f(x0, x1, ...): argument 0 and as many inputs of the same size as follow in `inputs`. For what models compute all
// the time; double is for tests of gradients and takes vectors of 16 bytes, which every processor with vectors has.
template <class T, class F, class... Index>
MB_INLINE Status map_wide(const Call& call, F f, Index... inputs) {
  return map_filled<T, F, sizeof(T) == 4 ? 32 : 16>(call, f, inputs...);
}

// The same in less code and time of its own, for what models seldom compute.
template <class T, class F, class... Index>
MB_INLINE Status map_narrow(const Call& call, F f, Index... inputs) {
  return map_filled<T, F, 16>(call, f, inputs...);
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_LOOPS_WIDE_MAP_H_
