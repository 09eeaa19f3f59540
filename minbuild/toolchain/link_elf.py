"""Links an ELF shared library, and its unstripped copy: the same file in all that loaders read."""

from __future__ import annotations

import re
from collections.abc import Callable

from minbuild.errors import ToolchainFailed
from minbuild.options.build_options import OFF, ON, BuildOptions
from minbuild.toolchain import builtin_memops as link_bytes
from minbuild.toolchain import flags
from minbuild.toolchain.compile_library import BuildFolder, Interface, Linked
from minbuild.toolchain.strip_headers import shorten_hash, trim_headers
from minbuild.toolchain.targets import Target

_UNDEFINED = re.compile(r"undefined symbol: (.+)")
# The compiler's own helpers: 64-bit division on 32-bit chips, half precision, ...
_HELPER = re.compile(r"__(?!errno)[a-z0-9_]+$")
# The object of the whole library that a link that optimises leaves.
_OPTIMISED = "optimised.o"

# The linker's own layout plus three savings: no PT_PHDR (only programs need one), no comment with the
# linker's name, no attribute sections. Unwinding tables of the compiler's helpers go too: nothing here
# throws. Code and data keep apart (no segment is both writable and executable); the stack stays
# non-executable. Sections whose headers a shipped library needs come first, so that the others' can be cut
# off. The hash table and the strings end what is loaded from the file, so that the one can be cut and the
# other go on with the names of sections.
_LAYOUT = """PHDRS {
  text PT_LOAD FILEHDR PHDRS FLAGS(5);
  data PT_LOAD FLAGS(6);
  dynamic PT_DYNAMIC FLAGS(6);
  stack PT_GNU_STACK FLAGS(6);
FINDER}
SECTIONS {
  . = SIZEOF_HEADERS;
  .dynsym : { *(.dynsym) } :text
  .text : { *(.text .text.*) } :text
  .plt : { *(.plt) } :text
  .rodata : { *(.rodata .rodata.*) } :text
UNWIND  .rela.dyn : { *(.rela.dyn) } :text
  .rel.dyn : { *(.rel.dyn) } :text
  .rela.plt : { *(.rela.plt) } :text
  .rel.plt : { *(.rel.plt) } :text
  . = DATA;
  .data.rel.ro : { *(.data.rel.ro .data.rel.ro.*) } :data
  .dynamic : { *(.dynamic) } :data :dynamic
  .got : { *(.got) } :data
  .got.plt : { *(.got.plt) } :data
  .data : { *(.data .data.*) } :data
  .gnu.hash : { *(.gnu.hash) } :data
  .dynstr : { *(.dynstr) } :data
  .bss : { *(.bss .bss.* COMMON) } :data
  /DISCARD/ : {
    *(.comment) *(.note.*)DISCARDED *(.ARM.attributes) *(.riscv.attributes)
  }
}
"""
_TABLES = "*(.eh_frame) *(.ARM.exidx*) *(.ARM.extab*)"
# What keeps them, and how unwinders find them, by the kind of table.
_EXIDX = (
    "  finder 0x70000001 FLAGS(4);\n",  # PT_ARM_EXIDX
    "  .ARM.extab : { *(.ARM.extab*) } :text\n  .ARM.exidx : { *(.ARM.exidx*) } :text :finder\n",
)
_FRAMES = (
    "  finder PT_GNU_EH_FRAME FLAGS(4);\n",
    "  .eh_frame_hdr : { *(.eh_frame_hdr) } :text :finder\n  .eh_frame : { KEEP(*(.eh_frame)) } :text\n",
)


def layout(target: Target, build_options: BuildOptions) -> bytes:
    """The linker script. Data follow code in the file, and one page further in memory; or begin a page in both."""
    finder, tables, discarded = "", "", f" {_TABLES}"
    if build_options.unwind_tables == ON:
        finder, tables = _EXIDX if target.traits.arch == "arm" else _FRAMES
        discarded = ""
    start = (
        "ALIGN(CONSTANT(MAXPAGESIZE))" if build_options.separate_code == ON else ". + CONSTANT(MAXPAGESIZE)"
    )
    text = _LAYOUT.replace("FINDER", finder).replace("UNWIND", tables)
    return text.replace("DISCARDED", discarded).replace("DATA;", f"{start};").encode()


def call(target: Target, build_options: BuildOptions, interface: Interface | None = None) -> tuple[str, ...]:
    """The linker and its options. `target` and `build_options` decide them; `interface` has other exports than the
    trainer's."""
    # Kernels are told apart by their place in a table, never by address: folding equal ones is safe.
    fold = f"--icf={'none' if build_options.icf == OFF else 'all'}"
    unwind = ("--eh-frame-hdr",) if build_options.unwind_tables == ON else ()
    own = (
        "-shared",
        "-soname",
        interface.soname if interface else target.traits.shared_name,
        fold,
        "--no-rosegment",
        *unwind,
    )
    script = ("-T", "layout.ld", "--version-script=exports.map")
    return ("zig", "ld.lld", *own, *flags.link_flags(build_options, target), *script)


def recipe(
    target: Target, build_options: BuildOptions, interface: Interface | None = None
) -> tuple[str, ...]:
    """The inputs that decide the bytes. `target`, `build_options` and `interface` as of `call`."""
    finish = f"{build_options.strip} {build_options.section_headers}"
    files = (layout(target, build_options), _exports(build_options, interface), link_bytes.source())
    return (*call(target, build_options, interface), _OPTIMISED, *(file.decode() for file in files), finish)


def _exports(build_options: BuildOptions, interface: Interface | None) -> bytes:
    """The version script."""
    if interface is None:
        return flags.exports(build_options)
    return f"{{ global: {'; '.join(interface.exports)}; local: *; }};\n".encode()


def link(
    objects: tuple[str, ...],
    target: Target,
    build_options: BuildOptions,
    options: tuple[str, ...],
    helpers: Callable[[tuple[str, ...]], bytes],
    compile_c: tuple[str, ...],
    workspace: BuildFolder,
    run: Callable[[tuple[str, ...]], str],
    interface: Interface | None = None,
) -> Linked:
    """The library and its unstripped copy. `options` come on top of `call`; `helpers` makes one object of just these
    functions of the compiler's helper library; `compile_c` is the call of the C compiler. `objects` are names of
    files in `workspace`, for `target` as `build_options` say; `run` starts a command there and returns its output;
    `interface` has other exports than the trainer's. Raises ToolchainFailed."""
    workspace.write(
        {"layout.ld": layout(target, build_options), "exports.map": _exports(build_options, interface)}
    )
    linker = call(target, build_options, interface)
    optimise: tuple[str, ...] = ()
    if options:  # takes longer than all the rest, and so happens once
        optimise = (*linker, *options, *objects, f"--lto-obj-path={_OPTIMISED}", "-o", "optimised")
        run(optimise)
        objects = (_OPTIMISED,)
    # What is missing comes before the rest, as it does where a link optimises: shorter gaps for alignment.
    link = (*linker, *objects)
    missing = _link_unstripped(link, run)
    needed = tuple(name for name in missing if _HELPER.match(name))
    if needed:
        workspace.write({"helpers.o": helpers(needed)})
        linker = (*linker, "helpers.o")
        link = (*linker, *objects)
        missing = _link_unstripped(link, run)
    if missing and link_bytes.NAMES.issuperset(missing):
        workspace.write({"memops.c": link_bytes.source()})
        run((*compile_c, "-c", "memops.c", "-o", "memops.o"))
        linker = (*linker, "memops.o")
        link = (*linker, *objects)
        missing = _link_unstripped(link, run)
    if missing:
        _stub(target, compile_c, workspace, run)
        link = (*link, "libc-stub.so")
        missing = _link_unstripped(link, run)
    ours = sorted({name for name in missing if "::" in name or "(" in name})
    if ours:
        raise ToolchainFailed(
            f"link: {', '.join(ours)}: used but in none of the sources. "
            "Add the file that defines it to the package, or report it if minbuild wrote the package."
        )
    strip = () if build_options.strip == OFF else ("--strip-all",)
    link = (*link, "-o")
    run((*link, "stripped", *strip))
    shared, unstripped = workspace.read("stripped"), workspace.read("unstripped")
    if build_options.section_headers == "needed":
        shared, unstripped = trim_headers(shorten_hash(shared)), shorten_hash(unstripped)
    text = workspace.read("unstripped.map").decode(errors="replace")
    return Linked(shared, unstripped, text, (*link, target.traits.shared_name, *strip), optimise=optimise)


def _link_unstripped(link: tuple[str, ...], run: Callable[[tuple[str, ...]], str]) -> tuple[str, ...]:
    """Link with symbols and relocations; the names no input defines."""
    report = ("-z", "defs", "--warn-unresolved-symbols", "--error-limit=0")
    output = run((*link, "--emit-relocs", "--Map=unstripped.map", *report, "-o", "unstripped"))
    return tuple(sorted(set(_UNDEFINED.findall(output))))


def _stub(
    target: Target, compile_c: tuple[str, ...], workspace: BuildFolder, run: Callable[[tuple[str, ...]], str]
) -> None:
    """A shared library with the C library's name and nothing in it, to link against."""
    workspace.write({"stub.c": b""})
    run((*compile_c, "-fPIC", "-c", "stub.c", "-o", "stub.o"))
    named = ("-soname", target.traits.libc, "-o", "libc-stub.so")
    run(("zig", "ld.lld", "-shared", "--hash-style=gnu", *named, "stub.o"))
