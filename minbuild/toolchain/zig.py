"""The default toolchain: the `ziglang` package from PyPI, a clang and lld for every target, nothing to
install.

Its driver compiles. It refuses most linker options, so libraries are linked with its `ld.lld` directly; the C
library, where one is needed at all, is a stand-in that holds nothing but a name, which spares building a real
one.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from minbuild.errors import ToolchainFailed
from minbuild.options.build_options import PLAN, SOURCES, BuildOptions, table
from minbuild.toolchain import builtin_memops, flags, link_elf, link_pe, link_wasm
from minbuild.toolchain import link_baremetal as link_image
from minbuild.toolchain.cache import digest
from minbuild.toolchain.compile_library import (
    PROGRAM_SOURCES,
    BuildFolder,
    BuildOutput,
    Interface,
    Linked,
    Sources,
    compile_objects,
    library_objects,
)
from minbuild.toolchain.targets import Target, host_target
from minbuild.toolchain.zig_flags import compile_command, driver, lto_options, uses_lto

# Processors of templates/verify/linux_calls.c.
_NO_LIBC = ("x86_64", "aarch64", "arm", "riscv64", "loongarch64")
# Of macOS. libSystem is linked without being asked for and has the compiler's helpers, which would be built for the
# stripped and for the unstripped file: most of a minute.
_WITHOUT_HELPERS = ("-rtlib=none", "-nolibc")
_LINK_CURE = "Build with --cxx g++ or --cxx clang++ to see whether another linker accepts it."


@dataclass(frozen=True, slots=True)
class Zig:
    """The `ziglang` package, by the folder it is installed in."""

    home: Path
    version: str
    build_options: BuildOptions = BuildOptions()
    interface: Interface | None = None

    def describe(self) -> str:
        return f"ziglang {self.version}"

    def recipe(self, target: Target) -> tuple[str, ...]:
        build_options = self._build_options(target)
        calls = (
            flag
            for speed in (False, True)
            for flag in compile_command(target, "c++", build_options, speed=speed)
        )
        kernels = (
            "for speed",
            build_options.optimize,
            *build_options.speed_for,
            "not",
            *build_options.size_for,
        )
        link = _link(target, build_options, self.interface)
        return (*calls, *kernels, *lto_options(target, build_options), *link)

    def with_interface(self, interface: Interface) -> Zig:
        """The same, for ELF libraries that export another interface than the trainer's."""
        return replace(self, interface=interface)

    def with_build_options(self, build_options: BuildOptions) -> Zig:
        return replace(self, build_options=build_options)

    def honours(self, target: Target) -> frozenset[str]:
        if target.traits.is_elf:
            return frozenset(option.name for option in table())
        found = {option.name for option in table() if option.stage in (PLAN, SOURCES)}
        return frozenset(found | {"optimize", "speed_for", "size_for"})

    def _build_options(self, target: Target) -> BuildOptions:
        return self.build_options.only(self.honours(target))

    def build(self, sources: Sources, target: Target, workspace: BuildFolder) -> BuildOutput:
        """As `Toolchain.build`: `sources` by path become a library for `target` in `workspace`, by the compiler that
        is a Python package."""
        build_options = self._build_options(target)
        calls = {s: compile_command(target, "c++", build_options, speed=s) for s in (False, True)}
        lto = uses_lto(target, build_options)
        objects = library_objects(
            sources,
            calls,
            build_options=build_options,
            lto=lto,
            toolchain=self,
            workspace=workspace,
            program=self._program,
        )
        workspace.report_progress("linking")
        linked = self._link(objects.linked, target, build_options, workspace)
        if linked.helpers:
            workspace.write({"helpers.o": linked.helpers})
        members = (*objects.static, *(("helpers.o",) if linked.helpers else ()))
        archive = ("zig", "ar", "rcsD", "libminbuild.a", *members)
        if workspace.archive:
            self._run(archive, workspace)
        return BuildOutput(
            shared=linked.shared,
            unstripped=linked.unstripped,
            archive=workspace.read("libminbuild.a") if workspace.archive else b"",
            map=linked.map,
            commands=(
                *objects.commands,
                *((" ".join(linked.optimise),) if linked.optimise else ()),
                " ".join(linked.command),
                *((" ".join(archive),) if workspace.archive else ()),
            ),
            toolchain=self.describe(),
            target=str(target),
        )

    def program(
        self, sources: Sources, archive: bytes, target: Target, workspace: BuildFolder, *, libc: bool = True
    ) -> bytes:
        """Static with musl where the target has it, so that it runs anywhere and under qemu-user without a sysroot;
        for the machine we run on a plain dynamic program, which needs no C library to be built first. For a chip
        without an operating system the sources bring start-up code and a linker script. `sources` by path are linked
        with `archive` for `target` in `workspace`; without `libc` they bring the start of the program, too."""
        name = _program_target(target)
        objects = compile_objects(
            sources,
            lambda unit: compile_command(
                target, "cc" if unit.endswith(".c") else "c++", BuildOptions(), name
            ),
            toolchain=self,
            workspace=workspace,
            program=self._program,
            extensions=PROGRAM_SOURCES,
        )
        workspace.write({"libminbuild.a": archive})
        if not libc:
            return self._link_without_libc(objects, target, workspace)
        if target.traits.format == "wasm":
            workspace.write({"libhelpers.a": self._helpers(target, workspace)})
            self._run(
                (*link_wasm.PROGRAM, *objects, "libminbuild.a", "libhelpers.a", "-o", "program"), workspace
            )
            return workspace.read("program")
        if not target.traits.hosted:
            # Where things are in memory, the sources know.
            script = next(iter(name for name in sources if name.endswith(".ld")), "")
            self._run(
                ("zig", "ld.lld", "--gc-sections", "-T", script, *objects, "libminbuild.a", "-o", "program"),
                workspace,
            )
            return workspace.read("program")
        workspace.report_progress(
            f"linking a program for {name} (the first one for a target builds its C library)"
        )
        static = ("-static",) if "musl" in name else ()
        dead = "-Wl,-dead_strip" if target.traits.os == "macos" else "-Wl,--gc-sections"
        link = (
            *driver(target, "cc", name),
            *static,
            "-Oz",
            "-s",
            dead,
            *objects,
            "libminbuild.a",
            "-o",
            "program",
        )
        if target.traits.is_elf and not static:
            # Few programs need the compiler's helpers, which take longer to build than all the rest. musl does.
            with suppress(ToolchainFailed):
                self._run((*link, "-rtlib=none"), workspace)
                return workspace.read("program")
        self._run(link, workspace)
        return workspace.read("program")

    def compile(self, sources: Sources, target: Target, workspace: BuildFolder) -> bytes:
        """As `Toolchain.compile`: the object of the one source among `sources` for `target`, made in `workspace`."""
        call = compile_command(target, "c++", BuildOptions())
        (made,) = compile_objects(sources, lambda unit: call, self, workspace, self._program)
        return workspace.read(made)

    def links_without_libc(self, target: Target) -> bool:
        return target.traits.os == "windows" or (
            target.traits.os == "linux"
            and target.traits.arch in _NO_LIBC
            and "musl" in _program_target(target)
        )

    def _link_without_libc(self, objects: tuple[str, ...], target: Target, workspace: BuildFolder) -> bytes:
        """The program, with the two functions that compilers make calls of, and with the compiler's helpers where any
        are missing."""
        if target.traits.os == "windows":
            compile_c = driver(target, "cc", _program_target(target))
            return link_pe.link_program(objects, compile_c, workspace, lambda c: self._run(c, workspace))
        workspace.write({"memops.c": builtin_memops.source()})
        memops = (*compile_command(target, "cc", BuildOptions(), _program_target(target)), "-c", "memops.c")
        self._run((*memops, "-o", "memops.o"), workspace)
        link = ("zig", "ld.lld", "-static", "--gc-sections", "-s", *objects, "memops.o", "libminbuild.a")
        with suppress(ToolchainFailed):
            self._run((*link, "-o", "program"), workspace)
            return workspace.read("program")
        workspace.write({"libhelpers.a": self._helpers(target, workspace)})
        self._run((*link, "libhelpers.a", "-o", "program"), workspace)
        return workspace.read("program")

    def _program(self, word: str) -> str:
        return str(self.home / ("zig.exe" if os.name == "nt" else "zig"))

    def _run(self, command: tuple[str, ...], workspace: BuildFolder) -> str:
        return workspace.run("link", command, _LINK_CURE, self._program(command[0]))[1]

    def _link(
        self, objects: tuple[str, ...], target: Target, build_options: BuildOptions, workspace: BuildFolder
    ) -> Linked:
        def run(command: tuple[str, ...]) -> str:
            return self._run(command, workspace)

        def helpers(names: tuple[str, ...]) -> bytes:
            return self._extract_helpers(names, target, workspace)

        compile_c = driver(target, "cc")
        if target.traits.format == "wasm":
            return link_wasm.link(objects, target, self._helpers(target, workspace), workspace, run)
        if target.traits.format == "image":
            return link_image.link(objects, helpers, workspace, run)
        if target.traits.format == "pe":
            return link_pe.link(objects, target, compile_c, workspace, run)
        if not target.traits.is_elf:
            return self._link_macos(objects, target, workspace)
        options = lto_options(target, build_options)
        compile_c = compile_command(target, "cc", build_options)
        return link_elf.link(
            objects,
            target,
            build_options=build_options,
            options=options,
            helpers=helpers,
            compile_c=compile_c,
            workspace=workspace,
            run=run,
            interface=self.interface,
        )

    def _extract_helpers(self, names: tuple[str, ...], target: Target, workspace: BuildFolder) -> bytes:
        """An object of just these functions: the whole library has a slow memcpy that would replace libc's."""
        workspace.write({"libhelpers.a": self._helpers(target, workspace)})
        undefined = tuple(f"--undefined={name}" for name in names)
        self._run(
            ("zig", "ld.lld", "-r", "--gc-sections", *undefined, "libhelpers.a", "-o", "extracted"), workspace
        )
        return workspace.read("extracted")

    def _helpers(self, target: Target, workspace: BuildFolder) -> bytes:
        """The compiler's helper library of a target: built once, then from the cache."""
        source = str(self.home / "lib" / "compiler_rt.zig")
        pic = ("-fPIC",) if target.traits.hosted else ()
        options = ("-O", "ReleaseSmall", *pic, "-ffunction-sections", "--name", "helpers")
        machine = ("-target", target.traits.zig, "-mcpu", target.cpu or target.traits.cpu)
        key = digest(("helpers", self.describe(), *machine, *options))
        with workspace.cache.alone(key):
            found = workspace.cache.get(key)
            if found is None:
                workspace.report_progress(f"building the compiler's helper functions for {target}")
                self._run(("zig", "build-lib", source, *machine, *options), workspace)
                found = workspace.read("libhelpers.a")
                workspace.cache.put(key, found)
        return found

    def _link_macos(self, objects: tuple[str, ...], target: Target, workspace: BuildFolder) -> Linked:
        def linked(*options: str) -> Linked:
            link = (*driver(target, "c++"), *flags.link_macos(target), *options, *objects, "-o")
            self._run((*link, "unstripped"), workspace)
            self._run((*link, "stripped", "-s"), workspace)
            shared, unstripped = (workspace.read(name) for name in ("stripped", "unstripped"))
            return Linked(shared, unstripped, "", (*link, target.traits.shared_name, "-s"))

        with suppress(ToolchainFailed):
            return linked(*_WITHOUT_HELPERS)
        return linked()


def _link(target: Target, build_options: BuildOptions, interface: Interface | None) -> tuple[str, ...]:
    if target.traits.format == "wasm":
        return link_wasm.recipe(target)
    if target.traits.format == "image":
        return link_image.recipe(target)
    if target.traits.format == "pe":
        return link_pe.recipe(target)
    if not target.traits.is_elf:
        return (*flags.link_macos(target), *_WITHOUT_HELPERS)
    return link_elf.recipe(target, build_options, interface)


def _program_target(target: Target) -> str:
    traits = target.traits
    if traits.os in ("macos", "windows"):
        return traits.zig
    host = host_target()
    return traits.zig if host.name == target.name and "gnu" in target.name else traits.static


@cache
def find_zig() -> Zig:
    """The installed package. Raises ToolchainFailed with the cure when there is none."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or not spec.submodule_search_locations:
        raise ToolchainFailed(
            "The default compiler, the Python package 'ziglang', is not installed. Run "
            "`python -m pip install ziglang`, or name another compiler with --cxx g++ or --cxx clang++."
        )
    try:
        version = importlib.metadata.version("ziglang")
    except importlib.metadata.PackageNotFoundError:
        version = "of unknown version"
    return Zig(Path(spec.submodule_search_locations[0]), version)
