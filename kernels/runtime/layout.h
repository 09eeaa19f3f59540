// Where the parts of a session are in the one piece of memory that holds it.
#ifndef MINBUILD_RUNTIME_LAYOUT_H_
#define MINBUILD_RUNTIME_LAYOUT_H_

#include <stddef.h>

#include "lib/types/align.h"
#include "minbuild/config.h"

namespace minbuild {

// Where the persistent region and the arena may begin, `n` being a multiple of 16: there, or at the next line of the cache
// in libraries with large products, which read whole lines as vectors.
constexpr size_t kRegionAlignment = MB_LARGE_PAGES ? 64 : kAlignment;
__attribute__((always_inline)) constexpr size_t align_region(size_t n) {
  return MB_LARGE_PAGES ? (n + kRegionAlignment - 1) & ~(kRegionAlignment - 1) : n;
}

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
  return {regions, values, align_region(values + align16(expressions * expression))};
}

}  // namespace minbuild

#endif  // MINBUILD_RUNTIME_LAYOUT_H_
