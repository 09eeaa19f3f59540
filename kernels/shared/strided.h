// Copies between two places in memory along axes that step differently through each. The walk is written once for all
// elements; only the loop over the two innermost axes knows their size.
#ifndef MINBUILD_SHARED_STRIDED_H_
#define MINBUILD_SHARED_STRIDED_H_

#include "minbuild/kernel.h"

namespace minbuild {

// Steps are elements from one place along the axis to the next.
struct StridedAxis {
  int32_t size;
  ptrdiff_t to, from;
};

using StridedLoop = void (*)(char* to, const char* from, const StridedAxis* axes);

// Over two axes, in tiles whose rows and columns both stay in the cache: one of them may be far apart in `from`.
template <class T>
MB_NOINLINE void strided_loop(char* to, const char* from, const StridedAxis* axes) {
  constexpr int kTile = 16;
  const StridedAxis rows = axes[0], columns = axes[1];
  T* y = reinterpret_cast<T*>(to);
  const T* x = reinterpret_cast<const T*>(from);
  if (columns.to == 1 && columns.from == 1) {
    for (int i = 0; i < rows.size; ++i, y += rows.to, x += rows.from) __builtin_memcpy(y, x, columns.size * sizeof(T));
    return;
  }
  for (int row = 0; row < rows.size; row += kTile) {
    int last = rows.size - row < kTile ? rows.size : row + kTile;
    for (int column = 0; column < columns.size; column += kTile) {
      int end = columns.size - column < kTile ? columns.size : column + kTile;
      for (int i = row; i < last; ++i) {
        T* put = y + i * rows.to + column * columns.to;
        const T* take = x + i * rows.from + column * columns.from;
        for (int j = column; j < end; ++j, put += columns.to, take += columns.from) *put = *take;
      }
    }
  }
}

struct StridedWalk {
  StridedAxis axes[MB_MAX_RANK + 1];
  int last;  // axis of the outer walk; two more belong to the loop
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
#endif  // MINBUILD_SHARED_STRIDED_H_
