"""Compiler and linker settings, chosen by measurement for the smallest library a plain loader accepts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from minbuild.options.build_options import OFF, ON, BuildOptions
from minbuild.toolchain.targets import Target

LTO = "-flto"
SPEED = "-O2"  # what -Oz becomes for kernels that are compiled for speed


def compile_flags(build_options: BuildOptions) -> tuple[str, ...]:
    """The compiler flags that gcc and clang share, without the level of optimisation."""
    changed: dict[str, str] = {}
    if build_options.unwind_tables == ON:
        changed |= {
            "-fno-unwind-tables": "-funwind-tables",
            "-fno-asynchronous-unwind-tables": "-fasynchronous-unwind-tables",
        }
    if build_options.visibility == "default":
        changed["-fvisibility=hidden"] = "-fvisibility=default"
    if build_options.gc_sections == OFF:
        changed |= {
            "-ffunction-sections": "-fno-function-sections",
            "-fdata-sections": "-fno-data-sections",
        }
    return tuple(changed.get(flag, flag) for flag in COMPILE)


def link_flags(build_options: BuildOptions, target: Target | None = None) -> tuple[str, ...]:
    """The linker flags that ELF linkers share, for a target or for any."""
    changed: dict[str, str] = {}
    if build_options.gc_sections == OFF:
        changed["--gc-sections"] = "--no-gc-sections"
    if build_options.separate_code == ON:
        changed["noseparate-code"] = "separate-code"
    page = (
        build_options.max_page_size
        if build_options.max_page_size != "target"
        else str(target.traits.page)
        if target
        else ""
    )
    pages = ("-z", f"max-page-size={page}") if page else ()
    return (*(changed.get(flag, flag) for flag in LINK_ELF), *pages)


def exports(build_options: BuildOptions) -> bytes:
    """The linker's version script."""
    return EXPORTS if build_options.visibility == "hidden" else b"{ global: *; };\n"


def kernel_of(unit: str) -> str:
    """The kernel file that a source is, "" for sources of the runtime."""
    path = PurePosixPath(unit)
    return path.stem if path.parent.name == "kernels" else ""


def speed_units(build_options: BuildOptions, units: Iterable[str]) -> frozenset[str]:
    """The sources that are compiled for speed: kernels, and with any of them what they share. The runtime is not: a
    step spends no time in it."""
    kernels = frozenset(u for u in units if kernel_of(u) and build_options.speeds(kernel_of(u)))
    return kernels | frozenset(u for u in units if kernels and "lib" in PurePosixPath(u).parts)


def in_link_order(objects: Mapping[str, str], speed: frozenset[str]) -> tuple[str, ...]:
    """Objects by their sources, those for speed first: of what several objects have, linkers take the first."""
    return tuple(objects[unit] for unit in sorted(objects, key=lambda unit: unit not in speed))


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


def link_macos(target: Target) -> tuple[str, ...]:
    """Driver flags of a macOS library."""
    return (
        "-shared",
        "-nostdlib++",
        "-Wl,-dead_strip",
        f"-Wl,-install_name,@rpath/{target.traits.shared_name}",
    )
