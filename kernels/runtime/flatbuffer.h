// Reading flatbuffers whose bytes nobody vouches for: every load is checked against the end of the buffer, and what
// lies outside reads as zero, which no table, vector or string starts at.
#ifndef MINBUILD_RUNTIME_FLATBUFFER_H_
#define MINBUILD_RUNTIME_FLATBUFFER_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "shared/vec.h"

#pragma GCC visibility push(hidden)
namespace minbuild {

// strlen and memcmp, which would cost more as imports.
uint32_t length_of(const char* text);
bool equal_bytes(const void* a, const void* b, uint32_t size);

struct Vector {
  const uint8_t* data;  // null when absent or out of bounds
  uint32_t count;
};

struct Flatbuffer {
  const uint8_t* data;
  uint32_t size;

  // `bytes` (at most 8) at `at`, little endian; 0 when any of them is outside.
  MB_NOINLINE uint64_t load(uint32_t at, uint32_t bytes) const {
    uint64_t value = 0;
    if (at <= size && bytes <= size - at) memcpy(&value, data + at, bytes);
    return value;
  }
  uint32_t u32(uint32_t at) const { return static_cast<uint32_t>(load(at, 4)); }

  // Position of the root table; 0 unless the identifier is `id`.
  uint32_t root(const char* id) const {
    return size >= 8 && equal_bytes(data + 4, id, 4) ? u32(0) : 0;
  }

  // Position of a field of the table at `table`; 0 when absent.
  MB_NOINLINE uint32_t field(uint32_t table, uint32_t slot) const {
    uint32_t vtable = table - u32(table);
    if (slot + 2 > load(vtable, 2)) return 0;
    uint32_t offset = static_cast<uint32_t>(load(vtable + slot, 2));
    return offset == 0 ? 0 : table + offset;
  }

  // A scalar field of `bytes` bytes; 0 when absent.
  MB_NOINLINE uint64_t scalar(uint32_t table, uint32_t slot, uint32_t bytes) const {
    uint32_t at = field(table, slot);
    return at == 0 ? 0 : load(at, bytes);
  }

  // What a field of offset type refers to; 0 when absent.
  uint32_t follow(uint32_t at) const { return at == 0 ? 0 : at + u32(at); }
  MB_NOINLINE uint32_t child(uint32_t table, uint32_t slot) const { return follow(field(table, slot)); }

  // A vector of `stride`-byte elements, a power of two, aligned as those are but to 4 at most: that is what a 32-bit
  // chip needs for 8-byte numbers. No data when any of it is outside.
  MB_NOINLINE Vector vector(uint32_t table, uint32_t slot, uint32_t stride) const {
    uint32_t at = child(table, slot);
    uint32_t count = u32(at);
    uint64_t end = uint64_t{at} + 4 + uint64_t{count} * stride;
    if (at == 0 || end > size || (at & (stride - 1) & 3) != 0) return {nullptr, 0};
    return {data + at + 4, count};
  }

  // Whether the string at `at` is `text`.
  bool equals(uint32_t at, const char* text) const {
    uint32_t length = u32(at);
    return at != 0 && length <= size - at - 4 && length_of(text) == length && equal_bytes(data + at + 4, text, length);
  }
};

}  // namespace minbuild
#pragma GCC visibility pop
#endif  // MINBUILD_RUNTIME_FLATBUFFER_H_
