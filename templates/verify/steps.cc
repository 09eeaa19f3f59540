// Stands between a session and its kernels, in programs that verify a library and nowhere else: the table of kernels is
// compiled again with another name for `run_kernel`, and everything else is taken from the static library as it is.
//
// Every step sends its row of the table (with bit 31 where it ended a round of a loop), the number of its outputs, what
// else it changed (a range and an offset there, or -1), then each output: its bytes, and when noise is measured how far
// each element moves on average when inputs are rounded to a few digits, in float. All numbers have 32 bits.
#define run_kernel run_kernel_itself
#define MB_STEP(function, row, call) return watch(call, row)  // a step that is a straight call
#include "kernel_table.inc"
#undef run_kernel

#include "choices.h"
#include "slots.h"

extern "C" {
#include "host.h"
#include "steps.h"
}

#include "step_memory.h"
#include "step_pages.h"
#include "step_noise.h"

namespace minbuild {
namespace {

bool ends_round;  // the step that replies

void reply(const Arguments& arguments, uint32_t row, const int32_t* stray, const Kept* kept) {
  if (ends_round) row |= 1u << 31;
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
// Leaves what the step wrote, with inputs as they were; sends it with its noise, if that is measured.
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
  if (expected) reply(arguments, number, stray, &kept);
  forget(arguments, kept);
}
#endif

}  // namespace

Status run_kernel(const Call& call, uint32_t number) {
  const KernelRow& row = kKernelRows[number];
  const Arguments arguments = {call, row};
  if (chosen == STEPS_RUN) return run_kernel_itself(call, number);
  if (protects) {
    open_pages(arguments);
  } else if (begun) {
    compared = ranges, compared_count = range_count;
    for (size_t i = 0; i < range_count; ++i) copy(ranges[i].copy, ranges[i].start, ranges[i].size);
    begun = false;
  } else if (range_count != 0) {
    take_copy({ranges[0].start, sizeof(Session)});  // where loops count
  }
  const bool looks = chosen != STEPS_DISTURB;
  if (looks) turn_neighbours(arguments);
  Status status = run_kernel_itself(call, number);
#if MB_MEASURES
  if (chosen == STEPS_DISTURB && status == Status::kOk && !only_chooses(arguments)) {
    restore(arguments);
    start_random(arguments, number);
    move_inputs(arguments, false);
    status = run_kernel_itself(call, number);
  }
#endif
  ends_round = status == Status::kSkipRound;
  if (status != Status::kOk && status != Status::kSkipRound && status != Status::kSetRounds) return status;
  int32_t stray[2] = {-1, -1};
  if (looks) find_stray(arguments, stray), turn_neighbours(arguments);
  if (protects) find_fault(stray);
#if MB_MEASURES
  if (chosen == STEPS_MEASURE || chosen == STEPS_DISTURB) measure(arguments, number, stray);
#endif
  if (chosen == STEPS_FOLLOW || chosen == STEPS_LOOK) reply(arguments, number, stray, nullptr);
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
    if (!protects) take_copy(piece);
  }
  if (protects) close_pages(arguments);
  return status;
}

#if MB_STRAIGHT
Status watch(const Call& call, uint32_t row) { return run_kernel(call, row); }
#endif

}  // namespace minbuild

using namespace minbuild;

extern "C" {

void steps_choose(int what, unsigned seed_of_noise, int garbage) {
  chosen = what, state = seed = seed_of_noise, garbage_byte = garbage;
  protects = chosen == STEPS_LOOK && host_page() != 0;
}

void steps_watch(void* start, size_t size) {
  if (chosen == STEPS_RUN) return;
  if (range_count == kRanges) host_fail("steps", "there are too many inputs to watch");
  char* copies = protects ? nullptr : static_cast<char*>(host_take(size));
  ranges[range_count++] = {static_cast<char*>(start), size, copies};
}

void steps_unwatch(size_t count) {
  while (range_count > count) {
    const Range& range = ranges[--range_count];
    if (protects) protect(range, true);
    else host_give_back(range.copy);
  }
}

void steps_begin(void) { begun = true; }

}  // extern "C"
