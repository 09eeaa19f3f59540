// Copying and clearing bytes. On x86-64 the processor has instructions for both, shorter than a call and as fast for
// all but few bytes: with memcpy and memset instead mlp's trainer is 288 bytes larger and computes the same. Elsewhere
// the C library does it, or runtime/memops.c. `volatile` and "memory" are needed for the results: the compiler does not
// see what the instructions read and write.
#ifndef MINBUILD_LIB_TYPES_BYTES_H_
#define MINBUILD_LIB_TYPES_BYTES_H_

#include <stddef.h>

#include "lib/simd/vec.h"

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)  // sanitizers want to see every access
#define MB_STRING_INSTRUCTIONS 1
#else
#define MB_STRING_INSTRUCTIONS 0
#endif

namespace minbuild {

// The two places do not overlap, or are the same.
MB_INLINE void copy_bytes(void* to, const void* from, size_t size) {
#if MB_STRING_INSTRUCTIONS
  __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(size) : : "memory");
#else
  __builtin_memcpy(to, from, size);
#endif
}

MB_INLINE void clear_bytes(void* at, size_t size) {
#if MB_STRING_INSTRUCTIONS
  __asm__ volatile("rep stosb" : "+D"(at), "+c"(size) : "a"(0) : "memory");
#else
  __builtin_memset(at, 0, size);
#endif
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_TYPES_BYTES_H_
