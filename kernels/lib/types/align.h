// The alignment of all memory that a plan places: tensors of the arena, scratch of kernels, and the parts of a session.
// Kernels load whole vectors from there. The arena planner rounds by the same number (minbuild/planning).
#ifndef MINBUILD_LIB_TYPES_ALIGN_H_
#define MINBUILD_LIB_TYPES_ALIGN_H_

#include <stddef.h>
#include <stdint.h>

namespace minbuild {

constexpr size_t kAlignment = 16;

// The next multiple of kAlignment.
__attribute__((always_inline)) constexpr size_t align16(size_t n) { return (n + kAlignment - 1) & ~(kAlignment - 1); }
// The last multiple of kAlignment that is not above it.
__attribute__((always_inline)) constexpr uintptr_t align_down(uintptr_t n) { return n & ~uintptr_t{kAlignment - 1}; }

}  // namespace minbuild
#endif  // MINBUILD_LIB_TYPES_ALIGN_H_
