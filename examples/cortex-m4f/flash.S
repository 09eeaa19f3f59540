/* What lies in flash beside the program: the compact checkpoint, read in place, and the recorded windows. */
.syntax unified
.section .rodata.flash, "a"

.macro file name, path
.balign 8
.global \name, \name\()_end
\name:
.incbin "\path"
\name\()_end:
.endm

file checkpoint, "dist/model/checkpoint.compact"
file windows, "windows.bin"
