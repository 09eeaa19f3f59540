/* runner.c on Windows, with its C library. */
#include <fcntl.h>
#include <io.h>
#include <stdio.h>
#include <stdlib.h>

#include "host.h"

void host_fail(const char* what, const char* why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(3);
}

void host_give_back(void* memory) { free(memory); }

void* host_take(size_t size) {
  void* memory = malloc(size + 16);
  if (!memory) host_fail("memory", "there is no more");
  return memory;
}

void host_forget(void* data, size_t size) { (void)data, (void)size; }
void host_pass(void* data, size_t size) { (void)data, (void)size; }
size_t host_page(void) { return 0; }
void host_protect(void* start, size_t size, int writable, int (*caught)(const void* address)) {
  (void)start, (void)size, (void)writable, (void)caught;
}

unsigned char* host_read(const char* name, size_t* size) {
  FILE* file = fopen(name, "rb");
  unsigned char* data;
  if (!file) host_fail(name, "cannot be opened");
  fseek(file, 0, SEEK_END);
  *size = (size_t)ftell(file);
  fseek(file, 0, SEEK_SET);
  data = host_take(*size);
  if (fread(data, 1, *size, file) != *size) host_fail(name, "cannot be read");
  fclose(file);
  return data;
}

void host_next(void* to, size_t size) {
  static FILE* file;
  if (!file) file = fopen("trace", "rb");
  if (!file || fread(to, 1, size, file) != size) host_fail("trace", "ends too early");
}

/* Windows would put a carriage return before each byte 10. */
void host_write(const void* data, size_t size) {
  static int binary;
  if (!binary) _setmode(_fileno(stdout), _O_BINARY), binary = 1;
  if (size) fwrite(data, 1, size, stdout);
}

int host_finish(void) { return fflush(stdout) == 0; }

void host_stop(void) { exit(host_finish() ? 0 : 3); }
