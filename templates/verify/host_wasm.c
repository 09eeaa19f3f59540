/* runner.c in a WebAssembly module, whose host has the files. */
#include "host.h"

#define HOST(name) __attribute__((import_module("host"), import_name(name)))

HOST("size") size_t file_size(const char* name);
HOST("read") void read_file(const char* name, void* to);
HOST("next") void next_bytes(void* to, size_t size);
HOST("write") void write_bytes(const void* data, size_t size);
HOST("fail") _Noreturn void fail_with(const char* what, const char* why);
HOST("stop") _Noreturn void stop(void);

int main(void);

__attribute__((export_name("start"))) int start(void) { return main(); }

/* What is given back last was taken first. */
static char *top, *end;

void* host_take(size_t size) {
  enum { PAGE = 65536 };
  char* memory;
  size = (size + 63) & ~(size_t)63;
  if (size > (size_t)(end - top)) {
    const size_t pages = (size - (size_t)(end - top) + PAGE - 1) / PAGE, before = __builtin_wasm_memory_grow(0, pages);
    if (before == ~(size_t)0) host_fail("memory", "there is no more");
    if (!top) top = end = (char*)(before * PAGE);
    end += pages * PAGE;
  }
  memory = top;
  top += size;
  return memory;
}

void host_give_back(void* memory) { top = memory; }
void host_fail(const char* what, const char* why) { fail_with(what, why); }

unsigned char* host_read(const char* name, size_t* size) {
  unsigned char* data;
  *size = file_size(name);
  data = host_take(*size);
  read_file(name, data);
  return data;
}

void host_next(void* to, size_t size) { next_bytes(to, size); }
void host_write(const void* data, size_t size) { write_bytes(data, size); }
void host_stop(void) { stop(); }
int host_finish(void) { return 1; }

void host_forget(void* data, size_t size) { (void)data, (void)size; }
void host_pass(void* data, size_t size) { (void)data, (void)size; }
size_t host_page(void) { return 0; }
void host_protect(void* start, size_t size, int writable, int (*caught)(const void* address)) {
  (void)start, (void)size, (void)writable, (void)caught;
}
