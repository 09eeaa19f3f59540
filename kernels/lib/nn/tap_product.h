// Products of convolutions whose sums run over taps in registers: planes (phase_planes.h) are read in place, tap by tap,
// and results are written once. Engines of WebAssembly gain by it: they spend long on the ends of short sums.
#ifndef MINBUILD_LIB_NN_TAP_PRODUCT_H_
#define MINBUILD_LIB_NN_TAP_PRODUCT_H_

#include "lib/gemm/microkernel.h"

namespace minbuild {

// C[rows,columns] = sum over taps of A[tap][rows,depth] * B[depth,columns], where B is read `direction` * places[tap]
// elements further; added to C if `accumulate`. Element (row, k) of A[tap] is a[row * a_row + k * a_col + tap].
template <class T>
struct TapProduct {
  static constexpr int kRows = 4, kVectors = 2;
  using V = Vec<T, 16 / int(sizeof(T))>;
  static constexpr int kColumns = kVectors * V::size;

  intptr_t rows, columns, depth;  // at least one of each, and kColumns columns
  const T* a;
  intptr_t a_row, a_col;
  const T* b;
  intptr_t b_row;
  T* c;
  intptr_t c_row;
  const int* places;
  int taps, direction;
  bool accumulate;

  MB_NOINLINE void run() const {
    for (intptr_t j = 0;;) {
      const T* a_rows = a;
      T* c_rows = c + j;
      for (intptr_t left = rows; left > 0; left -= kRows, a_rows += kRows * a_row, c_rows += kRows * c_row)
        tile(a_rows, b + j, c_rows, left);
      if (accumulate ? j + kColumns >= columns : j == columns - kColumns) return;
      j += kColumns;
      if (!accumulate && j > columns - kColumns) j = columns - kColumns;  // some columns once more
    }
  }

  MB_INLINE void tile(const T* from, const T* column, T* out, intptr_t live) const {
    constexpr intptr_t kSize = sizeof(T);
    V x[kRows][kVectors];
    unroll<kRows>([&](auto r) MB_LAMBDA { unroll<kVectors>([&](auto v) MB_LAMBDA { x[r][v] = V(T(0)); }); });
    const T* each[kRows];
    point_at_rows(each, from, a_row, live);
    intptr_t apart[kRows], a_step = a_col * kSize, b_step = b_row * kSize;
    unroll<kRows>([&](auto r) MB_LAMBDA {
      apart[r] = (each[r] - from) * kSize;
      MB_OPAQUE(apart[r]);
    });
    MB_OPAQUE(a_step);
    MB_OPAQUE(b_step);
    for (int tap = 0; tap < taps; ++tap) {
      const char* at = reinterpret_cast<const char*>(from + tap);
      const char* row = reinterpret_cast<const char*>(column + intptr_t(places[tap]) * direction);
      intptr_t k = depth;
      do {
        V values[kVectors];
        unroll<kVectors>([&](auto v) MB_LAMBDA { values[v] = V::load(reinterpret_cast<const T*>(row) + v * V::size); });
        unroll<kRows>([&](auto r) MB_LAMBDA {
          const V factor = *reinterpret_cast<const T*>(r == 0 ? at : at + apart[r]);
          unroll<kVectors>([&](auto v) MB_LAMBDA { x[r][v] = muladd(factor, values[v], x[r][v]); });
        });
        at += a_step;
        row += b_step;
      } while (--k > 0);
    }
    // Rows that stand in for others are the last one, whose sums are stored again: additions come first.
    T* to[kRows];
    unroll<kRows>([&](auto r) MB_LAMBDA {
      to[r] = out;
      if (r + 1 < live && r + 1 < kRows) out += c_row;
    });
    if (accumulate)
      unroll<kRows>([&](auto r) MB_LAMBDA {
        unroll<kVectors>([&](auto v) MB_LAMBDA { x[r][v] = x[r][v] + V::load(to[r] + v * V::size); });
      });
    unroll<kRows>([&](auto r)
                      MB_LAMBDA { unroll<kVectors>([&](auto v) MB_LAMBDA { x[r][v].store(to[r] + v * V::size); }); });
  }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_NN_TAP_PRODUCT_H_
