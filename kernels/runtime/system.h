// The operating system for files.cc: system calls of Linux, or else functions of the C library. Results below zero are
// -errno. tests/faults replaces this file by one whose calls fail.
#ifndef MINBUILD_RUNTIME_SYSTEM_H_
#define MINBUILD_RUNTIME_SYSTEM_H_

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/system_calls.h"

namespace minbuild {

#if MB_SYSTEM_CALLS

MB_INLINE int system_open(const char* path, int flags) {
  return int(system_call(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0666));
}
MB_INLINE intptr_t system_size(int file) { return system_call(SYS_lseek, file, 0, SEEK_END); }
MB_INLINE intptr_t system_write(int file, const void* from, size_t size) {
  return system_call(SYS_write, file, from, size);
}
// Null where there is no memory or no such file.
MB_INLINE void* system_map(size_t size, int flags, int file) {
#ifdef SYS_mmap2  // whose offset is in pages
  constexpr intptr_t kMap = SYS_mmap2;
#else
  constexpr intptr_t kMap = SYS_mmap;
#endif
  const intptr_t at = system_call(kMap, 0, size, PROT_READ | PROT_WRITE, flags, file, 0);
  // Addresses of 32 bits may have the sign of a failure.
  intptr_t failed = sizeof at > 4 ? at >> 63 : -intptr_t(uintptr_t(at) >= uintptr_t(-4095));
  MB_OPAQUE(failed);  // else a conditional move, and a register saved for its zero
  return reinterpret_cast<void*>(at & ~failed);
}
MB_INLINE void system_unmap(void* memory, size_t size) { system_call(SYS_munmap, memory, size); }
// Has the whole large pages in a piece of memory made of them where the system gives them to those that ask; else changes
// nothing, as for null.
MB_INLINE void system_take_large_pages(void* memory, size_t size) {
  constexpr int kAdvice = 14;  // MADV_HUGEPAGE, which headers without extensions leave out
  system_call(SYS_madvise, memory, memory ? size : 0, kAdvice);
}
MB_INLINE int system_sync(int file) { return int(system_call(SYS_fsync, file)); }
MB_INLINE int system_close(int file) { return int(system_call(SYS_close, file)); }
MB_INLINE int system_rename(const char* from, const char* to) {
#ifdef SYS_renameat
  return int(system_call(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to));
#else  // younger architectures have only the one with flags, which older kernels lack
  return int(system_call(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
#endif
}
// The mode of a file, of a link its own.
MB_INLINE int system_mode_of(const char* path) {
#if defined(__loongarch__)  // whose older kernels have no other call
  struct {
    uint32_t before[7];
    uint16_t st_mode, after[113];
  } found;
  const int error = int(system_call(SYS_statx, AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, 2, &found));
#elif defined(__arm__)  // the kernel's structure: C libraries have others
  struct {
    uint32_t before[4], st_mode, after[21];
  } found;
  const int error = int(system_call(SYS_fstatat64, AT_FDCWD, path, &found, AT_SYMLINK_NOFOLLOW));
#else
  struct stat found;
  const int error = int(system_call(SYS_newfstatat, AT_FDCWD, path, &found, AT_SYMLINK_NOFOLLOW));
#endif
  return error != 0 ? error : int(found.st_mode);
}
// The system itself takes the permissions alone of a mode.
MB_INLINE int system_mode(int file, int mode) { return int(system_call(SYS_fchmod, file, mode)); }
MB_INLINE void system_remove(const char* path) { system_call(SYS_unlinkat, AT_FDCWD, path, 0); }

#else

// -errno where the C library says -1.
template <class T>
MB_INLINE T checked(T result) {
  return result < 0 ? static_cast<T>(-errno) : result;
}

MB_INLINE int system_open(const char* path, int flags) { return checked(open(path, flags | O_CLOEXEC, 0666)); }
MB_INLINE intptr_t system_size(int file) { return static_cast<intptr_t>(lseek(file, 0, SEEK_END)); }
MB_INLINE intptr_t system_write(int file, const void* from, size_t size) {
  return checked(static_cast<intptr_t>(write(file, from, size)));
}
MB_INLINE void* system_map(size_t size, int flags, int file) {
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, file, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}
MB_INLINE void system_unmap(void* memory, size_t size) { munmap(memory, size); }
MB_INLINE void system_take_large_pages(void*, size_t) {}
MB_INLINE int system_sync(int file) { return checked(fsync(file)); }
MB_INLINE int system_close(int file) { return checked(close(file)); }
MB_INLINE int system_rename(const char* from, const char* to) { return checked(rename(from, to)); }
MB_INLINE int system_mode_of(const char* path) {
  struct stat found;
  return lstat(path, &found) != 0 ? -errno : static_cast<int>(found.st_mode);
}
MB_INLINE int system_mode(int file, int mode) { return checked(fchmod(file, static_cast<mode_t>(mode & 07777))); }
MB_INLINE void system_remove(const char* path) { unlink(path); }

#endif

}  // namespace minbuild
#endif  // MINBUILD_RUNTIME_SYSTEM_H_
