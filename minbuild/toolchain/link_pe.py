"""Links a Windows library that imports nothing: exports by `__declspec(dllexport)`, no C library, no entry."""

from __future__ import annotations

from collections.abc import Callable

from minbuild.toolchain.library import Linked, Workshop
from minbuild.toolchain.targets import Target

# The one helper compilers call here. The default toolchain's own cannot be taken alone: this linker keeps or drops
# whole objects.
PROBE = rb"""/* Touches every page of a large frame, so that Windows grows the stack: rax has its bytes, and
 * all registers stay as they were. */
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
"""
# No time stamp: the same objects give the same bytes.
_LINK = (
    *("zig", "lld-link", "-dll", "-noentry", "-lldmingw", "-opt:ref,icf", "-timestamp:0", "-filealign:512"),
    *("-dynamicbase", "-nxcompat", "-implib:minbuild.lib"),
)


def recipe(target: Target) -> tuple[str, ...]:
    """What decides the bytes."""
    return (*_LINK, PROBE.decode())


def link(
    objects: tuple[str, ...],
    compile_c: tuple[str, ...],
    shop: Workshop,
    run: Callable[[tuple[str, ...]], str],
) -> Linked:
    """The library and its twin with a symbol table. `compile_c` is the call of the C compiler. Raises
    ToolchainFailed.
    """
    shop.write({"probe.c": PROBE})
    run((*compile_c, "-c", "probe.c", "-o", "probe.o"))
    link = (*_LINK, *objects, "probe.o")
    # The name inside the library is that of the file.
    run((*link, "-out:minbuild.dll", "-debug:symtab"))
    twin = shop.read("minbuild.dll")
    run((*link, "-out:minbuild.dll"))
    return Linked(shop.read("minbuild.dll"), twin, "", (*link, "-out:minbuild.dll"))
