/* What lies in flash beside the program: the plan and the checkpoint, read in place, and the recorded windows. */
.syntax unified
.section .rodata.flash, "a"

.macro file name, path
.balign 8
.global \name, \name\()_end
\name:
.incbin "\path"
\name\()_end:
.endm

file plan, "dist/model/trainer.plan"
file checkpoint, "dist/model/checkpoint"
file windows, "windows.bin"
