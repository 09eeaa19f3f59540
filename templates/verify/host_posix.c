/* runner.c on a POSIX system, with its functions for files, memory and signals and nothing else: linux_calls.c has them, too. */
#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include "host.h"

static size_t length(const char* text) {
  const volatile char* at = text; /* or the compiler makes a call of strlen of it */
  while (*at) ++at;
  return (size_t)(at - text);
}

/* A pipe may take a part and leave the rest for later. False if it takes no more. */
static int put(int file, const void* data, size_t size) {
  const char* at = data;
  while (size) {
    const ssize_t some = write(file, at, size);
    if (some <= 0) return 0;
    at += some, size -= (size_t)some;
  }
  return 1;
}

void host_fail(const char* what, const char* why) {
  put(2, what, length(what));
  put(2, ": ", 2);
  put(2, why, length(why));
  put(2, "\n", 1);
  _exit(3);
}

size_t host_page(void) {
  static size_t page;
  if (!page) page = (size_t)sysconf(_SC_PAGESIZE);
  return page;
}

static size_t whole_pages(size_t size) { return (size + host_page()) / host_page() * host_page(); }

/* The page before it has its size. */
void* host_take(size_t size) {
  char* start = MAP_FAILED;
  if (size <= SIZE_MAX / 2) {
    size = whole_pages(size) + host_page();
    start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
  }
  if (start == MAP_FAILED) host_fail("memory", "there is no more");
  *(size_t*)start = size;
  return start + host_page();
}

void host_give_back(void* memory) {
  char* start = (char*)memory - host_page();
  munmap(start, *(size_t*)start);
}

/* Mapped, so that a file of any size takes no memory that nobody reads. */
unsigned char* host_read(const char* name, size_t* size) {
  const int file = open(name, O_RDONLY);
  const off_t end = file < 0 ? -1 : lseek(file, 0, SEEK_END);
  void* data;
  if (end < 0) host_fail(name, "cannot be opened");
  *size = (size_t)end;
  data = *size ? mmap(NULL, *size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0) : host_take(0);
  if (data == MAP_FAILED) host_fail(name, "cannot be read");
  close(file);
  return data;
}

static struct {
  void* data;
  size_t size;
} passed;

static void drop(int number) {
  (void)number;
  madvise(passed.data, passed.size, MADV_DONTNEED);
}

static void drop_every(int microseconds) {
  struct itimerval every = {{0, microseconds}, {0, microseconds}};
  setitimer(ITIMER_REAL, &every, NULL);
}

/* Small files are not worth it. */
void host_pass(void* data, size_t size) {
  struct sigaction action;
  if (size < (size_t)1 << 26) return;
  passed.data = data, passed.size = size;
  sigemptyset(&action.sa_mask);
  action.sa_handler = drop;
  action.sa_flags = SA_RESTART;
  sigaction(SIGALRM, &action, NULL);
  drop_every(10000);
}

void host_forget(void* data, size_t size) {
  if (passed.size) drop_every(0);
  passed.size = 0;
  if (size) madvise(data, size, MADV_DONTNEED);
}

static int (*on_fault)(const void* address);

static void faulted(int number, siginfo_t* about, void* context) {
  char* address = about->si_addr;
  (void)context;
  if (on_fault(address)) mprotect(address - (uintptr_t)address % host_page(), host_page(), PROT_READ | PROT_WRITE);
  else { /* and the same again, which ends the program */ struct sigaction action;
    sigemptyset(&action.sa_mask);
    action.sa_handler = SIG_DFL;
    action.sa_flags = 0;
    sigaction(number, &action, NULL);
  }
}

void host_protect(void* start, size_t size, int writable, int (*caught)(const void* address)) {
  if (!on_fault) {
    struct sigaction action;
    sigemptyset(&action.sa_mask);
    action.sa_sigaction = faulted;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL); /* macOS has this one */
  }
  on_fault = caught;
  if (mprotect(start, whole_pages(size - 1), writable ? PROT_READ | PROT_WRITE : PROT_READ))
    host_fail("memory", "cannot be protected");
}

/* Pieces of a file, and of the reply, are many, and most are small. */
static struct {
  char data[1 << 16];
  size_t at, end;
} trace, reply;

static size_t next_bytes(int file, void* to, size_t size) {
  const ssize_t some = read(file, to, size);
  if (some <= 0) host_fail("trace", "ends too early");
  return (size_t)some;
}

void host_next(void* to, size_t size) {
  static int file = -1;
  char* bytes = to;
  if (file < 0) file = open("trace", O_RDONLY);
  while (size) {
    size_t some = trace.end - trace.at;
    if (some == 0 && size >= sizeof trace.data) {
      some = next_bytes(file, bytes, size);
    } else {
      if (some == 0) trace.at = 0, some = trace.end = next_bytes(file, trace.data, sizeof trace.data);
      if (some > size) some = size;
      __builtin_memcpy(bytes, trace.data + trace.at, some);
      trace.at += some;
    }
    bytes += some, size -= some;
  }
}

static int broken;

int host_finish(void) {
  broken |= !put(1, reply.data, reply.end);
  reply.end = 0;
  return !broken;
}

void host_write(const void* data, size_t size) {
  if (size > sizeof reply.data - reply.end) host_finish();
  if (size > sizeof reply.data) {
    broken |= !put(1, data, size);
  } else {
    __builtin_memcpy(reply.data + reply.end, data, size);
    reply.end += size;
  }
}

void host_stop(void) { _exit(host_finish() ? 0 : 3); }
