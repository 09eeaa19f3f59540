// Threads of Windows: the few functions of kernel32.dll that make them, and let them sleep.
#ifndef MINBUILD_RUNTIME_WINDOWS_THREADS_H_
#define MINBUILD_RUNTIME_WINDOWS_THREADS_H_

#include <stddef.h>
#include <stdint.h>

// As in windows.h, which is some megabytes of text with macros of everyday names. BOOL is int, DWORD unsigned long.
extern "C" {
__declspec(dllimport) void* CreateThread(void* security, size_t stack_bytes, unsigned long (*main)(void*),
                                         void* argument, unsigned long flags, unsigned long* id);
__declspec(dllimport) unsigned long WaitForSingleObject(void* object, unsigned long milliseconds);
__declspec(dllimport) int CloseHandle(void* object);
__declspec(dllimport) void AcquireSRWLockExclusive(void** lock);
__declspec(dllimport) void ReleaseSRWLockExclusive(void** lock);
__declspec(dllimport) int SleepConditionVariableSRW(void** condition, void** lock, unsigned long milliseconds,
                                                    unsigned long flags);
__declspec(dllimport) void WakeAllConditionVariable(void** condition);
__declspec(dllimport) int GetProcessAffinityMask(void* process, uintptr_t* mine, uintptr_t* all);
}

#pragma GCC visibility push(hidden)
namespace minbuild {

using Thread = void*;

// A lock, and threads that wait for what it guards.
struct Monitor {
  void *exclusive, *changed;

  void set_up() { exclusive = changed = nullptr; }
  void lock() { AcquireSRWLockExclusive(&exclusive); }
  void unlock() { ReleaseSRWLockExclusive(&exclusive); }
  void wait() { SleepConditionVariableSRW(&changed, &exclusive, kForever, 0); }
  void wake_all() { WakeAllConditionVariable(&changed); }

  static constexpr unsigned long kForever = 0xffffffff;
};

// Threads get no signals here.
struct BlockedSignals {};

// Calls main(argument) in a thread, if there can be one more.
template <auto main, class Argument>
MB_INLINE bool start_thread(Thread* thread, size_t stack_bytes, Argument* argument) {
  constexpr unsigned long kStackBytesAreReserved = 0x10000;
  *thread = CreateThread(
      nullptr, stack_bytes,
      [](void* given) -> unsigned long {
        main(static_cast<Argument*>(given));
        return 0;
      },
      argument, kStackBytesAreReserved, nullptr);
  return *thread != nullptr;
}
MB_INLINE void join_thread(Thread thread) {
  WaitForSingleObject(thread, Monitor::kForever);
  CloseHandle(thread);
}
// Those that this process may run on.
MB_INLINE int32_t processors() {
  uintptr_t mine = 0, all = 0;
  GetProcessAffinityMask(reinterpret_cast<void*>(intptr_t{-1}), &mine, &all);
  int32_t count = 0;
  for (; mine != 0; mine &= mine - 1) ++count;
  return count;
}

}  // namespace minbuild
#pragma GCC visibility pop
#endif  // MINBUILD_RUNTIME_WINDOWS_THREADS_H_
