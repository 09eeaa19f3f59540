/* What runner.c needs of where it runs. */
#ifndef HOST_H_
#define HOST_H_

#include <stddef.h>

/* The bytes of a file of the current folder, at an address that suits every type. */
unsigned char* host_read(const char* name, size_t* size);
/* Bytes from host_read, which are not needed soon, may leave the memory until they are read. */
void host_forget(void* data, size_t size);
/* Bytes from host_read are read once, front to back, until host_forget: those that were read may leave the memory. */
void host_pass(void* data, size_t size);
/* The next bytes of the file `trace`. */
void host_next(void* to, size_t size);
/* Adds to the reply. */
void host_write(const void* data, size_t size);
/* Memory that suits every type, all of it until what is given back last is taken last; ends the program without any. */
void* host_take(size_t size);
void host_give_back(void* memory);
/* The size of the pages that host_protect takes; 0 where it does nothing. Memory from host_take and host_read has whole
 * pages of its own then. */
size_t host_page(void);
/* Whole pages become writable or read-only. A write to a read-only one calls `caught` with its address: if that returns
 * 0, the program crashes, otherwise the page becomes writable and the program goes on. */
void host_protect(void* start, size_t size, int writable, int (*caught)(const void* address));
/* Ends the program, and says why. */
void host_fail(const char* what, const char* why);
/* Ends the program with the reply as it is. */
void host_stop(void);
/* True if the whole reply was written. */
int host_finish(void);

#endif
