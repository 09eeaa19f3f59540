// Convolutions with one filter of 3x3 per channel over images with rows of five to eight elements, in steps of one, with
// a rim of one zero: a row is one vector, and is read three times, once for each column of the window, from the image
// itself.
#ifndef MINBUILD_LIB_NN_NARROW_IMAGES_H_
#define MINBUILD_LIB_NN_NARROW_IMAGES_H_

#include "lib/simd/vec.h"

namespace minbuild {

constexpr int kNarrow = 8, kSide = 3, kTaps = kSide * kSide;

// Reads rows as the columns of the window meet them, zeros where they meet the rim. An element before a row is read, too,
// and some behind it.
template <class T>
struct NarrowRows {
  using V = Vec<T, kNarrow>;
  using I = typename LaneBits<T>::type;
  int width;
  typename V::Bits kept[kSide];

  MB_INLINE explicit NarrowRows(int width) : width(width) {
    unroll<kSide>([&](auto side) MB_LAMBDA {
      for (int lane = 0; lane < kNarrow; ++lane) {
        const int at = lane + side - 1;
        kept[side].v[lane] = at >= 0 && at < width && lane < width ? -1 : 0;
      }
    });
  }
  MB_INLINE V load(const T* row, int side) const {
    return bits_as<T>(bits_as<I>(V::load(row + side - 1)) & kept[side]);
  }
};

// y[height,width] of x and w[3,3], whose taps are `step` apart; every sum starts with `first` and has the order of the
// taps. Up to three elements behind y are written to.
template <class T>
MB_INLINE void narrow_outputs(const NarrowRows<T>& rows, int height, const T* x, T* y, const T* w, intptr_t step,
                              Vec<T, kNarrow> first) {
  using V = Vec<T, kNarrow>;
  const V zero = T(0);
  V above = first, here = first;  // sums of the rows that end with this one and with the next
  V factors[kTaps];
  unroll<kTaps>([&](auto i) MB_LAMBDA { factors[i] = w[i * step]; });
  auto add = [&](V sums, const V* row, int tap) MB_LAMBDA {
    unroll<kSide>([&](auto side) MB_LAMBDA { sums = muladd(factors[tap + side], row[side], sums); });
    return sums;
  };
  V row[kSide] = {zero, zero, zero};
  here = add(here, row, 0);
  for (int q = 0;; x += rows.width) {
    unroll<kSide>([&](auto side) MB_LAMBDA { row[side] = rows.load(x, side); });
    above = add(above, row, 2 * kSide);
    if (q > 0) above.store(y), y += rows.width;
    above = add(here, row, kSide);
    if (++q == height) break;
    here = add(first, row, 0);
  }
  unroll<kSide>([&](auto side) MB_LAMBDA { row[side] = zero; });
  add(above, row, 2 * kSide).store(y);
}

// w[3,3] += what x and dy[height,width] give.
template <class T>
MB_INLINE void narrow_weights(const NarrowRows<T>& rows, int height, const T* x, const T* dy, T* w) {
  using V = Vec<T, kNarrow>;
  V sums[kTaps], flow[kSide];  // rows of dy: those that meet a row of x with each row of the window
  unroll<kTaps>([&](auto i) MB_LAMBDA { sums[i] = T(0); });
  flow[2] = T(0), flow[1] = rows.load(dy, 1);
  for (int q = 0; q < height; ++q, x += rows.width) {
    flow[0] = T(0);
    if (q + 1 < height) dy += rows.width, flow[0] = rows.load(dy, 1);
    unroll<kSide>([&](auto side) MB_LAMBDA {
      const V row = rows.load(x, side);
      unroll<kSide>([&](auto i) MB_LAMBDA {
        V& s = sums[i * kSide + side];
        s = muladd(row, flow[i], s);
      });
    });
    flow[2] = flow[1], flow[1] = flow[0];
  }
  unroll<kTaps>([&](auto i) MB_LAMBDA { w[i] += sum(sums[i]); });
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_NN_NARROW_IMAGES_H_
