/* What a board brings: start-up code, and a way to print. Here text goes to the emulator by Arm's semihosting; on a real
 * board `put` would be a UART and `stop` a loop. */
#include <stdint.h>

#include "board.h"

extern uint32_t stack_top[], data_start[], data_end[], data_image[], bss_start[], bss_end[];

static int semihosting(int number, const void* argument) {
  register int r0 __asm__("r0") = number;
  register const void* r1 __asm__("r1") = argument;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
  return r0;
}

void put(const char* text) { semihosting(0x04, text); }

void put_number(uint32_t number) {
  char digits[11], *at = digits + 10;
  *at = 0;
  do *--at = (char)('0' + number % 10);
  while (number /= 10);
  put(at);
}

void stop(int code) {
  const int arguments[] = {0x20026, code};
  for (;;) semihosting(0x20, arguments);
}

void reset(void) {
  uint32_t *to, *from;
  *(volatile uint32_t*)0xe000ed88 |= 0xfu << 20; /* CPACR: the floating-point unit is on */
  __asm__ volatile("dsb\n isb" ::: "memory");
  for (to = data_start, from = data_image; to < data_end;) *to++ = *from++;
  for (to = bss_start; to < bss_end;) *to++ = 0;
  stop(main());
}

static void fault(void) {
  put("fault\n");
  stop(3);
}

__attribute__((section(".vectors"), used)) static const void* const vectors[16] = {
    stack_top, (const void*)reset, (const void*)fault, (const void*)fault, (const void*)fault, (const void*)fault, (const void*)fault,
};
