// Stands between a session and its kernels, in programs that verify a library and nowhere else: the table of kernels is
// compiled again with another name for `run_kernel`, and everything else is taken from the static library as it is.
//
// Every step answers its row of the table, the number of its outputs, what else it changed (a range and an offset there,
// or -1), then each output: its bytes, and when noise is measured how far each element moves on average when inputs are
// rounded to a few digits, in float. All numbers have 32 bits.
#define run_kernel run_kernel_itself
#include "kernel_table.inc"
#undef run_kernel

#include "choices.h"
#include "slots.h"

extern "C" {
#include "host.h"
#include "steps.h"
}

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
int chosen, garbage_byte;
uint32_t state;  // of the random numbers
bool begun;      // a run, whose first step is still to come

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
  for (size_t i = 0; i < range_count; ++i)
    if (at >= ranges[i].start && at < ranges[i].start + ranges[i].size) return ranges[i].copy + (at - ranges[i].start);
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

// What a call changed that is neither output nor scratch: range and offset, -1 for nothing.
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
  for (size_t r = 0; r < range_count; ++r) {
    const Range& range = ranges[r];
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

#if MB_MEASURES
// Moves an element by `ulps` of its last place, up or down; zeros and what is not finite stay as they are.
template <class Bits>
void move_all(const Piece& piece, int mantissa, Bits ulps) {
  const Bits finite = static_cast<Bits>((Bits{1} << (sizeof(Bits) * 8 - 1 - mantissa)) - 1);
  for (size_t i = 0; i + sizeof(Bits) <= piece.size; i += sizeof(Bits)) {
    Bits bits;
    __builtin_memcpy(&bits, piece.start + i, sizeof bits);
    Bits exponent = (bits >> mantissa) & finite;
    if (exponent == 0 || exponent == finite) continue;
    bits = static_cast<Bits>(random_bits() & 0x10000 ? bits + ulps : bits - ulps);
    __builtin_memcpy(piece.start + i, &bits, sizeof bits);
  }
}

// By about one part in 2^12 to measure, in 2^8 where elements are that coarse; else by two units in the last place.
void move_inputs(const Arguments& arguments, bool measure) {
  for (int i = 0; i < arguments.row.arg_count; ++i) {
    if (arguments.scratch(i)) continue;
    Piece piece = arguments.piece(i);
    if (copy_of(piece.start) == nullptr)
      continue;  // constants of a plan that is compiled in, which are the same anywhere
    switch (arguments.type(i)) {
      case kFloat: move_all<uint32_t>(piece, 23, measure ? 1u << 11 : 2); break;
      case kDouble: move_all<uint64_t>(piece, 52, measure ? uint64_t{1} << 40 : 2); break;
      case kHalf: move_all<uint16_t>(piece, 10, measure ? 4 : 1); break;
      case kBfloat: move_all<uint16_t>(piece, 7, 1); break;
    }
  }
}

bool real(uint32_t type) { return type == kFloat || type == kDouble || type == kHalf || type == kBfloat; }

double element(const char* data, uint32_t type, size_t i) {
  if (type == kFloat) return reinterpret_cast<const float*>(data)[i];
  if (type == kDouble) return reinterpret_cast<const double*>(data)[i];
  uint32_t bits = reinterpret_cast<const uint16_t*>(data)[i];
  float value;
  if (type == kBfloat) {
    bits <<= 16;
    __builtin_memcpy(&value, &bits, 4);
    return value;
  }
  uint32_t wide = (bits & 0x8000) << 16 | (bits & 0x7fff) << 13;
  __builtin_memcpy(&value, &wide, 4);
  return static_cast<double>(value) * 0x1p112;  // what is not finite becomes large
}

// All as it was before the step.
void restore(const Arguments& arguments) {
  for (int i = 0; i < arguments.row.arg_count; ++i) {
    Piece piece = arguments.piece(i);
    if (const char* from = piece.size ? copy_of(piece.start) : nullptr) copy(piece.start, from, piece.size);
  }
}

// What the step wrote, kept apart.
struct Kept {
  char* data[kArgs];
  float* noise[kArgs];
};

void keep(const Arguments& arguments, bool measure, Kept* kept) {
  for (int i = 0; i < arguments.row.arg_count; ++i) {
    Piece piece = arguments.piece(i);
    kept->data[i] = nullptr, kept->noise[i] = nullptr;
    if (!arguments.output(i) || piece.start == nullptr) continue;
    kept->data[i] = static_cast<char*>(host_take(piece.size));
    copy(kept->data[i], piece.start, piece.size);
    if (!measure || !real(arguments.type(i))) continue;
    size_t count = static_cast<size_t>(arguments.call[i].count);
    kept->noise[i] = static_cast<float*>(host_take(count * sizeof(float)));
    for (size_t k = 0; k < count; ++k) kept->noise[i][k] = 0;
  }
}

void add_noise(const Arguments& arguments, const Kept& kept) {
  for (int i = 0; i < arguments.row.arg_count; ++i) {
    if (kept.noise[i] == nullptr) continue;
    const char* data = arguments.call[i].data;
    for (size_t k = 0; k < static_cast<size_t>(arguments.call[i].count); ++k) {
      double moved = element(data, arguments.type(i), k) - element(kept.data[i], arguments.type(i), k);
      if (moved == moved) kept.noise[i][k] += static_cast<float>(moved < 0 ? -moved : moved) / kDraws;
    }
  }
}

void put_back(const Arguments& arguments, const Kept& kept) {
  for (int i = 0; i < arguments.row.arg_count; ++i)
    if (kept.data[i]) copy(arguments.call[i].data, kept.data[i], arguments.piece(i).size);
}

void forget(const Arguments& arguments, const Kept& kept) {
  for (int i = arguments.row.arg_count; i-- > 0;) {
    if (kept.noise[i]) host_give_back(kept.noise[i]);
    if (kept.data[i]) host_give_back(kept.data[i]);
  }
}
#else
struct Kept {
  float* noise[1];
};
#endif

void answer(const Arguments& arguments, uint32_t row, const int32_t* stray, const Kept* kept) {
  uint32_t head[4] = {row, 0, static_cast<uint32_t>(stray[0]), static_cast<uint32_t>(stray[1])};
  for (int i = 0; i < arguments.row.arg_count; ++i)
    head[1] += chosen != STEPS_LOOK && arguments.output(i) && arguments.call[i].data;
  host_write(head, sizeof head);
  if (chosen == STEPS_LOOK) return;
  for (int i = 0; i < arguments.row.arg_count; ++i) {
    Piece piece = arguments.piece(i);
    if (!arguments.output(i) || piece.start == nullptr) continue;
    uint32_t size = static_cast<uint32_t>(piece.size);
    host_write(&size, sizeof size);
    host_write(piece.start, piece.size);
    if (kept && kept->noise[i])
      host_write(kept->noise[i], static_cast<size_t>(arguments.call[i].count) * sizeof(float));
  }
}

#if MB_MEASURES
// Leaves what the step wrote, with inputs as they were; answers it with its noise, if that is expected.
void measure(const Arguments& arguments, uint32_t number, const int32_t* stray) {
  const bool expected = chosen == STEPS_MEASURE;
  Kept kept;
  keep(arguments, expected, &kept);
  for (int draw = 0; expected && draw < kDraws; ++draw) {
    restore(arguments);
    move_inputs(arguments, true);
    if (run_kernel_itself(arguments.call, number) == Status::kOk) add_noise(arguments, kept);
  }
  restore(arguments);
  put_back(arguments, kept);
  if (expected) answer(arguments, number, stray, &kept);
  forget(arguments, kept);
}
#endif

}  // namespace

Status run_kernel(const Call& call, uint32_t number) {
  const KernelRow& row = kKernelRows[number];
  const Arguments arguments = {call, row};
  if (chosen == STEPS_RUN) return run_kernel_itself(call, number);
  if (begun) {
    for (size_t i = 0; i < range_count; ++i) copy(ranges[i].copy, ranges[i].start, ranges[i].size);
    begun = false;
  } else if (range_count != 0) {
    take_copy({ranges[0].start, sizeof(Session)});  // where loops count
  }
#if MB_MEASURES
  if (chosen == STEPS_DISTURB) move_inputs(arguments, false);
#endif
  const bool looks = chosen != STEPS_DISTURB;
  if (looks) turn_neighbours(arguments);
  Status status = run_kernel_itself(call, number);
  if (status != Status::kOk) return status;
  int32_t stray[2] = {-1, -1};
  if (looks) find_stray(arguments, stray), turn_neighbours(arguments);
#if MB_MEASURES
  if (chosen == STEPS_MEASURE || chosen == STEPS_DISTURB) measure(arguments, number, stray);
#endif
  if (chosen == STEPS_FOLLOW || chosen == STEPS_LOOK) answer(arguments, number, stray, nullptr);
  if (stray[0] >= 0) host_stop();
  for (int i = 0; i < row.arg_count; ++i) {
    Piece piece = arguments.piece(i);
    if (piece.size == 0) continue;
    if (arguments.scratch(i)) {
      for (size_t k = 0; k < piece.size; ++k) piece.start[k] = static_cast<char>(garbage_byte);
    } else if (!arguments.output(i)) {
      continue;
    } else if (chosen == STEPS_FOLLOW) {
      host_next(piece.start, piece.size);
    }
    take_copy(piece);
  }
  return Status::kOk;
}

}  // namespace minbuild

using namespace minbuild;

extern "C" {

void steps_choose(int what, unsigned seed, int garbage) { chosen = what, state = seed, garbage_byte = garbage; }

void steps_watch(void* start, size_t size) {
  if (chosen == STEPS_RUN) return;
  if (range_count == kRanges) host_fail("steps", "there are too many inputs to watch");
  ranges[range_count++] = {static_cast<char*>(start), size, static_cast<char*>(host_take(size))};
}

void steps_unwatch(size_t count) {
  while (range_count > count) host_give_back(ranges[--range_count].copy);
}

void steps_begin(void) { begun = true; }

}  // extern "C"
