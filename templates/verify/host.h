/* What runner.c needs of where it runs. */
#ifndef HOST_H_
#define HOST_H_

#include <stddef.h>

/* The bytes of a file of the current folder, at an address that suits every type. */
unsigned char* host_read(const char* name, size_t* size);
/* The next bytes of the file `trace`. */
void host_next(void* to, size_t size);
/* Adds to the reply. */
void host_write(const void* data, size_t size);
/* Memory that suits every type, all of it until what is given back last is taken last; ends the program without any. */
void* host_take(size_t size);
void host_give_back(void* memory);
/* Ends the program, and says why. */
void host_fail(const char* what, const char* why);
/* Ends the program with the reply as it is. */
void host_stop(void);
/* True if the whole reply was written. */
int host_finish(void);

#endif
