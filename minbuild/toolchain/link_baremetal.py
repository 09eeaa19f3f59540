"""Links the image of a chip without an operating system: what the library adds to a firmware that uses all of
its API. The static library is what ships; the image is what is measured.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from minbuild.errors import ToolchainFailed
from minbuild.toolchain.compile_library import BuildFolder, Linked
from minbuild.toolchain.targets import Target

_UNDEFINED = re.compile(r"undefined symbol: (.+)")
# Code and constants stay in flash, at any address; there is no data that start-up code would have to copy.
LAYOUT = b"""SECTIONS {
  . = 0;
  .text : { KEEP(*(.text.mb_*)) *(.text .text.*) }
  .rodata : { *(.rodata .rodata.*) }
  .data : { *(.data .data.*) }
  .bss : { *(.bss .bss.* COMMON) }
  /DISCARD/ : { *(.comment) *(.note.*) *(.ARM.exidx*) *(.ARM.extab*) *(.ARM.attributes) }
}
"""
_LINK = ("zig", "ld.lld", "--gc-sections", "--icf=all", "-T", "image.ld", "--entry=0", "--build-id=none")
_PAGE = ("-z", "max-page-size=4", "-z", "norelro", "-z", "nognustack")


def recipe(target: Target) -> tuple[str, ...]:
    """The inputs that decide the bytes."""
    return (*_LINK, *_PAGE, LAYOUT.decode())


def link(
    objects: tuple[str, ...],
    helpers: Callable[[tuple[str, ...]], bytes],
    workspace: BuildFolder,
    run: Callable[[tuple[str, ...]], str],
) -> Linked:
    """The image and its unstripped copy with symbols and relocations. `helpers` makes one object of just these
    functions of the compiler's helper library. `objects` are names of files in `workspace`; `run` starts a command
    there and returns its output. Raises ToolchainFailed."""
    workspace.write({"image.ld": LAYOUT})
    link = (*_LINK, *_PAGE, *objects)
    output = run((*link, "--warn-unresolved-symbols", "--error-limit=0", "-o", "unstripped"))
    missing = tuple(sorted(set(_UNDEFINED.findall(output))))
    ours = [name for name in missing if "::" in name or "(" in name]
    if ours:
        raise ToolchainFailed(
            f"link: {', '.join(ours)}: used but in none of the sources. "
            "Add the file that defines it to the package, or report it if minbuild wrote the package."
        )
    extracted = helpers(missing) if missing else b""
    if extracted:
        workspace.write({"helpers.o": extracted})
        link = (*link, "helpers.o")
    run((*link, "--emit-relocs", "--Map=unstripped.map", "-o", "unstripped"))
    run((*link, "--strip-all", "-o", "stripped"))
    text = workspace.read("unstripped.map").decode(errors="replace")
    command = (*link, "--strip-all", "-o", "minbuild.elf")
    return Linked(workspace.read("stripped"), workspace.read("unstripped"), text, command, extracted)
