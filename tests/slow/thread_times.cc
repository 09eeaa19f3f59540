
// Appended to runtime/threads.cc in libraries that measure how work is divided (thread_times.py), and nowhere else: parts
// run one after the other, as member 0, and the processor time of each is recorded.
#include "runtime/system.h"
#include <time.h>

namespace minbuild {
namespace {

// A kernel of a call began, or ended, with its row of the kernel table; a work of several parts began, with the number of
// members; one of its parts ended.
enum Event : uint32_t { kBegins, kEnds, kParts, kPart };
struct Record {
  uint32_t event, value;
  uint64_t nanoseconds;
};
constexpr size_t kMost = 1 << 20;
Record records[kMost];
size_t count = 0;

uint64_t now() {
  timespec time;
  system_call(SYS_clock_gettime, CLOCK_THREAD_CPUTIME_ID, &time);
  return uint64_t(time.tv_sec) * 1000000000 + uint64_t(time.tv_nsec);
}

void record(Event event, uint32_t value) {
  if (count < kMost) records[count++] = {event, value, now()};
}

}  // namespace

void run_parts(Team*, int32_t members, int32_t parts, Part task, const void* work) {
  record(kParts, uint32_t(members));
  for (int32_t part = 0; part < parts; ++part) {
    task(work, part, 0);
    record(kPart, uint32_t(part));
  }
}

Status run_divided(ThreadTeam* team, const Call& call, uint32_t kernel) {
  record(kBegins, kernel);
  const Status status = run_divided_undisturbed(team, call, kernel);
  record(kEnds, kernel);
  return status;
}

}  // namespace minbuild

// Makes so many records that nothing is done between.
extern "C" __attribute__((visibility("default"), used)) void mb_make_records(size_t number) {
  while (number-- > 0) minbuild::record(minbuild::kPart, 0);
}

// The records since the last call.
extern "C" __attribute__((visibility("default"), used)) size_t mb_take_records(const void** found) {
  const size_t taken = minbuild::count;
  *found = minbuild::records;
  minbuild::count = 0;
  return taken;
}
