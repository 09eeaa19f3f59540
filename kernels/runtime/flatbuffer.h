// Reading flatbuffers whose bytes nobody vouches for: every load is checked against the end of the buffer, and what
// lies outside reads as zero. What is absent is said to be at kNowhere, which is outside of every buffer.
#ifndef MINBUILD_RUNTIME_FLATBUFFER_H_
#define MINBUILD_RUNTIME_FLATBUFFER_H_

#include <stddef.h>
#include <stdint.h>

#include "lib/types/bytes.h"

#pragma GCC visibility push(hidden)
namespace minbuild {

constexpr uint32_t kNowhere = ~uint32_t{0};

struct Vector {
  const uint8_t* data;  // null when absent or out of bounds
  uint32_t count;

  MB_INLINE bool equals(const char* text) const;
};

// True if the bytes are those of `text`. By value, so that vectors stay in registers: `this` would be in memory.
MB_NOINLINE inline bool equal(Vector vector, const char* text) {
  uint32_t i = 0;
  while (i < vector.count && text[i] != 0 && vector.data[i] == static_cast<uint8_t>(text[i])) ++i;
  return i == vector.count && text[i] == 0;
}
bool Vector::equals(const char* text) const { return equal(*this, text); }

struct Flatbuffer {
  const uint8_t* data;
  uint32_t size;

  // `bytes` (at most 8) at `at`, little endian; 0 when any of them is outside.
  MB_NOINLINE uint64_t load(uint32_t at, uint32_t bytes) const {
    uint64_t value = 0;
    if (at <= size && bytes <= size - at) copy_bytes(&value, data + at, bytes);
    return value;
  }
  // As wide as a register: 64-bit code that cuts it short could not end in a jump to load(), but would call it.
  uintptr_t u32(uint32_t at) const { return static_cast<uintptr_t>(load(at, 4)); }

  // Position of the root table, unless the identifier is another.
  MB_INLINE uint32_t root(const char (&id)[5]) const {
    uint32_t expected;
    __builtin_memcpy(&expected, id, sizeof expected);
    const uint64_t head = load(0, 8);
    return head >> 32 == expected ? static_cast<uint32_t>(head) : kNowhere;
  }

  // Position of a field of the table at `table`.
  MB_NOINLINE uint32_t field(uint32_t table, uint32_t slot) const {
    uint32_t vtable = table - static_cast<uint32_t>(u32(table));
    uint32_t offset = slot < load(vtable, 2) ? static_cast<uint32_t>(load(vtable + slot, 2)) : 0;
    return offset == 0 ? kNowhere : table + offset;
  }

  // A scalar field of `bytes` bytes; 0 when absent.
  MB_NOINLINE uint64_t scalar(uint32_t table, uint32_t slot, uint32_t bytes) const {
    return load(field(table, slot), bytes);
  }

  // The target of a field of offset type.
  MB_NOINLINE uint32_t follow(uint32_t at) const { return at + static_cast<uint32_t>(u32(at)); }
  uint32_t child(uint32_t table, uint32_t slot) const { return follow(field(table, slot)); }

  // A vector of `stride`-byte elements, a power of two, aligned as those are but to 4 at most: that is what a 32-bit
  // chip needs for 8-byte numbers. No data when any of it is outside.
  MB_NOINLINE Vector vector(uint32_t table, uint32_t slot, uint32_t stride) const {
    uint32_t at = child(table, slot), count = static_cast<uint32_t>(u32(at));
    uint64_t end = uint64_t{at} + 4 + uint64_t{count} * stride;
    if (end > size || (at & (stride - 1) & 3) != 0) return {nullptr, 0};
    return {data + at + 4, count};
  }
};

}  // namespace minbuild
#pragma GCC visibility pop
#endif  // MINBUILD_RUNTIME_FLATBUFFER_H_
