// What files.cc asks of the operating system. On 64-bit Linux it asks the kernel itself, whose interface never changes:
// a library that imports nothing needs no tables for it, and runs beside any C library. Elsewhere the C library is asked.
#ifndef MINBUILD_RUNTIME_SYSTEM_H_
#define MINBUILD_RUNTIME_SYSTEM_H_

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/simd/vec.h"

#if defined(__linux__) && defined(__LP64__) && (defined(__x86_64__) || defined(__aarch64__) || defined(__riscv))
#define MB_SYSTEM_CALLS 1
#include <sys/syscall.h>
#else
#define MB_SYSTEM_CALLS 0
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
  register intptr_t c __asm__("rdx") = all[2], d __asm__("r10") = all[3], e __asm__("r8") = all[4], f __asm__("r9") = all[5];
#elif defined(__riscv)
#define MB_ENTER(...) __asm__ volatile("ecall" : "+r"(result) : __VA_ARGS__ : "memory")
  register intptr_t a __asm__("a7") = number, result __asm__("a0") = all[0], b __asm__("a1") = all[1];
  register intptr_t c __asm__("a2") = all[2], d __asm__("a3") = all[3], e __asm__("a4") = all[4], f __asm__("a5") = all[5];
#else
#define MB_ENTER(...) __asm__ volatile("svc 0" : "+r"(result) : __VA_ARGS__ : "memory")
  register intptr_t a __asm__("x8") = number, result __asm__("x0") = all[0], b __asm__("x1") = all[1];
  register intptr_t c __asm__("x2") = all[2], d __asm__("x3") = all[3], e __asm__("x4") = all[4], f __asm__("x5") = all[5];
#endif
  if constexpr (sizeof...(args) == 1) MB_ENTER("r"(a));
  else if constexpr (sizeof...(args) <= 3) MB_ENTER("r"(a), "r"(b), "r"(c));
  else if constexpr (sizeof...(args) == 4) MB_ENTER("r"(a), "r"(b), "r"(c), "r"(d));
  else MB_ENTER("r"(a), "r"(b), "r"(c), "r"(d), "r"(e), "r"(f));
#undef MB_ENTER
  return result;
}

MB_INLINE int system_open(const char* path, int flags) {
  return int(system_call(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0666));
}
MB_INLINE intptr_t system_size(int file) { return system_call(SYS_lseek, file, 0, SEEK_END); }
MB_INLINE intptr_t system_write(int file, const void* from, size_t size) { return system_call(SYS_write, file, from, size); }
// Null where there is no memory or no such file.
MB_INLINE void* system_map(size_t size, int flags, int file) {
  intptr_t at = system_call(SYS_mmap, 0, size, PROT_READ | PROT_WRITE, flags, file, 0);
  return at < 0 ? nullptr : reinterpret_cast<void*>(at);
}
MB_INLINE void system_unmap(void* memory, size_t size) { system_call(SYS_munmap, memory, size); }
MB_INLINE bool system_sync(int file) { return system_call(SYS_fsync, file) == 0; }
MB_INLINE bool system_close(int file) { return system_call(SYS_close, file) == 0; }
MB_INLINE bool system_rename(const char* from, const char* to) {
#ifdef SYS_renameat
  return system_call(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to) == 0;
#else  // younger architectures have only the one with flags, which older kernels lack
  return system_call(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0) == 0;
#endif
}
MB_INLINE void system_remove(const char* path) { system_call(SYS_unlinkat, AT_FDCWD, path, 0); }

#else

MB_INLINE int system_open(const char* path, int flags) { return open(path, flags | O_CLOEXEC, 0666); }
MB_INLINE intptr_t system_size(int file) { return static_cast<intptr_t>(lseek(file, 0, SEEK_END)); }
MB_INLINE intptr_t system_write(int file, const void* from, size_t size) { return write(file, from, size); }
MB_INLINE void* system_map(size_t size, int flags, int file) {
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, file, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}
MB_INLINE void system_unmap(void* memory, size_t size) { munmap(memory, size); }
MB_INLINE bool system_sync(int file) { return fsync(file) == 0; }
MB_INLINE bool system_close(int file) { return close(file) == 0; }
MB_INLINE bool system_rename(const char* from, const char* to) { return rename(from, to) == 0; }
MB_INLINE void system_remove(const char* path) { unlink(path); }

#endif

}  // namespace minbuild
#endif  // MINBUILD_RUNTIME_SYSTEM_H_
