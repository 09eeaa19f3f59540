/* runner.c on an operating system with a C library. */
#ifndef _WIN32
#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>
#else
#include <fcntl.h>
#include <io.h>
#endif
#include <stdio.h>
#include <stdlib.h>

#include "host.h"

void host_fail(const char* what, const char* why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(3);
}

void host_give_back(void* memory) { free(memory); }

#ifndef _WIN32
size_t host_page(void) {
  static size_t page;
  if (!page) page = (size_t)sysconf(_SC_PAGESIZE);
  return page;
}

static size_t whole_pages(size_t size) { return (size + host_page()) / host_page() * host_page(); }

void* host_take(size_t size) {
  void* memory = NULL;
  if (size > SIZE_MAX / 2 || posix_memalign(&memory, host_page(), whole_pages(size)))
    host_fail("memory", "there is no more");
  return memory;
}

/* Mapped, so that a file of any size takes no memory that nobody reads. */
unsigned char* host_read(const char* name, size_t* size) {
  int file = open(name, O_RDONLY);
  struct stat about;
  void* data;
  if (file < 0 || fstat(file, &about)) host_fail(name, "cannot be opened");
  *size = (size_t)about.st_size;
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
  else signal(number, SIG_DFL); /* and the same again */
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
#else
void* host_take(size_t size) {
  void* memory = malloc(size + 16);
  if (!memory) host_fail("memory", "there is no more");
  return memory;
}

void host_forget(void* data, size_t size) { (void)data, (void)size; }
void host_pass(void* data, size_t size) { (void)data, (void)size; }
size_t host_page(void) { return 0; }
void host_protect(void* start, size_t size, int writable, int (*caught)(const void* address)) {
  (void)start, (void)size, (void)writable, (void)caught;
}

unsigned char* host_read(const char* name, size_t* size) {
  FILE* file = fopen(name, "rb");
  unsigned char* data;
  if (!file) host_fail(name, "cannot be opened");
  fseek(file, 0, SEEK_END);
  *size = (size_t)ftell(file);
  fseek(file, 0, SEEK_SET);
  data = host_take(*size);
  if (fread(data, 1, *size, file) != *size) host_fail(name, "cannot be read");
  fclose(file);
  return data;
}
#endif

void host_next(void* to, size_t size) {
  static FILE* file;
  if (!file) file = fopen("trace", "rb");
  if (!file || fread(to, 1, size, file) != size) host_fail("trace", "ends too early");
}

/* Windows would put a carriage return before each byte 10. */
void host_write(const void* data, size_t size) {
#ifdef _WIN32
  static int binary;
  if (!binary) _setmode(_fileno(stdout), _O_BINARY), binary = 1;
#endif
  if (size) fwrite(data, 1, size, stdout);
}

int host_finish(void) { return fflush(stdout) == 0; }

void host_stop(void) { exit(host_finish() ? 0 : 3); }
