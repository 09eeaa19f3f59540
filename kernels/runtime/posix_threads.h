// Threads of the C library.
#ifndef MINBUILD_RUNTIME_POSIX_THREADS_H_
#define MINBUILD_RUNTIME_POSIX_THREADS_H_

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#pragma GCC visibility push(hidden)
namespace minbuild {

using Thread = pthread_t;

// A lock, and threads that wait for what it guards.
struct Monitor {
  pthread_mutex_t exclusive;
  pthread_cond_t changed;

  void set_up() { pthread_mutex_init(&exclusive, nullptr), pthread_cond_init(&changed, nullptr); }
  void lock() { pthread_mutex_lock(&exclusive); }
  void unlock() { pthread_mutex_unlock(&exclusive); }
  void wait() { pthread_cond_wait(&changed, &exclusive); }
  void wake_all() { pthread_cond_broadcast(&changed); }
};

// Threads that start meanwhile get no signals: their handlers run elsewhere.
struct BlockedSignals {
  sigset_t before;

  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
};

// Calls main(argument) in a thread, if there can be one more.
template <auto main, class Argument>
MB_INLINE bool start_thread(Thread* thread, size_t stack_bytes, Argument* argument) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, stack_bytes);
  const int failure = pthread_create(
      thread, &attributes,
      [](void* given) -> void* {
        main(static_cast<Argument*>(given));
        return nullptr;
      },
      argument);
  pthread_attr_destroy(&attributes);
  return failure == 0;
}
MB_INLINE void join_thread(Thread thread) { pthread_join(thread, nullptr); }
MB_INLINE int32_t processors() { return static_cast<int32_t>(sysconf(_SC_NPROCESSORS_ONLN)); }

}  // namespace minbuild
#pragma GCC visibility pop
#endif  // MINBUILD_RUNTIME_POSIX_THREADS_H_
