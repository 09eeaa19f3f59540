// Pairs of neighbours: apart into two vectors, and together again.
#ifndef MINBUILD_LIB_SIMD_PAIRS_H_
#define MINBUILD_LIB_SIMD_PAIRS_H_

#include "lib/simd/vec.h"

namespace minbuild {

// Of each pair in two vectors that follow each other, the first element (`Of` 0) or the second (1).
template <int Of, class T, int N, int... I>
MB_INLINE Vec<T, N> of_pairs(Vec<T, N> low, Vec<T, N> high, Constant<I>... at) {
  if constexpr (sizeof...(I) < N) {
    return of_pairs<Of>(low, high, at..., Constant<int(sizeof...(I))>{});
  } else {
#if MB_SHUFFLES
    return typename Vec<T, N>::Raw(__builtin_shufflevector(low.v, high.v, (2 * I + Of)...));
#else
    return typename Vec<T, N>::Raw{(2 * I + Of < N ? low.v[(2 * I + Of) % N] : high.v[(2 * I + Of) % N])...};
#endif
  }
}

// The pairs of elements at the same place of two vectors: the first half of them (`Half` 0) or the second (1).
template <int Half, class T, int N, int... I>
MB_INLINE Vec<T, N> in_pairs(Vec<T, N> first, Vec<T, N> second, Constant<I>... at) {
  if constexpr (sizeof...(I) < N) {
    return in_pairs<Half>(first, second, at..., Constant<int(sizeof...(I))>{});
  } else {
#if MB_SHUFFLES
    return typename Vec<T, N>::Raw(
        __builtin_shufflevector(first.v, second.v, ((Half * N + I) / 2 + (Half * N + I) % 2 * N)...));
#else
    return
        typename Vec<T, N>::Raw{((Half * N + I) % 2 ? second.v[(Half * N + I) / 2] : first.v[(Half * N + I) / 2])...};
#endif
  }
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_SIMD_PAIRS_H_
