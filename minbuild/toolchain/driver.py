"""Any gcc or clang: compile and link through the C++ driver the user names."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from minbuild.errors import BadInput, ToolchainFailed
from minbuild.options.build_options import AUTO, OFF, ON, PLAN, SOURCES, BuildOptions, table
from minbuild.toolchain import flags
from minbuild.toolchain.compile_library import (
    INCLUDES,
    PROGRAM_SOURCES,
    BuildFolder,
    BuildOutput,
    Sources,
    compile_objects,
    library_objects,
)
from minbuild.toolchain.process import Processes, clean_environment
from minbuild.toolchain.targets import Target, host_target

_LINK_CURE = "Leave --cxx away to link with the default toolchain."
_ARCHES = {
    "i686": "x86",
    "arm64": "aarch64",
    "armv7": "arm",
    "armv7l": "arm",
    "thumbv7": "arm",
    "amd64": "x86_64",
}


@dataclass(frozen=True, slots=True)
class Driver:
    """A C++ compiler. `path` is where it is, `name` what reports call it, `machine` what it compiles for."""

    path: str
    name: str
    version: str  # first line of --version
    machine: str  # -dumpmachine
    clang: bool
    major: int
    ar: str
    build_options: BuildOptions = BuildOptions()

    def describe(self) -> str:
        return f"{self.name}: {self.version} ({self.machine})"

    def recipe(self, target: Target) -> tuple[str, ...]:
        build_options = self._build_options(target)
        kernels = (
            "for speed",
            build_options.optimize,
            *build_options.speed_for,
            "not",
            *build_options.size_for,
        )
        calls = (flag for speed in (False, True) for flag in self._compile(target, build_options, speed))
        return (
            *calls,
            *kernels,
            build_options.strip,
            *self._link(target),
            flags.exports(build_options).decode(),
        )

    def with_build_options(self, build_options: BuildOptions) -> Driver:
        return replace(self, build_options=build_options)

    def honours(self, target: Target) -> frozenset[str]:
        found = {option.name for option in table() if option.stage in (PLAN, SOURCES)}
        found |= {"optimize", "speed_for", "size_for", "strip"}
        # Not every clang has a linker that can.
        found |= {"lto"} if self.build_options.lto != AUTO else set()
        if target.traits.is_elf:
            found |= {"unwind_tables", "visibility", "gc_sections", "separate_code", "max_page_size"}
        return frozenset(found)

    def _build_options(self, target: Target) -> BuildOptions:
        return self.build_options.only(self.honours(target))

    def build(self, sources: Sources, target: Target, workspace: BuildFolder) -> BuildOutput:
        """As `Toolchain.build`: `sources` by path become a library for `target` in `workspace`, by the user's
        compiler."""
        build_options = self._build_options(target)
        calls = {s: self._compile(target, build_options, s) for s in (False, True)}
        objects = library_objects(
            sources,
            calls,
            build_options=build_options,
            lto=build_options.lto == ON,
            toolchain=self,
            workspace=workspace,
            program=self._program,
        )
        again = (flags.LTO, flags.SPEED if build_options.optimize == "speed" else self._size())
        workspace.report_progress("linking")
        workspace.write({"exports.map": flags.exports(build_options), "stub.c": b""})
        stub: tuple[str, ...] = ()
        if target.traits.is_elf:
            # The same stand-in for libc as the default toolchain's: a dependency by name, without symbol
            # versions.
            stub = ("libc-stub.so",)
            named = (f"-Wl,-soname,{target.traits.libc}", "-o", *stub)
            self._run(
                (*self._base(target), "-fPIC", "-shared", "-nostdlib", "-x", "c", "stub.c", *named), workspace
            )
        helpers = ("-lgcc",) if target.traits.is_elf and not self.clang else ()
        level = again if build_options.lto == ON else ()
        link = (*self._link(target), *level, *objects.linked, *stub, *helpers, "-o")
        strip = () if build_options.strip == OFF else ("-s",)
        self._run((*link, "unstripped"), workspace)
        self._run((*link, "stripped", *strip), workspace)
        archive = ("ar", "rcs" if target.traits.os == "macos" else "rcsD", "libminbuild.a", *objects.static)
        if workspace.archive:
            self._run(archive, workspace)
        line = (*link, target.traits.shared_name, *strip)
        return BuildOutput(
            shared=workspace.read("stripped"),
            unstripped=workspace.read("unstripped"),
            archive=workspace.read("libminbuild.a") if workspace.archive else b"",
            map="",
            commands=(
                *objects.commands,
                " ".join(line),
                *((" ".join(archive),) if workspace.archive else ()),
            ),
            toolchain=self.describe(),
            target=str(target),
        )

    def program(
        self, sources: Sources, archive: bytes, target: Target, workspace: BuildFolder, *, libc: bool = True
    ) -> bytes:
        """A dynamic program where this machine runs it, else a static one for the emulator. `sources` by path are
        linked with `archive` for `target` in `workspace`, always with the compiler's C library whatever `libc` is."""
        call = self._compile(target, BuildOptions())
        c_call = (*self._base(target), self._size(), *target.traits.flags, *INCLUDES, "-std=c11", "-x", "c")
        objects = compile_objects(
            sources,
            lambda unit: c_call if unit.endswith(".c") else call,
            toolchain=self,
            workspace=workspace,
            program=self._program,
            extensions=PROGRAM_SOURCES,
        )
        workspace.write({"libminbuild.a": archive})
        static = () if host_target().name == target.name or not target.traits.is_elf else ("-static",)
        dead = "-Wl,--gc-sections" if target.traits.is_elf else "-Wl,-dead_strip"
        base = self._base(target)
        self._run((*base, *static, "-s", dead, *objects, "libminbuild.a", "-o", "program"), workspace)
        return workspace.read("program")

    def compile(self, sources: Sources, target: Target, workspace: BuildFolder) -> bytes:
        """As `Toolchain.compile`: the object of the one source among `sources` for `target`, made in `workspace`."""
        call = self._compile(target, BuildOptions())
        (made,) = compile_objects(sources, lambda unit: call, self, workspace, self._program)
        return workspace.read(made)

    def links_without_libc(self, target: Target) -> bool:
        return False

    def _program(self, word: str) -> str:
        return self.ar if word == "ar" else self.path

    def _run(self, command: tuple[str, ...], workspace: BuildFolder) -> None:
        workspace.run("link", command, _LINK_CURE, self._program(command[0]))

    def _base(self, target: Target) -> tuple[str, ...]:
        """The driver and what chooses the machine. Raises BadInput when it cannot compile for it."""
        if self._compiles_for(target):
            return (self.name, *_cpu(target))
        if self.clang:
            return (self.name, f"--target={target.name}", *_cpu(target))
        raise BadInput(
            f"--cxx {self.name}: compiles for {self.machine}, not for {target.name}. "
            f"Name a cross compiler such as {target.name}-g++, or leave --cxx away."
        )

    def _compiles_for(self, target: Target) -> bool:
        arch = self.machine.split("-")[0]
        same_arch = _ARCHES.get(arch, arch) == target.traits.arch
        same_os = ("linux" in self.machine) == target.traits.is_elf
        return same_arch and same_os and ("musl" in self.machine) == ("musl" in target.name)

    def _size(self) -> str:
        # gcc knows -Oz since 12.
        return "-Oz" if self.clang or self.major >= 12 else "-Os"

    def _compile(self, target: Target, build_options: BuildOptions, speed: bool = False) -> tuple[str, ...]:
        return (
            *self._base(target),
            "-std=c++17",
            flags.SPEED if speed else self._size(),
            *flags.compile_flags(build_options),
            *target.traits.flags,
            *INCLUDES,
        )

    def _link(self, target: Target) -> tuple[str, ...]:
        base = self._base(target)
        if not target.traits.is_elf:
            return (*base, *flags.link_macos(target))
        script = ("--version-script=exports.map", "-soname", target.traits.shared_name)
        options = ",".join(("-Wl", *flags.link_flags(self._build_options(target), target), *script))
        return (*base, "-shared", "-nostdlib", *target.traits.flags, options)


def _cpu(target: Target) -> tuple[str, ...]:
    if not target.cpu:
        return ()
    # zig spells x86_64_v3 and cortex_a72 what others spell x86-64-v3 and cortex-a72.
    name = target.cpu.replace("x86_64", "x86-64").replace("_", "-")
    return (f"-march={name}",) if target.traits.arch in ("x86_64", "riscv64") else (f"-mcpu={name}",)


@cache
def find_driver(cxx: str) -> Driver:
    """Identify a compiler given by name or path. Raises ToolchainFailed when it does not behave like gcc or clang."""
    path = shutil.which(cxx)
    if path is None:
        raise ToolchainFailed(
            f"--cxx {cxx}: no such program. Install it or give its path, "
            "or leave --cxx away to use the default toolchain, which needs nothing installed."
        )
    path = str(Path(path).absolute())
    version, machine = _query(path, cxx, "--version"), _query(path, cxx, "-dumpmachine").strip()
    if not machine:
        raise ToolchainFailed(f"--cxx {cxx}: does not behave like gcc or clang (no output of -dumpmachine).")
    first = version.splitlines()[0].strip()
    number = re.search(r"(\d+)\.\d+", re.sub(r"\([^)]*\)", "", first))
    ar = shutil.which(_query(path, cxx, "-print-prog-name=ar").strip()) or shutil.which("ar")
    if ar is None:
        raise ToolchainFailed(f"--cxx {cxx}: finds no `ar` to make the static library. Install binutils.")
    return Driver(
        path=path,
        name=Path(cxx).name,
        version=first,
        machine=machine,
        clang="clang" in version.lower(),
        major=int(number.group(1)) if number else 0,
        ar=ar,
    )


def _query(path: str, cxx: str, question: str) -> str:
    try:
        with Processes() as processes:
            result = processes.run((path, question), Path.cwd(), clean_environment({}), timeout=60)
    except OSError as error:
        raise ToolchainFailed(
            f"--cxx {cxx}: cannot be started: {error.strerror}. Name another compiler."
        ) from error
    if result.code:
        raise ToolchainFailed(f"--cxx {cxx}: no compiler: `{question}` failed with exit code {result.code}.")
    return result.out.decode(errors="replace")
