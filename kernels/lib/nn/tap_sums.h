// One filter on one channel of padded planes (phase_planes.h), with the bits of tap after tap: results stay in registers
// until all taps are in them. Engines of WebAssembly gain by it, for which memory costs more than arithmetic.
#ifndef MINBUILD_LIB_NN_TAP_SUMS_H_
#define MINBUILD_LIB_NN_TAP_SUMS_H_

#include "lib/simd/vec.h"

namespace minbuild {

template <class T>
struct TapSums {
  using V = Vec<T, 16 / int(sizeof(T))>;
  static constexpr int kTogether = 3;  // weights' gradients at once

  // y[i] = first + the sum of w[tap] * x[i + direction * places[tap]], for `count` elements, whole vectors of 16.
  static MB_NOINLINE void outputs(intptr_t count, const T* x, T* y, const T* w, const int* places, int taps,
                                  int direction, T first) {
    constexpr int kMany = 8, kFew = 4;
    for (; count >= kMany * V::size; count -= kMany * V::size, x += kMany * V::size, y += kMany * V::size)
      vectors<kMany>(x, y, w, places, taps, direction, first);
    for (; count > 0; count -= kFew * V::size, x += kFew * V::size, y += kFew * V::size)
      vectors<kFew>(x, y, w, places, taps, direction, first);
  }
  template <int kVectors>
  static MB_INLINE void vectors(const T* x, T* y, const T* w, const int* places, int left, int direction, T first) {
    V sums[kVectors];
    unroll<kVectors>([&](auto v) MB_LAMBDA { sums[v] = V(first); });
    do {
      const V factor = *w++;
      const T* from = x + intptr_t(*places++) * direction;
      unroll<kVectors>([&](auto v) MB_LAMBDA { sums[v] = muladd(factor, V::load(from + v * V::size), sums[v]); });
    } while (--left > 0);
    unroll<kVectors>([&](auto v) MB_LAMBDA { sums[v].store(y + v * V::size); });
  }

  // w[tap] += the sum of x[i + places[tap]] * y[i], for `count` elements, a multiple of two vectors.
  static MB_NOINLINE void weights(intptr_t count, const T* x, const T* y, T* w, const int* places, int taps) {
    for (; taps >= kTogether; taps -= kTogether, places += kTogether, w += kTogether)
      add<kTogether>(count, x, y, w, places);
    for (; taps > 0; --taps, ++places, ++w) add<1>(count, x, y, w, places);
  }
  template <int kTaps>
  static MB_INLINE void add(intptr_t left, const T* x, const T* y, T* w, const int* places) {
    V sums[kTaps][2];
    intptr_t apart[kTaps];  // in bytes, from the first tap on
    unroll<kTaps>([&](auto t) MB_LAMBDA {
      sums[t][0] = sums[t][1] = V(T(0));
      apart[t] = intptr_t(places[t] - places[0]) * intptr_t(sizeof(T));
      if (t > 0) MB_OPAQUE(apart[t]);
    });
    const char* from = reinterpret_cast<const char*>(x + places[0]);
    do {
      const V factors[] = {V::load(y), V::load(y + V::size)};
      unroll<kTaps>([&](auto t) MB_LAMBDA {
        const T* at = reinterpret_cast<const T*>(t > 0 ? from + apart[t] : from);
        unroll<2>([&](auto s) MB_LAMBDA { sums[t][s] = muladd(V::load(at + s * V::size), factors[s], sums[t][s]); });
      });
      from += 2 * sizeof(V);
      y += 2 * V::size;
    } while ((left -= 2 * V::size) > 0);
    unroll<kTaps>([&](auto t) MB_LAMBDA { w[t] += sum(sums[t][0] + sums[t][1]); });
  }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_NN_TAP_SUMS_H_
