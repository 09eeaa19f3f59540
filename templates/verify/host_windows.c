/* runner.c on Windows, with nothing but its kernel: the default toolchain would have to build a C library first, which takes
 * longer than all the rest. */
#include <windows.h>

#include "host.h"

/* Files are read and written in pieces, of which 32 bits have the size. */
#define PIECE ((DWORD)1 << 30)

static void put(HANDLE file, const char* data, size_t size) {
  while (size) {
    DWORD done;
    if (!WriteFile(file, data, size < PIECE ? (DWORD)size : PIECE, &done, NULL)) ExitProcess(3);
    data += done, size -= done;
  }
}

static void complain(const char* text) {
  size_t size = 0;
  while (((const volatile char*)text)[size]) ++size; /* or the compiler makes a call of strlen of it */
  put(GetStdHandle(STD_ERROR_HANDLE), text, size);
}

void host_fail(const char* what, const char* why) {
  complain(what), complain(": "), complain(why), complain("\n");
  ExitProcess(3);
}

void host_give_back(void* memory) { HeapFree(GetProcessHeap(), 0, memory); }

void* host_take(size_t size) {
  void* memory = HeapAlloc(GetProcessHeap(), 0, size + 16);
  if (!memory) host_fail("memory", "there is no more");
  return memory;
}

void host_forget(void* data, size_t size) { (void)data, (void)size; }
void host_pass(void* data, size_t size) { (void)data, (void)size; }
size_t host_page(void) { return 0; }
void host_protect(void* start, size_t size, int writable, int (*caught)(const void* address)) {
  (void)start, (void)size, (void)writable, (void)caught;
}

static HANDLE opened(const char* name) {
  HANDLE file = CreateFileA(name, GENERIC_READ, FILE_SHARE_READ, NULL, OPEN_EXISTING, 0, NULL);
  if (file == INVALID_HANDLE_VALUE) host_fail(name, "cannot be opened");
  return file;
}

static void get(HANDLE file, const char* name, char* to, size_t size) {
  while (size) {
    DWORD done;
    if (!ReadFile(file, to, size < PIECE ? (DWORD)size : PIECE, &done, NULL)) host_fail(name, "cannot be read");
    if (!done) host_fail(name, "ends too early");
    to += done, size -= done;
  }
}

unsigned char* host_read(const char* name, size_t* size) {
  HANDLE file = opened(name);
  LARGE_INTEGER bytes;
  unsigned char* data;
  if (!GetFileSizeEx(file, &bytes)) host_fail(name, "cannot be read");
  *size = (size_t)bytes.QuadPart;
  data = host_take(*size);
  get(file, name, (char*)data, *size);
  CloseHandle(file);
  return data;
}

void host_next(void* to, size_t size) {
  static HANDLE file;
  if (!file) file = opened("trace");
  get(file, "trace", to, size);
}

/* Small pieces go together. */
static char waiting[1 << 16];
static size_t used;

int host_finish(void) {
  put(GetStdHandle(STD_OUTPUT_HANDLE), waiting, used);
  used = 0;
  return 1;
}

void host_write(const void* data, size_t size) {
  const char* from = data;
  if (size > sizeof waiting - used) host_finish();
  if (size > sizeof waiting) {
    put(GetStdHandle(STD_OUTPUT_HANDLE), from, size);
    return;
  }
  while (size--) waiting[used++] = *from++;
}

void host_stop(void) {
  host_finish();
  ExitProcess(0);
}
