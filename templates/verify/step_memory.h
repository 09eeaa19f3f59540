// Memory that steps.cc watches: copies of it as it is before a step, and what a step changed that is not its own.
#ifndef STEP_MEMORY_H_
#define STEP_MEMORY_H_

namespace minbuild {
namespace {

constexpr int kRanges = 80, kDraws = 4, kArgs = MB_MAX_ARGS > Call::kMiddle ? MB_MAX_ARGS : Call::kMiddle;
enum Type { kFloat = 1, kHalf = 10, kDouble = 11, kBfloat = 16 };

struct Range {
  char* start;
  size_t size;
  char* copy;  // as it is before the step
};
struct Piece {
  char* start;
  size_t size;
};

Range ranges[kRanges];
size_t range_count;
const Range* compared;  // ranges of which there are copies
size_t compared_count;
int chosen, garbage_byte;
uint32_t seed, state;  // of the random numbers
bool begun;            // a run, whose first step is still to come

void copy(void* to, const void* from, size_t size) {
  char* a = static_cast<char*>(to);
  const char* b = static_cast<const char*>(from);
  for (; size >= sizeof(uintptr_t); size -= sizeof(uintptr_t), a += sizeof(uintptr_t), b += sizeof(uintptr_t))
    __builtin_memcpy(a, b, sizeof(uintptr_t));
  for (; size > 0; --size) *a++ = *b++;
}

uint32_t random_bits() {
  state ^= state << 13, state ^= state >> 17, state ^= state << 5;
  return state;
}

// Where the copy of an address is; null for what nobody watches.
char* copy_of(const char* at) {
  for (size_t i = 0; i < compared_count; ++i)
    if (at >= compared[i].start && at < compared[i].start + compared[i].size)
      return compared[i].copy + (at - compared[i].start);
  return nullptr;
}

void take_copy(const Piece& piece) {
  if (char* to = copy_of(piece.start)) copy(to, piece.start, piece.size);
}

// The arguments of one call that have data.
struct Arguments {
  const Call& call;
  const KernelRow& row;

  uint32_t type(int i) const { return kKernelSlots[row.slots + i] & kSlotType; }
  bool scratch(int i) const { return kScratchSlots[row.slots + i] != 0; }
  bool output(int i) const { return (kKernelSlots[row.slots + i] & kSlotWritten) != 0 && !scratch(i); }
  Piece piece(int i) const {
    char* data = call[i].data;
    return {data, data == nullptr ? 0 : static_cast<size_t>(call[i].count) * element_size(type(i))};
  }
};

// The first byte from `a` on, of `size`, that is another one than in `b`; `size` without any.
size_t mismatch(const char* a, const char* b, size_t size) {
  size_t i = 0;
  for (uintptr_t x, y; i + sizeof x <= size; i += sizeof x) {
    __builtin_memcpy(&x, a + i, sizeof x);
    __builtin_memcpy(&y, b + i, sizeof y);
    if (x != y) break;
  }
  while (i < size && a[i] == b[i]) ++i;
  return i;
}

// Turns bits of the bytes beside outputs and scratch that are no argument at all, here and in the copy: a step that writes
// there what was there before would not be seen. Done again it turns them back.
void turn_neighbours(const Arguments& arguments) {
  constexpr ptrdiff_t kReach = 64;
  for (int i = 0; i < arguments.row.arg_count; ++i) {
    const Piece own = arguments.piece(i);
    if (own.size == 0 || !(arguments.output(i) || arguments.scratch(i))) continue;
    const ptrdiff_t size = static_cast<ptrdiff_t>(own.size);
    for (ptrdiff_t at = -kReach; at < size + kReach; ++at) {
      if (at == 0) at = size;
      char* byte = own.start + at;
      char* twin = copy_of(byte);
      bool free = twin != nullptr;
      for (int k = 0; free && k < arguments.row.arg_count; ++k) {
        const Piece other = arguments.piece(k);
        free = byte < other.start || byte >= other.start + other.size;
      }
      const char pattern = static_cast<char>(0xa5 + 2 * i);  // of each argument another, for neighbours of several
      if (free) *byte ^= pattern, *twin ^= pattern;
    }
  }
}

// Finds bytes that a call changed and that are neither output nor scratch: their place in `compared` and offset, -1 for
// nothing.
void find_stray(const Arguments& arguments, int32_t* found) {
  Piece own[kArgs];
  int count = 0;
  for (int i = 0; i < arguments.row.arg_count; ++i) {
    Piece piece = arguments.piece(i);
    if (piece.size == 0 || !(arguments.output(i) || arguments.scratch(i))) continue;
    int at = count++;
    for (; at > 0 && own[at - 1].start > piece.start; --at) own[at] = own[at - 1];
    own[at] = piece;
  }
  found[0] = found[1] = -1;
  for (size_t r = 0; r < compared_count; ++r) {
    const Range& range = compared[r];
    char* at = range.start;
    for (int i = 0; i <= count; ++i) {
      char* end = range.start + range.size;
      if (i < count && own[i].start < end) end = own[i].start < at ? at : own[i].start;
      size_t size = static_cast<size_t>(end - at), good = mismatch(at, range.copy + (at - range.start), size);
      if (good < size) {
        found[0] = static_cast<int32_t>(r), found[1] = static_cast<int32_t>(at + good - range.start);
        return;
      }
      at = end;
      if (i < count && own[i].start + own[i].size > at && own[i].start < range.start + range.size)
        at = own[i].start + own[i].size;
      if (at > range.start + range.size) at = range.start + range.size;
    }
  }
}

}  // namespace
}  // namespace minbuild

#endif
