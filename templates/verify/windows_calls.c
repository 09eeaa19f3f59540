/* The start of a program for Windows without a C library. */
#include <windows.h>

int main(void);

/* Compilers for MinGW call it at the begin of main, for constructors, of which there are none. */
void __main(void) {}

__attribute__((noreturn)) void begin(void) { ExitProcess((UINT)main()); }
