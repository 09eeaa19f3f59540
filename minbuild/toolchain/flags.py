"""Compiler and linker settings, chosen by measurement for the smallest library a plain loader accepts."""

from __future__ import annotations

from minbuild.toolchain.targets import Target

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
    "--as-needed",
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
# off. The hash table ends what is loaded from the file, so that it can be cut too.
LAYOUT = b"""PHDRS {
  text PT_LOAD FILEHDR PHDRS FLAGS(5);
  data PT_LOAD FLAGS(6);
  dynamic PT_DYNAMIC FLAGS(6);
  stack PT_GNU_STACK FLAGS(6);
}
SECTIONS {
  . = SIZEOF_HEADERS;
  .dynsym : { *(.dynsym) } :text
  .dynstr : { *(.dynstr) } :text
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
