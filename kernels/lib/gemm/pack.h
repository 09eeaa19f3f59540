// Packing of operands for packed_blocks.h: what a tile multiplies at one depth lies together.
#ifndef MINBUILD_LIB_GEMM_PACK_H_
#define MINBUILD_LIB_GEMM_PACK_H_

#include "lib/gemm/microkernel.h"
#include "lib/gemm/transpose.h"

namespace minbuild {

// Rows that are transposed at once at a width: as many as a vector has lanes, eight at most.
template <class T, class W>
constexpr int kGroup = MB_SHUFFLES && sizeof(T) == 4 && W::bytes > 16 ? 8 : 4;

// to[c * to_step + r] = from[r * from_step + c], within bounds.
template <class T>
MB_NOINLINE void transpose(const T* from, intptr_t from_step, T* to, intptr_t to_step, intptr_t rows,
                           intptr_t columns) {
  const intptr_t whole = columns & -4;
  for (; rows >= 4; rows -= 4, from += 4 * from_step, to += 4) {
    const T* four[4];
    point_at_rows(four, from, from_step, 4);
    transpose_group(four, whole, to, to_step, 0);
    for (intptr_t c = whole; c < columns; ++c)
      for (int r = 0; r < 4; ++r) to[c * to_step + r] = four[r][c];
  }
  for (; rows > 0; --rows, from += from_step, ++to)
    for (intptr_t c = 0; c < columns; ++c) to[c * to_step] = from[c];
}

// Panels of `step` rows each, one after the other; of a panel, to[c * step + r] = x[r * row + c * column]. Writes whole
// vectors, and so up to one beyond its end; what the last panel lacks of its rows is left alone or overwritten.
template <class T>
struct PackBody {
  // Rows lie next to each other: some panels at a time, so that what is read at once lies together too.
  template <int Bytes>
  static MB_INLINE void copy(const T* x, intptr_t column, T* to, intptr_t step, intptr_t rows, intptr_t columns) {
    using V = Vec<T, Bytes / int(sizeof(T))>;
    constexpr intptr_t kPanels = 8, kAhead = 16, kLine = 64 / sizeof(T);
    const intptr_t panel = step * columns;
    for (; rows > 0; rows -= kPanels * step, x += kPanels * step, to += kPanels * panel) {
      const intptr_t some = rows < kPanels * step ? rows : kPanels * step;
      const intptr_t whole = step % V::size == 0 ? some : 0;  // of panels that are whole vectors: they need no end
      const T* from = x;
      T* first = to;
      for (intptr_t c = columns; c > 0; --c, from += column, first += step) {
        for (intptr_t r = 0; r < some; r += kLine) __builtin_prefetch(from + kAhead * column + r, 0, 2);
        T* at = first;
        intptr_t done = 0;
        for (; done <= whole - step; done += step, at += panel)
          for (intptr_t r = 0; r < step; r += V::size) V::load(from + done + r).store(at + r);
        for (; done < some; done += step, at += panel) {
          const T* each = from + done;
          const intptr_t live = some - done < step ? some - done : step;
          intptr_t r = 0;
          for (; r <= live - V::size; r += V::size) V::load(each + r).store(at + r);
          if (live >= V::size) V::load(each + live - V::size).store(at + live - V::size);
          else
            for (; r < live; ++r) at[r] = each[r];
        }
      }
    }
  }

  template <class W>
  static MB_INLINE void run(const T* x, intptr_t row, intptr_t column, T* to, intptr_t step, intptr_t rows,
                            intptr_t columns) {
    if (row == 1) {
      if (W::bytes > 16 && step * intptr_t(sizeof(T)) % 32 == 0) return copy<32>(x, column, to, step, rows, columns);
      return copy<16>(x, column, to, step, rows, columns);
    }
    for (; rows > 0; rows -= step, x += step * row, to += step * columns) {
      const intptr_t live = rows < step ? rows : step;
      intptr_t done = 0;
      if (MB_SHUFFLES && sizeof(T) == 4 && column == 1) {
        constexpr int kRows = kGroup<T, W>;
        done = columns & -4;
        // The last rows first: what they write too much, the others overwrite.
        for (intptr_t first = (live - 1) & -kRows; first >= 0; first -= kRows) {
          const T* from[kRows];
          point_at_rows(from, x + first * row, row, live - first);
          transpose_group(from, done, to + first, step, rows > step ? step * row : 0);
        }
      }
      for (intptr_t r = 0; r < live; ++r)
        for (intptr_t c = done; c < columns; ++c) to[c * step + r] = x[r * row + c * column];
    }
  }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_GEMM_PACK_H_
