// Fork and join, and calls of kernels in parts.
#include "runtime/threads.h"

#if MB_THREADS > 1
#include "runtime/flush_denormals.h"
#include "runtime/session.h"
#if MB_RAW_THREADS
#include <signal.h>
#include "runtime/linux_threads.h"
#endif

namespace minbuild {
namespace {

// The first part of a member: all have as many, or the last ones one more, as large parts come first.
uint32_t first_part(const ThreadTeam* team, int32_t member) {
  const int32_t few = team->workers - team->parts % team->workers;
  return uint32_t(team->parts / team->workers * member + (member > few ? member - few : 0));
}

// Takes parts until none is left: a member's own ones first, so that what it has made in one kernel, and has in its caches,
// is what it reads in the next.
void take_parts(ThreadTeam* team, int32_t member) {
  const int32_t workers = team->workers;
  if (member >= workers) return;
  [[maybe_unused]] FlushDenormals flush;
  for (int32_t turn = 0, of = member; turn < workers; ++turn, of = of + 1 < workers ? of + 1 : 0) {
    const uint32_t end = first_part(team, of + 1);
    for (uint32_t part; (part = __atomic_fetch_add(&team->next[of], 1u, __ATOMIC_RELAXED)) < end;)
      team->task(team->work, static_cast<int32_t>(part), member);
  }
}

void take_parts_in_pool(void* team, int32_t member) { take_parts(static_cast<ThreadTeam*>(team), member); }

#if MB_OWN_THREADS
constexpr uint32_t kOpen = 1u << 31;
// Looks at a word before a thread sleeps, half a millisecond to two in all: the next kernel of a call, or the end of the
// last part of this one, often comes sooner. Waking a thread takes a virtual machine up to a quarter of a millisecond, and
// for that time the thread that wakes it does not work.
constexpr int kLooks = 1 << 15;

MB_INLINE uint32_t load(const uint32_t* word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }
MB_INLINE void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" : : : "memory");
#elif defined(__arm__) && __ARM_ARCH >= 7
  __asm__ volatile("yield" : : : "memory");
#endif
}

#if MB_RAW_THREADS

MB_INLINE void sleep_while(ThreadTeam*, uint32_t* word, uint32_t value) { futex(word, FUTEX_WAIT_PRIVATE, value); }
MB_INLINE void wake(ThreadTeam*, uint32_t* word) { futex(word, FUTEX_WAKE_PRIVATE, 0x7fffffff); }

#else

MB_NOINLINE void sleep_while(ThreadTeam* team, uint32_t* word, uint32_t value) {
  team->monitor.lock();
  while (load(word) == value) team->monitor.wait();
  team->monitor.unlock();
}
MB_NOINLINE void wake(ThreadTeam* team, uint32_t*) {
  team->monitor.lock();
  team->monitor.wake_all();
  team->monitor.unlock();
}

#endif

// Waits until the word has another value than this one, and returns it.
MB_NOINLINE uint32_t wait_for_change(ThreadTeam* team, uint32_t* word, uint32_t value) {
  uint32_t now;
  for (int i = 0; i < kLooks; ++i) {
    if ((now = load(word)) != value) return now;
    pause_briefly();
  }
  __atomic_fetch_add(&team->asleep, 1u, __ATOMIC_SEQ_CST);
  while ((now = load(word)) == value) sleep_while(team, word, value);
  __atomic_fetch_sub(&team->asleep, 1u, __ATOMIC_SEQ_CST);
  return now;
}

// A thread that changes a word reads `asleep` afterwards; one that sleeps reads the word after it has counted.
MB_INLINE void tell(ThreadTeam* team, uint32_t* word) {
  if (load(&team->asleep) != 0) wake(team, word);
}

void help(ThreadTeam* team) {
  const int32_t member = __atomic_add_fetch(&team->arrived, 1, __ATOMIC_RELAXED);
  uint32_t calls = 0;
  for (;;) {
    calls = wait_for_change(team, &team->calls, calls);
    if (__atomic_load_n(&team->ends, __ATOMIC_RELAXED)) return;
    // Too late where the others have done it all; then none waits for this thread.
    uint32_t inside = load(&team->inside);
    while (inside >= kOpen)
      if (__atomic_compare_exchange_n(&team->inside, &inside, inside + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        take_parts(team, member);
        if (__atomic_sub_fetch(&team->inside, 1u, __ATOMIC_SEQ_CST) == 0) tell(team, &team->inside);
        break;
      }
  }
}

#if MB_RAW_THREADS
void start(ThreadTeam* team) {
  // Handlers of the program's signals may want what threads of the C library have.
  const uint64_t all = ~uint64_t{0};
  uint64_t before;
  system_call(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, sizeof all);
  char* stack = team->stacks;
  for (int32_t i = 0; i + 1 < team->members; ++i) {
    if (clone_thread(stack += kStackBytes, &team->ids[i], help, team) < 0) break;
    ++team->started;
  }
  system_call(SYS_rt_sigprocmask, SIG_SETMASK, &before, nullptr, sizeof all);
}
MB_INLINE void join(ThreadTeam* team, int32_t i) {
  // The kernel wakes who waits in any process.
  while (uint32_t id = load(&team->ids[i])) futex(&team->ids[i], FUTEX_WAIT, id);
}
int32_t processors() {
  uintptr_t mask[1024 / sizeof(uintptr_t) / 8];
  const intptr_t size = system_call(SYS_sched_getaffinity, 0, sizeof mask, mask);
  int32_t count = 0;
  for (intptr_t i = 0; i < size / intptr_t(sizeof(uintptr_t)); ++i)
    for (uintptr_t word = mask[i]; word != 0; word &= word - 1) ++count;
  return count;
}
#else
void start(ThreadTeam* team) {
  [[maybe_unused]] BlockedSignals blocked;
  while (team->started + 1 < team->members && start_thread<help>(&team->ids[team->started], kStackBytes, team))
    ++team->started;
}
MB_INLINE void join(ThreadTeam* team, int32_t i) { join_thread(team->ids[i]); }
#endif
#endif

}  // namespace

void ThreadTeam::set_up(const mb_options* options, [[maybe_unused]] char* own_stacks) {
  parallel = options->parallel, user = options->parallel_user;
  int32_t most = MB_THREADS, asked = options->threads;
#if MB_OWN_THREADS
#if MB_RAW_THREADS
  stacks = own_stacks;
#else
  monitor.set_up();
#endif
  if (asked < 1 && parallel == nullptr) asked = processors();
#else
  if (parallel == nullptr) most = 1;
#endif
  members = asked < 1 || asked > most ? most : asked;
}

void ThreadTeam::end() {
#if MB_OWN_THREADS
  if (started == 0) return;
  __atomic_store_n(&ends, true, __ATOMIC_RELAXED);  // read by a thread that the last work woke too late
  __atomic_fetch_add(&calls, 1u, __ATOMIC_SEQ_CST);
  tell(this, &calls);
  while (started > 0) join(this, --started);
  ends = false;
  arrived = 0, calls = 0;
#endif
}

void run_parts(Team* base, int32_t members, int32_t parts, Part task, const void* work) {
  ThreadTeam* team = static_cast<ThreadTeam*>(base);
  team->task = task, team->work = work, team->workers = members, team->parts = parts;
  for (int32_t i = 0; i < members; ++i) team->next[i] = first_part(team, i);
  if (team->parallel != nullptr) return team->parallel(team->user, take_parts_in_pool, team, members);
#if MB_OWN_THREADS
  if (team->started == 0) start(team);
  __atomic_store_n(&team->inside, kOpen, __ATOMIC_SEQ_CST);
  __atomic_fetch_add(&team->calls, 1u, __ATOMIC_SEQ_CST);
  tell(team, &team->calls);
#endif
  take_parts(team, 0);
#if MB_OWN_THREADS
  uint32_t left = __atomic_and_fetch(&team->inside, ~kOpen, __ATOMIC_SEQ_CST);
  while (left != 0) left = wait_for_change(team, &team->inside, left);
#endif
}

namespace {

// A call in parts. Tensors of `units` rows are cut, or such as have as many elements.
struct DividedCall {
  const Call* call;
  const KernelRow* row;
  uint32_t kernel, cut;  // bit k: argument k is cut
  int32_t units, step;
  uint32_t failure;  // a status of a part that is no kOk
};

void run_part(const void* work, int32_t part, int32_t) {
  // Only its failure is written, by all parts.
  DividedCall& d = *const_cast<DividedCall*>(static_cast<const DividedCall*>(work));
  Tensor tensors[MB_MAX_ARGS > Call::kMiddle ? MB_MAX_ARGS : Call::kMiddle];
  const int32_t first = part * d.step, left = d.units - first, count = left < d.step ? left : d.step;
  for (int k = 0; k < d.row->arg_count; ++k) {
    Tensor& t = tensors[k] = (*d.call)[k];
    if ((d.cut >> k & 1) == 0) continue;
    const int32_t each = t.count / d.units;
    t.count = each * count;
    const uint8_t slot = kKernelSlots[d.row->slots + k] & kSlotType;
    if (slot == 0) t.dims[0] = count;
    if (t.data != nullptr) t.data += size_t(each) * size_t(first) * element_size(slot);
  }
  Call call = *d.call;
  call.middle = tensors + Call::kMiddle;
  call.team = nullptr;
  const uint32_t status = static_cast<mb_status>(run_kernel(call, d.kernel));
  if (status != MB_OK) __atomic_store_n(&d.failure, status, __ATOMIC_RELAXED);
}

}  // namespace

Status run_divided(ThreadTeam* team, const Call& call, uint32_t kernel) {
  const KernelRow& row = kKernelRows[kernel];
  const uint8_t* slots = kKernelSlots + row.slots;
  uint32_t cut = kKernelCuts[kernel];
  if (team->members > 1 && cut != 0) {
    DividedCall d = {&call, &row, kernel, 0, call[0].count, 0, 0};
    if (cut == kCutBroadcast) {
      // Bit 0 of parameter o: operand o, which is argument o + 1, moves along the first axis of the last argument.
      const int operands = row.arg_count - 2;
      int32_t moves = 0;
      uint32_t first = 1u | 2u << operands;
      for (int o = 0; o < operands; ++o) moves |= call.params[o], first |= (call.params[o] & 1u) << (o + 1);
      cut = moves != 0 ? first : kCutElements;
    }
    const bool by_rows = cut < kCutBroadcast;
    for (int k = 0; by_rows && k < row.arg_count; ++k)
      if ((cut >> k & 1) != 0 && (slots[k] & kSlotType) == 0) d.units = call[k].rank > 0 ? call[k].dims[0] : 0;
    // All that is cut must have as many elements for each row; the kernel refuses what has not.
    size_t bytes = 0;
    for (int k = 0; d.units > 0 && k < row.arg_count; ++k) {
      const Tensor& t = call[k];
      const uint8_t slot = slots[k] & kSlotType;
      if (by_rows ? (cut >> k & 1) == 0 || (slot != 0 && t.data == nullptr) : t.count != d.units) {
        if ((slots[k] & kSlotWritten) != 0 && t.data != nullptr) d.units = 0;  // all parts would write to it
        continue;
      }
      if (t.count % d.units != 0) d.units = 0;
      const size_t size = size_t(t.count) * element_size(slot);
      if (size > bytes) bytes = size;
      d.cut |= 1u << k;
    }
    // No vector of a loop over elements begins elsewhere than in an undivided one: single elements at the end of a range
    // may be rounded otherwise.
    constexpr int32_t kWhole = 64;
    d.step = int32_t(things_of_part(team, d.units, int64_t(bytes), by_rows ? 1 : kWhole));
    if (d.step < d.units) {
      run_parts(team, team->members, (d.units - 1) / d.step + 1, run_part, &d);
#if MB_COMPILED
      return {static_cast<mb_status>(d.failure)};
#else
      return static_cast<Status>(d.failure);
#endif
    }
  }
  return run_kernel(call, kernel);
}

}  // namespace minbuild
#endif
