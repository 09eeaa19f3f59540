// Stands before the C library in a Python process (LD_PRELOAD): of the calls that reach files, one fails on demand, or the
// process dies just before it. tests/faults/python_side.py counts and chooses.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

// The call that fails, counted from the moment that `armed` is set; with which errno, 0: the process dies, -1: a write
// takes half of its bytes.
int armed, calls, fails = -1, error_number;
const char* failed = "";  // name of the call that did

static int fault(const char* name) {
  if (!armed || calls++ != fails) return 0;
  if (error_number == 0) _exit(77);
  failed = name;
  if (error_number > 0) errno = error_number;
  return 1;
}

#define CALL(result, failure, name, parameters, arguments)                      \
  result name parameters {                                                      \
    static result(*real) parameters;                                            \
    if (real == 0) real = (result(*) parameters)dlsym(RTLD_NEXT, #name);        \
    if (fault(#name) && error_number > 0) return failure;                       \
    return real arguments;                                                      \
  }

CALL(int, -1, mkdir, (const char* path, mode_t mode), (path, mode))
CALL(int, -1, mkdirat, (int at, const char* path, mode_t mode), (at, path, mode))
CALL(int, -1, rename, (const char* from, const char* to), (from, to))
CALL(int, -1, renameat, (int a, const char* from, int b, const char* to), (a, from, b, to))
CALL(int, -1, renameat2, (int a, const char* from, int b, const char* to, unsigned flags), (a, from, b, to, flags))
CALL(int, -1, link, (const char* from, const char* to), (from, to))
CALL(int, -1, linkat, (int a, const char* from, int b, const char* to, int flags), (a, from, b, to, flags))
CALL(int, -1, unlink, (const char* path), (path))
CALL(int, -1, unlinkat, (int at, const char* path, int flags), (at, path, flags))
CALL(int, -1, rmdir, (const char* path), (path))
CALL(int, -1, fsync, (int file), (file))
CALL(int, -1, ftruncate64, (int file, off64_t size), (file, size))
CALL(int, -1, chmod, (const char* path, mode_t mode), (path, mode))
CALL(int, -1, utimensat, (int at, const char* path, const struct timespec* times, int flags), (at, path, times, flags))
CALL(int, -1, stat64, (const char* path, struct stat64* found), (path, found))
CALL(int, -1, lstat64, (const char* path, struct stat64* found), (path, found))
CALL(int, -1, fstatat64, (int at, const char* path, struct stat64* found, int flags), (at, path, found, flags))
CALL(int, -1, fstat64, (int file, struct stat64* found), (file, found))
CALL(DIR*, 0, opendir, (const char* path), (path))
CALL(DIR*, 0, fdopendir, (int file), (file))
CALL(struct dirent64*, 0, readdir64, (DIR* folder), (folder))
CALL(ssize_t, -1, read, (int file, void* to, size_t size), (file, to, size))

ssize_t write(int file, const void* from, size_t size) {
  static ssize_t (*real)(int, const void*, size_t);
  if (real == 0) real = (ssize_t(*)(int, const void*, size_t))dlsym(RTLD_NEXT, "write");
  if (fault("write")) {
    if (error_number > 0) return -1;
    size = (size + 1) / 2;
  }
  return real(file, from, size);
}

int close(int file) {  // one that fails has closed, too
  static int (*real)(int);
  if (real == 0) real = (int (*)(int))dlsym(RTLD_NEXT, "close");
  const int fails_now = fault("close") && error_number > 0, result = real(file);
  if (!fails_now) return result;
  errno = error_number;
  return -1;
}

#define MODE                                \
  mode_t mode = 0;                          \
  if (flags & (O_CREAT | __O_TMPFILE)) {    \
    va_list rest;                           \
    va_start(rest, flags);                  \
    mode = va_arg(rest, mode_t);            \
    va_end(rest);                           \
  }
int open64(const char* path, int flags, ...) {
  MODE
  static int (*real)(const char*, int, ...);
  if (real == 0) real = (int (*)(const char*, int, ...))dlsym(RTLD_NEXT, "open64");
  return fault("open64") && error_number > 0 ? -1 : real(path, flags, mode);
}
int openat64(int at, const char* path, int flags, ...) {
  MODE
  static int (*real)(int, const char*, int, ...);
  if (real == 0) real = (int (*)(int, const char*, int, ...))dlsym(RTLD_NEXT, "openat64");
  return fault("openat64") && error_number > 0 ? -1 : real(at, path, flags, mode);
}
