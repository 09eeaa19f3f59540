// The threads of a session: they start when a call has work for them and have ended when it returns, so that nothing runs
// between calls, nothing is left to a process that forks, and mb_destroy has nothing to stop. Between two kernels of a
// call they sleep.
#ifndef MINBUILD_RUNTIME_THREADS_H_
#define MINBUILD_RUNTIME_THREADS_H_

#include "minbuild/kernel.h"
#include "lib/threads/parallel.h"

#if MB_THREADS > 1
#include "runtime/system_calls.h"

// Sanitizers follow threads of the C library only.
#if defined(__has_feature)
#define MB_SANITIZED (__has_feature(thread_sanitizer) || __has_feature(address_sanitizer))
#elif defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define MB_SANITIZED 1
#else
#define MB_SANITIZED 0
#endif

// Where threads come from: system calls; the C library; Windows; the program alone (mb_options.parallel).
#if MB_SYSTEM_CALLS && !MB_SANITIZED
#define MB_RAW_THREADS 1
#define MB_OWN_THREADS 1
#elif defined(__unix__) || defined(__APPLE__)
#define MB_RAW_THREADS 0
#define MB_OWN_THREADS 1
#include "runtime/posix_threads.h"
#elif defined(_WIN32)
#define MB_RAW_THREADS 0
#define MB_OWN_THREADS 1
#include "runtime/windows_threads.h"
#else
#define MB_RAW_THREADS 0
#define MB_OWN_THREADS 0
#endif

#pragma GCC visibility push(hidden)
namespace minbuild {

// Of a thread. Kernels take 19 KB at most; signals are blocked meanwhile, and their handlers run elsewhere.
constexpr size_t kStackBytes = MB_RAW_THREADS ? 1 << 16 : 1 << 18;
// Memory of a session for the stacks of its threads.
constexpr size_t kStacksBytes = MB_RAW_THREADS ? (MB_THREADS - 1) * kStackBytes : 0;

struct ThreadTeam : Team {
  // The work at hand.
  Part task;
  const void* work;
  int32_t workers, parts;
  uint32_t next[MB_THREADS];  // of the parts of each member, the first that nobody has taken
  // The pool of the program, if it brought one.
  mb_parallel parallel;
  void* user;
#if MB_OWN_THREADS
  int32_t started, arrived;  // threads besides the caller's: made, and numbered so far
  bool ends;                 // these are to end
  // Threads sleep until `calls`, the number of works so far, changes. `inside` is the number of threads that take parts,
  // and kOpen while there may be more; the caller waits until it is 0.
  uint32_t calls, inside, asleep;
#if MB_RAW_THREADS
  uint32_t ids[MB_THREADS - 1];  // the kernel clears those of threads that have ended
  char* stacks;
#else
  Thread ids[MB_THREADS - 1];
  Monitor monitor;
#endif
#endif

  // Takes the pool and the limit of `options`.
  void set_up(const mb_options* options, char* stacks);
  // Ends the threads of a call.
  void end();
};

// A kernel of the library on a call, in parts where kKernelCuts of the generated kernel table says how it may be cut.
Status run_divided(ThreadTeam* team, const Call& call, uint32_t row);

}  // namespace minbuild
#pragma GCC visibility pop
#endif
#endif  // MINBUILD_RUNTIME_THREADS_H_
