// Fills memory with copies of one element.
#ifndef MINBUILD_LIB_LOOPS_FILL_H_
#define MINBUILD_LIB_LOOPS_FILL_H_

#include "minbuild/kernel.h"

namespace minbuild {

// to[i] = element; what is there already is copied behind itself, as much as stays in the nearest cache.
template <class T>
MB_INLINE void fill_range(T* to, int count, T element) {
  constexpr int kMost = 4096 / sizeof(T);
  if (count == 0) return;
  *to = element;
  for (int done = 1, more; done < count; done += more) {
    more = done < kMost ? done : kMost;
    if (more > count - done) more = count - done;
    copy_bytes(to + done, to, more * sizeof(T));
  }
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_LOOPS_FILL_H_
