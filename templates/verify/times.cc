// Stands between a session and its kernels, in programs that measure time and nowhere else: the table of kernels is
// compiled again with another name for `run_kernel`, and everything else is taken from the static library as it is.
//
// The reply begins with the machine's peak: operations and nanoseconds, 64 bits each. Every step then sends its row of
// the table in 32 bits and its nanoseconds in 64.
#define run_kernel run_kernel_itself
#define MB_STEP(function, row, call) return watch(call, row)  // a step that is a straight call
#include "kernel_table.inc"
#undef run_kernel

#include "lib/simd/vec.h"

#ifdef _WIN32
#include <windows.h>
#else
#include <time.h>
#endif

extern "C" {
#include "host.h"
#include "steps.h"
}

namespace minbuild {
namespace {

uint64_t nanoseconds() {
#ifdef _WIN32
  LARGE_INTEGER ticks, each;
  QueryPerformanceCounter(&ticks);
  QueryPerformanceFrequency(&each);
  return static_cast<uint64_t>(static_cast<double>(ticks.QuadPart) * 1e9 / static_cast<double>(each.QuadPart));
#else
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
#endif
}

// Multiplications and additions of float without any memory, in the vectors that kernels have: returns their number.
// Independent sums are as many as keep all units busy, and few enough for the registers.
#if defined(__aarch64__)
constexpr int kSums = 24;
#else
constexpr int kSums = 12;
#endif
constexpr uint64_t kRounds = 1 << 16;
constexpr int kPeakRuns = 50;

volatile float factor = 0.5f;
volatile float term = 0.5f;
volatile float result;

struct MultiplyAndAdd {
  template <class W>
  static MB_INLINE uint64_t run() {
    using V = typename W::template of<float>;
    const V x(factor), y(term);
    V sums[kSums];
    unroll<kSums>([&](auto i) MB_LAMBDA { sums[i] = y; });
    for (uint64_t round = 0; round < kRounds; ++round) {
      unroll<kSums>([&](auto i) MB_LAMBDA { sums[i] = muladd(sums[i], x, y); });
    }
    V all = y;
    unroll<kSums>([&](auto i) MB_LAMBDA { all = all + sums[i]; });
    result = sum(all);
    return kRounds * kSums * V::size * 2;
  }
};

void send_peak() {
  uint64_t operations = 0;
  uint64_t best = ~uint64_t{0};
  for (int i = 0; i < kPeakRuns; ++i) {
    const uint64_t start = nanoseconds();
    operations = run_at<MultiplyAndAdd, 64>(widest_bytes());
    const uint64_t took = nanoseconds() - start;
    if (took < best) best = took;
  }
  const uint64_t peak[2] = {operations, best};
  host_write(peak, sizeof peak);
}

}  // namespace

Status run_kernel(const Call& call, uint32_t number) {
  const uint64_t start = nanoseconds();
  const Status status = run_kernel_itself(call, number);
  const uint64_t took = nanoseconds() - start;
  if (status == Status::kSkipRound) number |= 1u << 31;
  host_write(&number, sizeof number);
  host_write(&took, sizeof took);
  return status;
}

#if MB_STRAIGHT
Status watch(const Call& call, uint32_t row) { return run_kernel(call, row); }
#endif

}  // namespace minbuild

extern "C" {

void steps_choose(int what, unsigned seed, int garbage) {
  (void)what, (void)seed, (void)garbage;
  minbuild::send_peak();
}

void steps_watch(void* start, size_t size) { (void)start, (void)size; }

void steps_unwatch(size_t count) { (void)count; }

void steps_begin(void) {}

}  // extern "C"
