"""Compiler and linker settings, chosen by measurement for the smallest library a plain loader accepts."""

from __future__ import annotations

from dataclasses import dataclass

from minbuild.toolchain.targets import Target


@dataclass(frozen=True, slots=True)
class Mechanisms:
    """What makes a library small, each by itself: all on, unless somebody wants to know what one is worth."""

    size: bool = True  # optimise for size, not for speed
    no_unwind: bool = True  # no tables for stack traces and exceptions
    hidden: bool = True  # only the API is visible
    sections: bool = True  # functions and data that nothing reaches are dropped
    fold: bool = True  # equal functions are one
    strip: bool = True  # no names for debuggers
    headers: bool = True  # no section headers and hash buckets that no loader reads

    def compile(self, flags: tuple[str, ...]) -> tuple[str, ...]:
        """Compiler flags with what is off taken back."""
        changed: dict[str, str] = {}
        if not self.no_unwind:
            changed |= {
                "-fno-unwind-tables": "-funwind-tables",
                "-fno-asynchronous-unwind-tables": "-fasynchronous-unwind-tables",
            }
        if not self.hidden:
            changed["-fvisibility=hidden"] = "-fvisibility=default"
        if not self.sections:
            changed |= {
                "-ffunction-sections": "-fno-function-sections",
                "-fdata-sections": "-fno-data-sections",
            }
        if not self.size:
            changed["-Oz"] = "-O2"
        return tuple(changed.get(flag, flag) for flag in flags)

    def link(self, flags: tuple[str, ...]) -> tuple[str, ...]:
        """Linker flags with what is off taken back."""
        changed: dict[str, str] = {}
        if not self.sections:
            changed["--gc-sections"] = "--no-gc-sections"
        if not self.fold:
            changed["--icf=all"] = "--icf=none"
        return tuple(changed.get(flag, flag) for flag in flags)

    @property
    def exports(self) -> bytes:
        """The linker's version script."""
        return EXPORTS if self.hidden else b"{ global: *; };\n"

    @property
    def layout(self) -> bytes:
        """The linker script."""
        return (
            LAYOUT
            if self.no_unwind
            else LAYOUT.replace(b" *(.eh_frame)", b"").replace(
                b"  .rela.dyn :", b"  .eh_frame : { *(.eh_frame) } :text\n  .rela.dyn :"
            )
        )


# Common to gcc and clang. Frame descriptions, guards and errno bookkeeping are bytes nobody here reads.
COMPILE = (
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-unwind-tables",
    "-fno-asynchronous-unwind-tables",
    "-fno-stack-protector",
    "-fno-math-errno",
    "-ffp-contract=on",
    "-ffunction-sections",
    "-fdata-sections",
    "-fvisibility=hidden",
    "-fno-semantic-interposition",
    "-fomit-frame-pointer",
    "-fno-threadsafe-statics",
    "-fno-ident",
    "-fPIC",
    "-g0",
    "-Wall",
    "-Wextra",
    "-Werror=return-type",
    "-Werror=uninitialized",
)

# What ELF linkers share. relro, a separate code segment, a build id and the old hash table are padding and
# tables that loaders do without. Packed relative relocations (RELR) would save more but need glibc 2.36 or
# musl 1.2.4. Calls between functions of the API stay inside the library (-Bsymbolic-functions): no table
# entries for them.
LINK_ELF = (
    "--gc-sections",
    "-Bsymbolic-functions",
    "--hash-style=gnu",
    "--build-id=none",
    "-z",
    "norelro",
    "-z",
    "noseparate-code",
)

EXPORTS = b"{ global: mb_*; local: *; };\n"

# The linker's own layout plus three savings: no PT_PHDR (only programs need one), no comment with the
# linker's name, no attribute sections. Unwinding tables of the compiler's helpers go too: nothing here
# throws. Code and data keep apart (no segment is both writable and executable); the stack stays
# non-executable. Sections whose headers a shipped library needs come first, so that the others' can be cut
# off. The hash table and the strings end what is loaded from the file, so that the one can be cut and the
# other go on with the names of sections.
LAYOUT = b"""PHDRS {
  text PT_LOAD FILEHDR PHDRS FLAGS(5);
  data PT_LOAD FLAGS(6);
  dynamic PT_DYNAMIC FLAGS(6);
  stack PT_GNU_STACK FLAGS(6);
}
SECTIONS {
  . = SIZEOF_HEADERS;
  .dynsym : { *(.dynsym) } :text
  .text : { *(.text .text.*) } :text
  .plt : { *(.plt) } :text
  .rodata : { *(.rodata .rodata.*) } :text
  .rela.dyn : { *(.rela.dyn) } :text
  .rel.dyn : { *(.rel.dyn) } :text
  .rela.plt : { *(.rela.plt) } :text
  .rel.plt : { *(.rel.plt) } :text
  . = . + CONSTANT(MAXPAGESIZE);
  .data.rel.ro : { *(.data.rel.ro .data.rel.ro.*) } :data
  .dynamic : { *(.dynamic) } :data :dynamic
  .got : { *(.got) } :data
  .got.plt : { *(.got.plt) } :data
  .data : { *(.data .data.*) } :data
  .gnu.hash : { *(.gnu.hash) } :data
  .dynstr : { *(.dynstr) } :data
  .bss : { *(.bss .bss.* COMMON) } :data
  /DISCARD/ : {
    *(.comment) *(.note.*) *(.eh_frame) *(.ARM.exidx*) *(.ARM.extab*) *(.ARM.attributes) *(.riscv.attributes)
  }
}
"""


def link_macos(target: Target) -> tuple[str, ...]:
    """Driver flags of a macOS library."""
    return (
        "-shared",
        "-nostdlib++",
        "-Wl,-dead_strip",
        f"-Wl,-install_name,@rpath/{target.traits.shared_name}",
    )
