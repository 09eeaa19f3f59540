// Where a session's own memory comes from. Libraries built without an operating system have none to give, and their
// callers hand over the arena.
#ifndef MINBUILD_RUNTIME_MEMORY_H_
#define MINBUILD_RUNTIME_MEMORY_H_

#include <stddef.h>

#include "minbuild/config.h"

#pragma GCC visibility push(hidden)
namespace minbuild {

#if MB_FILES
void* map_memory(size_t size);  // zeroed; null when there is no more
void unmap_memory(void* memory, size_t size);
#else
inline void* map_memory(size_t) { return nullptr; }
inline void unmap_memory(void*, size_t) {}
#endif

}  // namespace minbuild
#pragma GCC visibility pop
#endif  // MINBUILD_RUNTIME_MEMORY_H_
