/* What host_posix.c needs of a C library, as system calls of Linux, and the start of a program: the default toolchain would
 * have to build a library first, which takes longer than all the rest. Declarations are those of musl. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

/* Below zero the result is an error. */
#define ARGUMENTS(a, b, c, d, e, f)                                                                   \
  intptr_t r_a __asm__(a) = one, r_b __asm__(b) = two, r_c __asm__(c) = three, r_d __asm__(d) = four, \
               r_e __asm__(e) = five, r_f __asm__(f) = six
static intptr_t call(intptr_t number, intptr_t one, intptr_t two, intptr_t three, intptr_t four, intptr_t five,
                     intptr_t six) {
#if defined(__x86_64__)
  register intptr_t result __asm__("rax") = number;
  register ARGUMENTS("rdi", "rsi", "rdx", "r10", "r8", "r9");
  __asm__ volatile("syscall"
                   : "+r"(result)
                   : "r"(r_a), "r"(r_b), "r"(r_c), "r"(r_d), "r"(r_e), "r"(r_f)
                   : "rcx", "r11", "memory");
  return result;
#else
#if defined(__aarch64__)
#define ENTER "svc 0"
  register intptr_t n __asm__("x8") = number;
  register ARGUMENTS("x0", "x1", "x2", "x3", "x4", "x5");
#elif defined(__arm__)
#define ENTER "svc 0"
  register intptr_t n __asm__("r7") = number;
  register ARGUMENTS("r0", "r1", "r2", "r3", "r4", "r5");
#elif defined(__loongarch__)
#define ENTER "syscall 0"
#define CHANGED "$t0", "$t1", "$t2", "$t3", "$t4", "$t5", "$t6", "$t7", "$t8",
  register intptr_t n __asm__("$a7") = number;
  register ARGUMENTS("$a0", "$a1", "$a2", "$a3", "$a4", "$a5");
#else
#define ENTER "ecall"
  register intptr_t n __asm__("a7") = number;
  register ARGUMENTS("a0", "a1", "a2", "a3", "a4", "a5");
#endif
#ifndef CHANGED
#define CHANGED
#endif
  __asm__ volatile(ENTER : "+r"(r_a) : "r"(n), "r"(r_b), "r"(r_c), "r"(r_d), "r"(r_e), "r"(r_f) : CHANGED "memory");
  return r_a;
#endif
}

/* As the C library has results: -1 for an error. */
static intptr_t checked(intptr_t result) { return result < 0 && result >= -4095 ? -1 : result; }
static intptr_t call3(intptr_t number, intptr_t one, intptr_t two, intptr_t three) {
  return checked(call(number, one, two, three, 0, 0, 0));
}

void _exit(int code) {
  for (;;) call3(SYS_exit_group, code, 0, 0);
}

static long page;

/* The stack of a new program: the number of its arguments, those, 0, the environment, 0, and pairs of what the kernel has
 * to say of the machine, the size of its pages under 6. */
int main(void);
__attribute__((used, noreturn)) static void begin(const uintptr_t* stack) {
  const volatile uintptr_t* at = stack + 1 + stack[0] + 1; /* volatile, or the compiler makes a call of wcslen of it */
  while (*at++) {}
  for (; at[0]; at += 2)
    if (at[0] == 6) page = (long)at[1];
  _exit(main());
}
__attribute__((naked, noreturn)) void _start(void) {
#if defined(__x86_64__)
  __asm__("xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call begin");
#elif defined(__aarch64__)
  __asm__("mov x29, #0\n mov x30, #0\n mov x0, sp\n b begin");
#elif defined(__arm__)
  __asm__("mov r0, sp\n b begin");
#elif defined(__loongarch__)
  __asm__("move $a0, $sp\n b begin");
#else
  __asm__("mv a0, sp\n tail begin");
#endif
}

long sysconf(int name) { return name == _SC_PAGESIZE ? page : -1; }

int open(const char* name, int flags, ...) {
  return (int)checked(call(SYS_openat, AT_FDCWD, (intptr_t)name, flags, 0, 0, 0));
}
int close(int file) { return (int)call3(SYS_close, file, 0, 0); }
off_t lseek(int file, off_t to, int from) { return (off_t)call3(SYS_lseek, file, (intptr_t)to, from); }
ssize_t read(int file, void* to, size_t size) { return call3(SYS_read, file, (intptr_t)to, (intptr_t)size); }
ssize_t write(int file, const void* from, size_t size) {
  return call3(SYS_write, file, (intptr_t)from, (intptr_t)size);
}

void* mmap(void* at, size_t size, int rights, int kind, int file, off_t from) {
#ifdef SYS_mmap2
  const intptr_t number = SYS_mmap2, offset = (intptr_t)(from >> 12);
#else
  const intptr_t number = SYS_mmap, offset = from;
#endif
  return (void*)checked(call(number, (intptr_t)at, (intptr_t)size, rights, kind, file, offset));
}
int munmap(void* start, size_t size) { return (int)call3(SYS_munmap, (intptr_t)start, (intptr_t)size, 0); }
int mprotect(void* start, size_t size, int rights) {
  return (int)call3(SYS_mprotect, (intptr_t)start, (intptr_t)size, rights);
}
int madvise(void* start, size_t size, int advice) {
  return (int)call3(SYS_madvise, (intptr_t)start, (intptr_t)size, advice);
}

/* The kernel's times have the size of addresses, those of the C library 64 bits. */
int setitimer(int which, const struct itimerval* restrict every, struct itimerval* restrict old) {
  const long times[] = {
      (long)every->it_interval.tv_sec,
      (long)every->it_interval.tv_usec,
      (long)every->it_value.tv_sec,
      (long)every->it_value.tv_usec,
  };
  (void)old;
  return (int)call3(SYS_setitimer, which, (intptr_t)times, 0);
}

#if defined(__x86_64__)
/* The end of a handler, which other kernels bring themselves. */
static __attribute__((naked)) void come_back(void) { __asm__("mov $15, %eax\n syscall"); }
#endif

int sigemptyset(sigset_t* set) {
  set->__bits[0] = 0; /* of which the kernel reads 64 */
  if (sizeof(long) == 4) set->__bits[1] = 0;
  return 0;
}

int sigaction(int number, const struct sigaction* restrict action, struct sigaction* restrict old) {
  struct {
    void (*handler)(int);
    unsigned long flags;
#if !defined(__riscv) && !defined(__loongarch__)
    void (*come_back)(void);
#endif
    unsigned mask[2];
  } wanted = {0};
  wanted.handler = action->sa_handler;
  wanted.flags = (unsigned long)action->sa_flags;
  __builtin_memcpy(wanted.mask, &action->sa_mask, sizeof wanted.mask);
#if defined(__x86_64__)
  wanted.flags |= 0x04000000, wanted.come_back = come_back; /* SA_RESTORER */
#endif
  (void)old;
  return (int)checked(call(SYS_rt_sigaction, number, (intptr_t)&wanted, 0, sizeof wanted.mask, 0, 0));
}
