"""Links a Windows library: exports by `__declspec(dllexport)`, no C library, no entry. It imports nothing, with
threads some functions of the system."""

from __future__ import annotations

from collections.abc import Callable

from minbuild.toolchain.compile_library import BuildFolder, Linked
from minbuild.toolchain.targets import Target

# What compilers call here. The default toolchain's own cannot be taken alone: this linker keeps or drops whole objects,
# but for functions in sections of their own. x86-64 moves and clears bytes by instructions, and needs the first only.
PROBE = rb"""/* Touches every page of a large frame, so that Windows grows the stack. */
#if defined(__aarch64__) /* x15 has its size in units of 16 bytes and stays as it was, x16 and x17 are free. */
__asm__(
    ".globl __chkstk\n"
    "__chkstk:\n"
    "  lsl x16, x15, #4\n"
    "  mov x17, sp\n"
    "  b 2f\n"
    "1: sub x17, x17, #4096\n"
    "  ldr xzr, [x17]\n"
    "  sub x16, x16, #4096\n"
    "2: cmp x16, #4096\n"
    "  b.hi 1b\n"
    "  sub x17, x17, x16\n"
    "  ldr xzr, [x17]\n"
    "  ret\n");

void* memset(void* to, int byte, __SIZE_TYPE__ size) {
  for (char* at = to; size; --size) *at++ = (char)byte;
  return to;
}

void* memcpy(void* to, const void* from, __SIZE_TYPE__ size) {
  const char* source = from;
  for (char* at = to; size; --size) *at++ = *source++;
  return to;
}

void* memmove(void* to, const void* from, __SIZE_TYPE__ size) {
  if ((__SIZE_TYPE__)to - (__SIZE_TYPE__)from >= size) return memcpy(to, from, size);
  while (size--) ((char*)to)[size] = ((const char*)from)[size];
  return to;
}

int memcmp(const void* left, const void* right, __SIZE_TYPE__ size) {
  const unsigned char *a = left, *b = right;
  for (; size; --size, ++a, ++b)
    if (*a != *b) return *a - *b;
  return 0;
}
#else /* rax has its bytes, and all registers stay as they were. */
__asm__(
    ".globl ___chkstk_ms\n"
    "___chkstk_ms:\n"
    "  pushq %rcx\n"
    "  pushq %rax\n"
    "  leaq 24(%rsp), %rcx\n"
    "  jmp 2f\n"
    "1: subq $4096, %rcx\n"
    "  orq $0, (%rcx)\n"
    "  subq $4096, %rax\n"
    "2: cmpq $4096, %rax\n"
    "  ja 1b\n"
    "  subq %rax, %rcx\n"
    "  orq $0, (%rcx)\n"
    "  popq %rax\n"
    "  popq %rcx\n"
    "  retq\n");
#endif
"""
# A loop that clears memory is not to become a call of itself.
_PLAIN = (
    "-Oz",
    "-ffreestanding",
    "-fno-builtin",
    "-fno-sanitize=all",
    "-ffunction-sections",
    "-fno-unwind-tables",
)
# The functions of the system that threads take (runtime/windows_threads.h). A library that calls none imports none.
SYSTEM = b"""LIBRARY "KERNEL32.dll"
EXPORTS
AcquireSRWLockExclusive
CloseHandle
CreateThread
GetProcessAffinityMask
ReleaseSRWLockExclusive
SleepConditionVariableSRW
WaitForSingleObject
WakeAllConditionVariable
"""
_MACHINES = {"x86_64": "i386:x86-64", "aarch64": "arm64"}
# No time stamp: the same objects give the same bytes.
_LINK = (
    *("zig", "lld-link", "-dll", "-noentry", "-lldmingw", "-opt:ref,icf", "-timestamp:0", "-filealign:512"),
    *("-dynamicbase", "-nxcompat", "-implib:minbuild.lib"),
)


def recipe(target: Target) -> tuple[str, ...]:
    """The inputs that decide the bytes."""
    return (*_LINK, *_PLAIN, PROBE.decode(), SYSTEM.decode())


def link(
    objects: tuple[str, ...],
    target: Target,
    compile_c: tuple[str, ...],
    workspace: BuildFolder,
    run: Callable[[tuple[str, ...]], str],
) -> Linked:
    """The library and its unstripped copy with a symbol table. `compile_c` is the call of the C compiler. Raises
    ToolchainFailed. `objects` are names of files in `workspace`, made for `target`; `run` starts a command there and
    returns its output."""
    _compile_probe(compile_c, workspace, run)
    workspace.write({"system.def": SYSTEM})
    run(("zig", "dlltool", "-m", _MACHINES[target.traits.arch], "-d", "system.def", "-l", "system.lib"))
    link = (*_LINK, *objects, "probe.o", "system.lib")
    # The name inside the library is that of the file.
    run((*link, "-out:minbuild.dll", "-debug:symtab"))
    unstripped = workspace.read("minbuild.dll")
    run((*link, "-out:minbuild.dll"))
    return Linked(workspace.read("minbuild.dll"), unstripped, "", (*link, "-out:minbuild.dll"))


def link_program(
    objects: tuple[str, ...],
    compile_c: tuple[str, ...],
    workspace: BuildFolder,
    run: Callable[[tuple[str, ...]], str],
) -> bytes:
    """A program of `objects` and of libminbuild.a in `workspace`, without a C library: it begins with `begin`.
    `compile_c` and `run` are as for `link`. Raises ToolchainFailed."""
    _compile_probe(compile_c, workspace, run)
    options = ("-nostdlib", "-nostartfiles", "-rtlib=none", "-Wl,-e,begin", "-s")
    run((*compile_c, *options, *objects, "libminbuild.a", "probe.o", "-lkernel32", "-o", "program"))
    return workspace.read("program")


def _compile_probe(
    compile_c: tuple[str, ...], workspace: BuildFolder, run: Callable[[tuple[str, ...]], str]
) -> None:
    workspace.write({"probe.c": PROBE})
    run((*compile_c, *_PLAIN, "-c", "probe.c", "-o", "probe.o"))
