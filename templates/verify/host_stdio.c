/* runner.c on an operating system with a C library. */
#include <stdio.h>
#include <stdlib.h>

#include "host.h"

void host_fail(const char* what, const char* why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(3);
}

void* host_take(size_t size) {
  void* memory = malloc(size + 16);
  if (!memory) host_fail("memory", "there is no more");
  return memory;
}

void host_give_back(void* memory) { free(memory); }

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

void host_write(const void* data, size_t size) {
  if (size) fwrite(data, 1, size, stdout);
}

int host_finish(void) { return fflush(stdout) == 0; }
