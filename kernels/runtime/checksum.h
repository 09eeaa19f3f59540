// The seal of a checkpoint that minbuild writes. ONNX Runtime does not look where it is: between the identifier of a
// flatbuffer and its first table, and behind its last one.
//
//     0      position of the root table: 64 or 80, and up to 7 more; that of ONNX Runtime's files is less
//     ...    tables, as in every checkpoint
//     end    n, 4 bytes; counters of random draws, seed, step count and learning rate: the last n bytes of what persists
//     end    Fletcher's sums of all bytes before them, 4 bytes each; the second starts from the fingerprint of the model
#ifndef MINBUILD_RUNTIME_CHECKSUM_H_
#define MINBUILD_RUNTIME_CHECKSUM_H_

#include <stddef.h>
#include <stdint.h>

#include "lib/simd/vec.h"

namespace minbuild {

// True for the position of the root table in a sealed file. Where one flipped bit of it leads, there is no such table.
constexpr bool is_sealed(uint32_t root) { return (root & ~0x17u) == 64; }

// Fletcher's checksum of bytes, modulo 2^32. Every change of one byte alters the first sum, and so does every piece of up
// to 16 MB that becomes zero; the second depends on the order, too.
struct Sums {
  static constexpr uint32_t kMostAtOnce = uint32_t{1} << 30;
  uint32_t simple, ordered;

  // Returns the end of the bytes, of which there is at least one.
  MB_INLINE const uint8_t* add(const void* bytes, uint32_t size) {
    const uint8_t* at = static_cast<const uint8_t*>(bytes);
    uint32_t first = simple, second = ordered;
    do second += first += *at++;
    while (--size > 0);
    simple = first;
    ordered = second;
    return at;
  }

  // The same of any number of bytes.
  MB_INLINE const uint8_t* add_all(const uint8_t* at, uint64_t size) {
    for (; size > kMostAtOnce; size -= kMostAtOnce) at = add(at, kMostAtOnce);
    return add(at, static_cast<uint32_t>(size));
  }
};

}  // namespace minbuild
#endif  // MINBUILD_RUNTIME_CHECKSUM_H_
