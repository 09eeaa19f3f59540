// Where the parts of a session are in the one piece of memory that holds it.
#ifndef MINBUILD_RUNTIME_LAYOUT_H_
#define MINBUILD_RUNTIME_LAYOUT_H_

#include <stddef.h>

#include "lib/types/align.h"

namespace minbuild {

// Offsets from the session's start. Each is a multiple of 16: the persistent region and the arena behind it hold vectors,
// and a kernel's scratch is its address rounded down to 16 (Tensor::scratch), which stays within the scratch only where
// the arena starts at a multiple of 16. The size of a span is a parameter because it is 8 bytes where pointers have 4: an
// odd number of spans is then no multiple of 16.
struct Layout {
  size_t regions, values, persistent;
};

__attribute__((always_inline)) constexpr Layout layout_of(size_t session, size_t span, size_t spans, size_t expressions,
                                                          size_t expression = 4) {
  size_t regions = align16(session);
  size_t values = regions + align16(spans * span);
  return {regions, values, values + align16(expressions * expression)};
}

}  // namespace minbuild

#endif  // MINBUILD_RUNTIME_LAYOUT_H_
