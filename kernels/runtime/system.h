// The operating system for files.cc. On 64-bit Linux these are system calls, whose interface never changes: a library that
// imports nothing needs no tables for it, and runs beside any C library. Elsewhere they are functions of the C library.
// Results below zero are -errno. tests/faults replaces this file by one whose calls fail.
#ifndef MINBUILD_RUNTIME_SYSTEM_H_
#define MINBUILD_RUNTIME_SYSTEM_H_

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/simd/vec.h"

#if defined(__linux__) && defined(__LP64__) && (defined(__x86_64__) || defined(__aarch64__) || defined(__riscv))
#define MB_SYSTEM_CALLS 1
#include <sys/syscall.h>
#else
#define MB_SYSTEM_CALLS 0
#endif
#if defined(__linux__) && defined(__arm__)
#include <sys/syscall.h>
#endif

namespace minbuild {

#if MB_SYSTEM_CALLS

// Arguments in the registers of the processor's Linux ABI. A failure is a small negative number.
template <class... Args>
MB_INLINE intptr_t system_call(intptr_t number, Args... args) {
  const intptr_t all[6] = {intptr_t(args)...};
#if defined(__x86_64__)
#define MB_ENTER(...) __asm__ volatile("syscall" : "+r"(result) : __VA_ARGS__ : "rcx", "r11", "memory")
  register intptr_t result __asm__("rax") = number, a __asm__("rdi") = all[0], b __asm__("rsi") = all[1];
  register intptr_t c __asm__("rdx") = all[2], d __asm__("r10") = all[3], e __asm__("r8") = all[4],
                      f __asm__("r9") = all[5];
#elif defined(__riscv)
#define MB_ENTER(...) __asm__ volatile("ecall" : "+r"(result) : __VA_ARGS__ : "memory")
  register intptr_t a __asm__("a7") = number, result __asm__("a0") = all[0], b __asm__("a1") = all[1];
  register intptr_t c __asm__("a2") = all[2], d __asm__("a3") = all[3], e __asm__("a4") = all[4],
                      f __asm__("a5") = all[5];
#else
#define MB_ENTER(...) __asm__ volatile("svc 0" : "+r"(result) : __VA_ARGS__ : "memory")
  register intptr_t a __asm__("x8") = number, result __asm__("x0") = all[0], b __asm__("x1") = all[1];
  register intptr_t c __asm__("x2") = all[2], d __asm__("x3") = all[3], e __asm__("x4") = all[4],
                      f __asm__("x5") = all[5];
#endif
  if constexpr (sizeof...(args) == 1) MB_ENTER("r"(a));
  else if constexpr (sizeof...(args) == 2) MB_ENTER("r"(a), "r"(b));
  else if constexpr (sizeof...(args) == 3) MB_ENTER("r"(a), "r"(b), "r"(c));
  else if constexpr (sizeof...(args) == 4) MB_ENTER("r"(a), "r"(b), "r"(c), "r"(d));
  else MB_ENTER("r"(a), "r"(b), "r"(c), "r"(d), "r"(e), "r"(f));
#undef MB_ENTER
  return result;
}

MB_INLINE int system_open(const char* path, int flags) {
  return int(system_call(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0666));
}
MB_INLINE intptr_t system_size(int file) { return system_call(SYS_lseek, file, 0, SEEK_END); }
MB_INLINE intptr_t system_write(int file, const void* from, size_t size) {
  return system_call(SYS_write, file, from, size);
}
// Null where there is no memory or no such file.
MB_INLINE void* system_map(size_t size, int flags, int file) {
  intptr_t at = system_call(SYS_mmap, 0, size, PROT_READ | PROT_WRITE, flags, file, 0);
  intptr_t failed = at >> 63;
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
MB_INLINE int system_stat(const char* path, struct stat* found) {
  return int(system_call(SYS_newfstatat, AT_FDCWD, path, found, AT_SYMLINK_NOFOLLOW));
}
MB_INLINE int system_mode(int file, uint32_t mode) { return int(system_call(SYS_fchmod, file, mode)); }
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
// The mode of a file.
MB_INLINE int system_stat(const char* path, struct stat* found) {
#if defined(__linux__) && defined(__arm__)
  // The shared C library has had lstat since 2.33 only: before, each program brought its own.
  struct {
    uint32_t before[4], mode, after[24];
  } kernels;
  const int error = checked(static_cast<int>(syscall(SYS_fstatat64, AT_FDCWD, path, &kernels, AT_SYMLINK_NOFOLLOW)));
  if (error == 0) found->st_mode = kernels.mode;
  return error;
#else
  return checked(lstat(path, found));
#endif
}
MB_INLINE int system_mode(int file, uint32_t mode) { return checked(fchmod(file, static_cast<mode_t>(mode))); }
MB_INLINE void system_remove(const char* path) { unlink(path); }

#endif

}  // namespace minbuild
#endif  // MINBUILD_RUNTIME_SYSTEM_H_
