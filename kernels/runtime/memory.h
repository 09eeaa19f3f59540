// Where a session's own memory comes from. A WebAssembly module grows its memory, which nothing can shrink again: who
// makes many sessions hands over the arena. Libraries for machines without an operating system have none to give.
#ifndef MINBUILD_RUNTIME_MEMORY_H_
#define MINBUILD_RUNTIME_MEMORY_H_

#include "runtime/session.h"

#pragma GCC visibility push(hidden)
namespace minbuild {

#if MB_FILE_IO
void* map_memory(size_t size);              // zeroed; null when there is no more
void unmap_memory(Span* spans, int count);  // the last first; those without data are not mapped
#elif defined(__wasm__)
inline void* map_memory(size_t size) {
  const size_t page = 65536, before = __builtin_wasm_memory_grow(0, (size + page - 1) / page);
  return before == ~size_t{0} ? nullptr : reinterpret_cast<void*>(before * page);
}
inline void unmap_memory(Span*, int) {}
#else
inline void* map_memory(size_t) { return nullptr; }
inline void unmap_memory(Span*, int) {}
#endif

}  // namespace minbuild
#pragma GCC visibility pop
#endif  // MINBUILD_RUNTIME_MEMORY_H_
