// Copies between two places in memory along axes that step differently through each. The loop nest is written once for
// all elements; only the loop over the two innermost axes knows their size.
#ifndef MINBUILD_LIB_LOOPS_STRIDED_H_
#define MINBUILD_LIB_LOOPS_STRIDED_H_

#include "minbuild/kernel.h"

namespace minbuild {

// Steps are elements from one place along the axis to the next.
struct StridedAxis {
  int32_t size;
  ptrdiff_t to, from;
};

using StridedLoop = void (*)(char* to, const char* from, const StridedAxis* axes);

// y[j + i * rows] = x[i + j * columns] for 4 i and 4 j: rows and columns are steps in elements.
template <class T>
MB_INLINE void transpose_block(T* y, ptrdiff_t rows, const T* x, ptrdiff_t columns) {
  using V = Vec<int32_t, 4>;
  V in[4];
  unroll<4>([&](auto j) MB_LAMBDA { in[j] = V::load(reinterpret_cast<const int32_t*>(x + j * columns)); });
  unroll<4>([&](auto i) MB_LAMBDA {
    constexpr int kLane = decltype(i){};
    V out(typename V::Raw{in[0].v[kLane], in[1].v[kLane], in[2].v[kLane], in[3].v[kLane]});
    out.store(reinterpret_cast<int32_t*>(y + i * rows));
  });
}

// Over two axes, in tiles whose rows and columns both stay in the cache: one of them may be far apart in `from`.
template <class T>
MB_NOINLINE void strided_loop(char* to, const char* from, const StridedAxis* axes) {
  constexpr int kTile = 16;
  const StridedAxis rows = axes[0], columns = axes[1];
  T* y = reinterpret_cast<T*>(to);
  const T* x = reinterpret_cast<const T*>(from);
  if (columns.to == 1 && columns.from == 1) {
    for (int i = 0; i < rows.size; ++i, y += rows.to, x += rows.from) copy_bytes(y, x, columns.size * sizeof(T));
    return;
  }
  bool blocks = sizeof(T) == 4 && columns.to == 1 && rows.from == 1;
  for (int row = 0; row < rows.size; row += kTile) {
    int last = rows.size - row < kTile ? rows.size : row + kTile;
    for (int column = 0; column < columns.size; column += kTile) {
      int end = columns.size - column < kTile ? columns.size : column + kTile;
      int block_rows = blocks ? (last - row) & -4 : 0, block_columns = blocks ? (end - column) & -4 : 0;
      if constexpr (sizeof(T) == 4)
        for (int j = column; j < column + block_columns; j += 4)
          for (int i = row; i < row + block_rows; i += 4)
            transpose_block(y + i * rows.to + j, rows.to, x + i + j * columns.from, columns.from);
      for (int i = row; i < last; ++i) {
        int j = i < row + block_rows ? column + block_columns : column;
        T* put = y + i * rows.to + j * columns.to;
        const T* take = x + i * rows.from + j * columns.from;
        for (; j < end; ++j, put += columns.to, take += columns.from) *put = *take;
      }
    }
  }
}

struct StridedLoopNest {
  StridedAxis axes[MB_MAX_RANK + 1];
  int last;  // axis where the nest ends; two more belong to the loop
  int element;
  StridedLoop loop;

  MB_NOINLINE void descend(int axis, char* to, const char* from) const {
    if (axis == last) return loop(to, from, axes + axis);
    const StridedAxis& a = axes[axis];
    for (int i = 0; i < a.size; ++i, to += a.to * element, from += a.from * element) descend(axis + 1, to, from);
  }

  // Over `count` axes that start at axes[1]. Elements that lie side by side in `from` become neighbours in the loop.
  MB_INLINE void run(int count, char* to, const char* from) {
    axes[0] = {1, 0, 0};
    for (int i = count - 2; i > 0; --i) {
      if (axes[count].from == 1 || axes[i].from != 1) continue;
      StridedAxis row = axes[i];
      for (; i < count - 1; ++i) axes[i] = axes[i + 1];
      axes[i] = row;
      break;
    }
    last = count - 1;
    descend(0, to, from);
  }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_LOOPS_STRIDED_H_
