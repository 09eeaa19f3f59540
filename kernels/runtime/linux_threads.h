// Threads by system calls of Linux, for libraries that depend on no C library: making one, and sleeping on a word.
#ifndef MINBUILD_RUNTIME_LINUX_THREADS_H_
#define MINBUILD_RUNTIME_LINUX_THREADS_H_

#include <linux/futex.h>
#include <sched.h>
#include "runtime/system_calls.h"

namespace minbuild {
namespace {

MB_NOINLINE void futex(uint32_t* word, int operation, uint32_t value) {
  system_call(SYS_futex, reinterpret_cast<intptr_t>(word), operation, value, nullptr);
}
// clone(2): main(argument) on the stack below `stack_end`, which ends the thread when it returns. The kernel writes the
// thread's number to `id`, and clears it and wakes who waits there when the thread has ended. Returns a negative number
// where there is no thread.
//
// In assembly, since the new thread returns from the system call on an empty stack: no compiled code may touch a local
// variable between the call and the jump to `main`, which it finds on its stack.
template <class Argument>
MB_INLINE intptr_t clone_thread(char* stack_end, uint32_t* id, void (*main)(Argument*), Argument* argument) {
  constexpr intptr_t kFlags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
                              CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
  void** top = reinterpret_cast<void**>(stack_end) - 2;
  top[0] = reinterpret_cast<void*>(main);
  top[1] = argument;
#if defined(__x86_64__)
  register intptr_t result __asm__("rax") = SYS_clone;
  register intptr_t flags __asm__("rdi") = kFlags;
  register void* stack __asm__("rsi") = top;
  register uint32_t *parent __asm__("rdx") = id, *child __asm__("r10") = id;
  __asm__ volatile(
      "syscall\n\t"
      "test %%eax, %%eax\n\t"
      "jnz 1f\n\t"
      "xor %%ebp, %%ebp\n\t"
      "pop %%rax\n\t"
      "pop %%rdi\n\t"
      "call *%%rax\n\t"
      "xor %%edi, %%edi\n\t"
      "mov %[exit], %%eax\n\t"
      "syscall\n"
      "1:"
      : "+r"(result)
      : "r"(flags), "r"(stack), "r"(parent), "r"(child), [exit] "i"(SYS_exit)
      : "rcx", "r11", "memory");
#elif defined(__riscv)
  register intptr_t number __asm__("a7") = SYS_clone, result __asm__("a0") = kFlags;
  register void* stack __asm__("a1") = top;
  register uint32_t *parent __asm__("a2") = id, *child __asm__("a4") = id;
  __asm__ volatile(
      "ecall\n\t"
      "bnez a0, 1f\n\t"
      "ld a1, 0(sp)\n\t"
      "ld a0, 8(sp)\n\t"
      "addi sp, sp, 16\n\t"
      "jalr a1\n\t"
      "li a0, 0\n\t"
      "li a7, %[exit]\n\t"
      "ecall\n"
      "1:"
      : "+r"(result)
      : "r"(number), "r"(stack), "r"(parent), "r"(child), [exit] "i"(SYS_exit)
      : "memory");
#elif defined(__loongarch__)
  register intptr_t number __asm__("$a7") = SYS_clone, result __asm__("$a0") = kFlags;
  register void* stack __asm__("$a1") = top;
  register uint32_t *parent __asm__("$a2") = id, *child __asm__("$a3") = id;
  __asm__ volatile(
      "syscall 0\n\t"
      "bnez $a0, 1f\n\t"
      "move $fp, $zero\n\t"
      "ld.d $a1, $sp, 0\n\t"
      "ld.d $a0, $sp, 8\n\t"
      "addi.d $sp, $sp, 16\n\t"
      "jirl $ra, $a1, 0\n\t"
      "move $a0, $zero\n\t"
      "li.w $a7, %[exit]\n\t"
      "syscall 0\n"
      "1:"
      : "+r"(result)
      : "r"(number), "r"(stack), "r"(parent), "r"(child), [exit] "i"(SYS_exit)
      : "$t0", "$t1", "$t2", "$t3", "$t4", "$t5", "$t6", "$t7", "$t8", "memory");
#elif defined(__arm__)
  register intptr_t result __asm__("r0") = kFlags;
  register void* stack __asm__("r1") = top;
  register uint32_t *parent __asm__("r2") = id, *child __asm__("r4") = id;
  __asm__ volatile(
      "mov ip, r7\n\t"
      "mov r7, %[clone]\n\t"
      "svc 0\n\t"
      "mov r7, ip\n\t"
      "cmp r0, #0\n\t"
      "bne 1f\n\t"
      "mov fp, r0\n\t"
      "pop {r1}\n\t"
      "pop {r0}\n\t"
      "blx r1\n\t"
      "mov r0, #0\n\t"
      "mov r7, %[exit]\n\t"
      "svc 0\n"
      "1:"
      : "+r"(result)
      : "r"(stack), "r"(parent), "r"(child), [clone] "i"(SYS_clone), [exit] "i"(SYS_exit)
      : "ip", "cc", "memory");
#else
  register intptr_t number __asm__("x8") = SYS_clone, result __asm__("x0") = kFlags;
  register void* stack __asm__("x1") = top;
  register uint32_t *parent __asm__("x2") = id, *child __asm__("x4") = id;
  __asm__ volatile(
      "svc 0\n\t"
      "cbnz x0, 1f\n\t"
      "mov x29, xzr\n\t"
      "ldp x1, x0, [sp], #16\n\t"
      "blr x1\n\t"
      "mov x0, xzr\n\t"
      "mov x8, %[exit]\n\t"
      "svc 0\n"
      "1:"
      : "+r"(result)
      : "r"(number), "r"(stack), "r"(parent), "r"(child), [exit] "i"(SYS_exit)
      : "memory");
#endif
  return result;
}

}  // namespace
}  // namespace minbuild
#endif  // MINBUILD_RUNTIME_LINUX_THREADS_H_
