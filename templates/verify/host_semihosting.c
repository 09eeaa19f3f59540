/* runner.c on a Cortex-M without an operating system: start-up code, and files by semihosting, where the debugger or
 * emulator does what register r0 says when it sees `bkpt 0xab`. Numbers of the calls are those of Arm's semihosting
 * specification. */
#include <stdint.h>

#include "host.h"

enum { OPEN = 1, CLOSE = 2, WRITE = 5, READ = 6, LENGTH = 12, EXIT = 32 };
enum { MODE_READ = 1, MODE_WRITE = 4, MODE_APPEND = 8, STOPPED = 0x20026 };

/* From the linker script. */
extern char stack_top[], heap_start[], heap_end[];
extern char data_start[], data_end[], data_image[], bss_start[], bss_end[];

int main(void);
static void reset(void);
static void fault(void);

/* The first words of the memory: the stack, where to start, what to do about faults. */
__attribute__((section(".vectors"), used)) static const void* const vectors[16] = {
    stack_top, (void*)reset, (void*)fault, (void*)fault, (void*)fault, (void*)fault, (void*)fault,
};

static intptr_t call(intptr_t number, const void* arguments) {
  register intptr_t r0 __asm__("r0") = number;
  register const void* r1 __asm__("r1") = arguments;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
  return r0;
}

static uintptr_t length(const char* text) {
  uintptr_t n = 0;
  while (text[n]) ++n;
  return n;
}

static intptr_t open_file(const char* name, intptr_t mode) {
  const intptr_t arguments[] = {(intptr_t)name, mode, (intptr_t)length(name)};
  return call(OPEN, arguments);
}

/* The host may take a part and leave the rest for later; the call returns how many bytes are left. */
static void write_file(intptr_t file, const void* data, size_t size) {
  const char* end = (const char*)data + size;
  intptr_t arguments[] = {file, 0, (intptr_t)size};
  while (arguments[2] > 0) {
    arguments[1] = (intptr_t)end - arguments[2];
    arguments[2] = call(WRITE, arguments);
  }
}

static void leave(int code) {
  const intptr_t arguments[] = {STOPPED, code};
  for (;;) call(EXIT, arguments);
}

/* The coprocessor access register lets code use the floating-point unit. */
static void reset(void) {
  char *at, *from;
  *(volatile uint32_t*)0xe000ed88 |= 0xfu << 20;
  __asm__ volatile("dsb\n isb" ::: "memory");
  for (at = data_start, from = data_image; at < data_end; ++at, ++from) *(volatile char*)at = *from;
  for (at = bss_start; at < bss_end; ++at) *(volatile char*)at = 0;
  leave(main());
}

static void fault(void) { host_fail("processor", "fault"); }

static intptr_t reply = -1;
static char* top = heap_start;

void host_fail(const char* what, const char* why) {
  const intptr_t errors = open_file(":tt", MODE_APPEND);
  write_file(errors, what, length(what));
  write_file(errors, ": ", 2);
  write_file(errors, why, length(why));
  write_file(errors, "\n", 1);
  leave(3);
}

void* host_take(size_t size) {
  char* memory = top;
  size = (size + 63) & ~(size_t)63;
  if (size > (size_t)(heap_end - top)) host_fail("memory", "the board has no more");
  top += size;
  return memory;
}

void host_give_back(void* memory) { top = memory; }

unsigned char* host_read(const char* name, size_t* size) {
  intptr_t file = open_file(name, MODE_READ);
  unsigned char* data;
  intptr_t arguments[3] = {file};
  if (file < 0) host_fail(name, "cannot be opened");
  *size = (size_t)call(LENGTH, arguments);
  data = host_take(*size);
  arguments[1] = (intptr_t)data, arguments[2] = (intptr_t)*size;
  if (call(READ, arguments) != 0) host_fail(name, "cannot be read");
  call(CLOSE, arguments);
  return data;
}

/* The call returns how many bytes are missing. */
void host_next(void* to, size_t size) {
  static intptr_t file = -1;
  intptr_t arguments[3], missing = (intptr_t)size;
  if (file < 0) file = open_file("trace", MODE_READ);
  if (file < 0) host_fail("trace", "cannot be opened");
  while (missing > 0) {
    intptr_t before = missing;
    arguments[0] = file, arguments[1] = (intptr_t)to + (intptr_t)size - missing, arguments[2] = missing;
    missing = call(READ, arguments);
    if (missing == before) host_fail("trace", "ends too early");
  }
}

void host_write(const void* data, size_t size) {
  if (reply < 0) reply = open_file(":tt", MODE_WRITE);
  write_file(reply, data, size);
}

int host_finish(void) { return 1; }

void host_stop(void) { leave(0); }

void host_forget(void* data, size_t size) { (void)data, (void)size; }
void host_pass(void* data, size_t size) { (void)data, (void)size; }
size_t host_page(void) { return 0; }
void host_protect(void* start, size_t size, int writable, int (*caught)(const void* address)) {
  (void)start, (void)size, (void)writable, (void)caught;
}
