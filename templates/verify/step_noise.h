// Rounding noise of a step: its inputs moved by a few digits, and how far its outputs move; part of steps.cc.
#ifndef STEP_NOISE_H_
#define STEP_NOISE_H_

#include "step_memory.h"

namespace minbuild {
namespace {

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

void move(const Arguments& arguments, int i, bool measure) {
  const Piece piece = arguments.piece(i);
  switch (arguments.type(i)) {
    case kFloat: move_all<uint32_t>(piece, 23, measure ? 1u << 11 : 2); break;
    case kDouble: move_all<uint64_t>(piece, 52, measure ? uint64_t{1} << 40 : 2); break;
    case kHalf: move_all<uint16_t>(piece, 10, measure ? 4 : 1); break;
    case kBfloat: move_all<uint16_t>(piece, 7, 1); break;
  }
}

// True of an output in the place of an input.
bool in_place(const Arguments& arguments, int output) {
  for (int i = 0; i < arguments.row.arg_count; ++i)
    if (!arguments.output(i) && arguments.piece(i).start == arguments.piece(output).start) return true;
  return false;
}

// Moves inputs, by about one part in 2^12 to measure, in 2^8 where elements are that coarse, else by two units in the last
// place; then what the step adds to. Constants of a plan that is compiled in are the same anywhere.
void move_inputs(const Arguments& arguments, bool measure) {
  for (int written = 0; written < 2; ++written)
    for (int i = 0; i < arguments.row.arg_count; ++i) {
      if (arguments.scratch(i) || arguments.output(i) != (written != 0)) continue;
      if (copy_of(arguments.piece(i).start) == nullptr || (written && in_place(arguments, i))) continue;
      move(arguments, i, measure);
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

uint64_t magnitude(const char* data, size_t size) {
  uint64_t bits = 0;
  __builtin_memcpy(&bits, data, size);  // all targets have their lowest byte first
  return bits & ~(uint64_t{1} << (8 * size - 1));
}

// True if an input had this number before the step, of either sign.
bool given(const Arguments& arguments, uint64_t wanted, uint32_t type) {
  const size_t size = element_size(type);
  for (int i = 0; i < arguments.row.arg_count; ++i) {
    if (arguments.scratch(i) || arguments.type(i) != type) continue;
    const Piece piece = arguments.piece(i);
    const char* before = piece.size ? copy_of(piece.start) : nullptr;
    if (before == nullptr) before = piece.start;
    for (size_t at = 0; at < piece.size; at += size)
      if (magnitude(before + at, size) == wanted) return true;
  }
  return false;
}

// True of a step that only chooses among its inputs, such as a maximum, a copy or a comparison: it rounds nothing, and a
// later comparison with the source finds it equal. A few elements tell.
bool only_chooses(const Arguments& arguments) {
  constexpr size_t kSome = 16;
  for (int i = 0; i < arguments.row.arg_count; ++i) {
    if (!arguments.output(i) || !real(arguments.type(i))) continue;
    const Piece piece = arguments.piece(i);
    const size_t size = element_size(arguments.type(i)), stride = (piece.size / size / kSome + 1) * size;
    for (size_t at = 0; at < piece.size; at += stride) {
      const uint64_t number = magnitude(piece.start + at, size);
      if (number != 0 && !given(arguments, number, arguments.type(i))) return false;
    }
  }
  return true;
}

// Starts the random numbers of a step anew, from `seed`, its kernel and its inputs: the same step rounds otherwise in
// the same way when it is done a second time, as on any machine.
void start_random(const Arguments& arguments, uint32_t number) {
  uint32_t hash = seed * 0x9e3779b1u + number;
  for (int i = 0; i < arguments.row.arg_count; ++i) {
    if (arguments.scratch(i) || arguments.output(i)) continue;
    const Piece piece = arguments.piece(i);
    for (size_t k = 0; k < piece.size; ++k) hash = (hash ^ static_cast<unsigned char>(piece.start[k])) * 0x01000193u;
  }
  state = hash | 1;
}

// All as it was before the step.
void restore(const Arguments& arguments) {
  for (int i = 0; i < arguments.row.arg_count; ++i) {
    Piece piece = arguments.piece(i);
    if (const char* from = piece.size ? copy_of(piece.start) : nullptr) copy(piece.start, from, piece.size);
  }
}

// Copies of the outputs of a step.
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

}  // namespace
}  // namespace minbuild

#endif
