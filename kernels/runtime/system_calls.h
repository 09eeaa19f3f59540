// Calls of the Linux kernel, whose interface never changes: a library that imports nothing needs no tables for it, and runs
// beside any C library.
#ifndef MINBUILD_RUNTIME_SYSTEM_CALLS_H_
#define MINBUILD_RUNTIME_SYSTEM_CALLS_H_

#include <stdint.h>

#include "lib/simd/vec.h"

#if defined(__linux__) && (defined(__arm__) || (defined(__LP64__) && (defined(__x86_64__) || defined(__aarch64__) || \
                                                                      defined(__riscv) || defined(__loongarch__))))
#define MB_SYSTEM_CALLS 1
#include <sys/syscall.h>

namespace minbuild {

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
#elif defined(__loongarch__)
#define MB_ENTER(...)             \
  __asm__ volatile("syscall 0"    \
                   : "+r"(result) \
                   : __VA_ARGS__  \
                   : "$t0", "$t1", "$t2", "$t3", "$t4", "$t5", "$t6", "$t7", "$t8", "memory")
  register intptr_t a __asm__("$a7") = number, result __asm__("$a0") = all[0], b __asm__("$a1") = all[1];
  register intptr_t c __asm__("$a2") = all[2], d __asm__("$a3") = all[3], e __asm__("$a4") = all[4],
                      f __asm__("$a5") = all[5];
#elif defined(__arm__)
// The number goes into r7, where Thumb code may keep its frame pointer.
#define MB_ENTER(...) \
  __asm__ volatile("mov ip, r7\n\tmov r7, %1\n\tsvc 0\n\tmov r7, ip" : "+r"(result) : __VA_ARGS__ : "ip", "memory")
  intptr_t a = number;
  register intptr_t result __asm__("r0") = all[0], b __asm__("r1") = all[1], c __asm__("r2") = all[2];
  register intptr_t d __asm__("r3") = all[3], e __asm__("r4") = all[4], f __asm__("r5") = all[5];
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

}  // namespace minbuild

#else
#define MB_SYSTEM_CALLS 0
#endif
#endif  // MINBUILD_RUNTIME_SYSTEM_CALLS_H_
