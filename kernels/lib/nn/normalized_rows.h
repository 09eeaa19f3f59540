// Layer normalization of several rows at once, so that sums do not wait for themselves: with the bits of one by one
// (ops/normalization/layer_normalization.cc).
#ifndef MINBUILD_LIB_NN_NORMALIZED_ROWS_H_
#define MINBUILD_LIB_NN_NORMALIZED_ROWS_H_

#include "lib/simd/math.h"

namespace minbuild {

constexpr int kTogether = 4;  // rows

// Of `rows` rows of `length` elements, each of which has its own entry of scale and bias.
template <class T>
struct NormalizedRows {
  T *y, *mean, *inv_std;      // each may be null
  const T *x, *scale, *bias;  // bias may be null
  int rows, length;
  bool simple;
  T epsilon;

  // sums += x, or (x - mean)^2
  template <bool kSquares, class V>
  static MB_INLINE void add(const T* x, intptr_t length, const T* means, V* sums) {
    unroll<kTogether>([&](auto i) MB_LAMBDA {
      V each = V::load(x + i * length);
      if (kSquares) each = each - V(means[i]), sums[i] = muladd(each, each, sums[i]);
      else sums[i] = sums[i] + each;
    });
  }
  template <bool kSquares, class V>
  static MB_INLINE void add_up(const T* x, int length, const T* means, T* sums) {
    V all[kTogether];
    Vec<T, 1> rest[kTogether];
    unroll<kTogether>([&](auto i) MB_LAMBDA { all[i] = T(0), rest[i] = T(0); });
    int at = 0;
    for (; at <= length - V::size; at += V::size) add<kSquares>(x + at, length, means, all);
    for (; at < length; ++at) add<kSquares>(x + at, length, means, rest);
    unroll<kTogether>([&](auto i) MB_LAMBDA { sums[i] = sum(all[i]) + sum(rest[i]); });
  }
  template <class V>
  MB_INLINE void write(const T* from, T* to, int at, const T* means, const T* inverses) const {
    const V factor = V::load(scale + at);
    unroll<kTogether>([&](auto i) MB_LAMBDA {
      const intptr_t place = intptr_t(i) * length + at;
      V each = (V::load(from + place) - V(means[i])) * V(inverses[i]) * factor;
      if (bias) each = each + V::load(bias + at);
      each.store(to + place);
    });
  }

  // Returns the rows that are done; fewer than four are not.
  template <class W>
  static MB_INLINE int run(const NormalizedRows* of) {
    using V = typename W::template of<T>;
    const NormalizedRows r = *of;
    const T size = static_cast<T>(r.length);
    int row = 0;
    for (; row + kTogether <= r.rows; row += kTogether) {
      const intptr_t first = intptr_t(row) * r.length;
      const T* x = r.x + first;
      T means[kTogether] = {}, inverses[kTogether], sums[kTogether];
      if (!r.simple) {
        add_up<false, V>(x, r.length, means, sums);
        for (int i = 0; i < kTogether; ++i) means[i] = sums[i] / size;
      }
      add_up<true, V>(x, r.length, means, sums);
      for (int i = 0; i < kTogether; ++i) {
        (Vec<T, 1>(T(1)) / sqrt(Vec<T, 1>(sums[i] / size + r.epsilon))).store(inverses + i);
        if (r.mean) r.mean[row + i] = means[i];
        if (r.inv_std) r.inv_std[row + i] = inverses[i];
      }
      if (!r.y) continue;
      int at = 0;
      for (; at <= r.length - V::size; at += V::size) r.template write<V>(x, r.y + first, at, means, inverses);
      for (; at < r.length; ++at) r.template write<Vec<T, 1>>(x, r.y + first, at, means, inverses);
    }
    return row;
  }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_NN_NORMALIZED_ROWS_H_
