"""Links a WebAssembly module for browsers and Node: its table and the C API exported, and its memory, which it imports
only where workers share it.

A host hands over memory it got by growing `memory`, and callbacks by putting them into the table.
"""

from __future__ import annotations

from collections.abc import Callable

from minbuild.toolchain.compile_library import BuildFolder, Linked
from minbuild.toolchain.targets import Target

# The stack comes first, so that an overflow traps instead of changing data.
_LINK = (
    *("zig", "wasm-ld", "--no-entry", "--export-dynamic", "--gc-sections", "--stack-first", "-O2"),
    *("-z", "stack-size=65536", "--export-table", "--growable-table", "--no-demangle"),
)
# Numbers of functions and addresses take as many bytes as they need, which leaves no room for relocations.
_SHIPPED = ("--strip-all", "--compress-relocations")
# A module that verifies a library: its host brings files, and calls what it exports.
PROGRAM = (
    *("zig", "wasm-ld", "--no-entry", "--gc-sections", "--stack-first", "-O2", "--strip-all"),
    *("-z", "stack-size=1048576", "--allow-undefined"),
)


# Memory comes from the host, which hands it to workers as well; each of them has a stack of its own. The sizes are
# those that kernels/bindings/js/threads.js makes: a mebibyte at first, and all addresses at last.
_SHARED = (
    *("--shared-memory", "--import-memory", "--initial-memory=1048576", "--max-memory=4294967296"),
    "--export=__stack_pointer",
)


def recipe(target: Target) -> tuple[str, ...]:
    """The inputs that decide the bytes."""
    return (*_LINK, *_shared(target), *_SHIPPED)


def _shared(target: Target) -> tuple[str, ...]:
    return _SHARED if target.traits.shares_memory else ()


def link(
    objects: tuple[str, ...],
    target: Target,
    helpers: bytes,
    workspace: BuildFolder,
    run: Callable[[tuple[str, ...]], str],
) -> Linked:
    """The module, and as its unstripped copy one with names and relocations: the same functions in the same order and
    the same data. `helpers` is the compiler's helper library for `target`. `objects` are names of files in `workspace`;
    `run` starts a command there and returns its output. Raises ToolchainFailed."""
    workspace.write({"libhelpers.a": helpers})
    link = (*_LINK, *_shared(target), *objects, "libhelpers.a")
    run((*link, "--emit-relocs", "--Map=unstripped.map", "-o", "unstripped"))
    run((*link, *_SHIPPED, "-o", "stripped"))
    command = (*_LINK, *_shared(target), *_SHIPPED, *objects, "libhelpers.a", "-o", "minbuild.wasm")
    return Linked(
        workspace.read("stripped"),
        workspace.read("unstripped"),
        workspace.read("unstripped.map").decode(errors="replace"),
        command,
    )
