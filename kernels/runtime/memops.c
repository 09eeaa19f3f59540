// memcpy and memset for libraries that would import nothing else: what the compiler makes of copied and cleared structs.
// Vectors go to any address; elsewhere machine words do where they are aligned. HIDE keeps the compiler from making
// calls of memcpy and memset of the loops: these functions would then call themselves for ever.
#include <stddef.h>
#include <stdint.h>

#if defined(__ARM_NEON)
typedef uint8_t Chunk __attribute__((vector_size(16), aligned(1), may_alias));
#define FILLED(byte) ((Chunk){0} + (byte))
#define ALIGNED(place) 1
#else
typedef uintptr_t Chunk __attribute__((may_alias));
#define FILLED(byte) (~(Chunk)0 / 255 * (byte))
#define ALIGNED(place) ((place) % sizeof(Chunk) == 0)
#endif
#define HIDE(place) __asm__("" : "+r"(place))
#define LOCAL __attribute__((visibility("hidden")))

LOCAL void* memcpy(void* restrict start, const void* restrict from, size_t size) {
  char* to = start;
  const char* x = from;
  if (ALIGNED((uintptr_t)to | (uintptr_t)x)) {
    for (; size >= sizeof(Chunk); size -= sizeof(Chunk)) {
      *(Chunk*)to = *(const Chunk*)x;
      to += sizeof(Chunk), x += sizeof(Chunk);
      HIDE(to);
    }
  }
  for (; size > 0; --size) {
    *to++ = *x++;
    HIDE(to);
  }
  return start;
}

LOCAL void* memset(void* start, int value, size_t size) {
  const uint8_t byte = (uint8_t)value;
  char* to = start;
  const Chunk filled = FILLED(byte);
  if (ALIGNED((uintptr_t)to)) {
    for (; size >= sizeof(Chunk); size -= sizeof(Chunk)) {
      *(Chunk*)to = filled;
      to += sizeof(Chunk);
      HIDE(to);
    }
  }
  for (; size > 0; --size) {
    *to++ = (char)byte;
    HIDE(to);
  }
  return start;
}
