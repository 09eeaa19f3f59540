"""Compilers, linkers and emulators: a folder of sources in, libraries and programs out.

Processes start here and nowhere else, in `process` and `run_binaries`. A new target is an entry in `targets`; its
linker options stand in the `link_*` module of its format.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from minbuild.errors import ToolchainFailed
from minbuild.options.build_options import BuildOptions, build_option
from minbuild.toolchain.cache import Cache, digest, user_cache
from minbuild.toolchain.cmake import find_cmake
from minbuild.toolchain.compile_library import (
    BuildOutput,
    Interface,
    Sources,
    Toolchain,
    build_folder,
    checked,
    processors,
)
from minbuild.toolchain.driver import find_driver
from minbuild.toolchain.link_check import ALLOWED_IMPORTS, check_link
from minbuild.toolchain.process import DISK_FULL, Processes
from minbuild.toolchain.run_binaries import ProgramResult, find_emulator, run_program, run_python, why_not_run
from minbuild.toolchain.targets import (
    Target,
    host_target,
    known_targets,
    parse_target,
    proven_targets,
    unproven_targets,
)
from minbuild.toolchain.zig import find_zig

__all__ = [
    "ALLOWED_IMPORTS",
    "BuildOutput",
    "BuildJob",
    "Builds",
    "Interface",
    "ProgramResult",
    "Target",
    "Toolchain",
    "build_all",
    "build_library",
    "build_program",
    "compile_source",
    "check_link",
    "find_emulator",
    "find_toolchain",
    "host_target",
    "known_targets",
    "proven_targets",
    "unproven_targets",
    "not_applied",
    "parse_target",
    "run_program",
    "run_python",
    "why_not_run",
]


def find_toolchain(
    cxx: str | None = None,
    cmake_toolchain: Path | None = None,
    build_options: BuildOptions = BuildOptions(),  # noqa: B008 (frozen)
) -> Toolchain:
    """The compiler the user asked for: a C++ driver by name or path, a CMake toolchain file, or by default ziglang;
    it builds as `build_options` say.

    `cxx` and `cmake_toolchain` are what the user gave. Raises ToolchainFailed when it is not there, BadInput when
    both are given."""
    if cmake_toolchain is not None:
        return find_cmake(cmake_toolchain, cxx).with_build_options(build_options)
    return (find_driver(cxx) if cxx is not None else find_zig()).with_build_options(build_options)


def not_applied(toolchain: Toolchain, target: Target) -> tuple[str, ...]:
    """The build options that a toolchain cannot carry out for a target, as `--name value`."""
    honoured = toolchain.honours(target)
    words = toolchain.build_options.as_text
    return tuple(
        f"--{build_option(name).key} {words[build_option(name).key]}"
        for name in toolchain.build_options.changed
        if name not in honoured
    )


@dataclass(frozen=True, slots=True)
class BuildJob:
    """A library to be built; without its `archive`, where only the shared one is looked at, in less time."""

    sources: Sources
    target: Target
    toolchain: Toolchain
    archive: bool = True


def build_all(
    orders: Sequence[BuildJob], *, jobs: int | None = None, progress: Callable[[str], None] | None = None
) -> list[BuildOutput]:
    """Several libraries, as `build_library` makes each, side by side: their steps share `jobs` processes. `progress`
    receives a line for each that is finished. `orders` say what to build, each with its target and toolchain. Raises
    as `build_library`."""
    jobs, done = jobs or processors(), 0

    def one(order: BuildJob) -> BuildOutput:
        nonlocal done
        given = order.sources, order.target, order.toolchain
        built = build_library(*given, jobs=jobs, children=children, archive=order.archive)
        done += 1
        if progress is not None:
            progress(f"built {done} of {len(orders)} variants")
        return built

    with Processes(jobs) as children:
        # One more, so that somebody compiles while another one links.
        return children.map(one, orders, jobs + 1)


class Builds:
    """Libraries by the jobs that make them: each is built once, and its result is kept."""

    def __init__(self) -> None:
        self._outputs: dict[str, BuildOutput] = {}

    def build(self, jobs: Sequence[BuildJob], progress: Callable[[str], None] | None = None) -> None:
        """Build the libraries of `jobs` that are missing, side by side. Raises ToolchainFailed."""
        missing = {_job_key(job): job for job in jobs if self._found(job) is None}
        self._outputs.update(zip(missing, build_all(tuple(missing.values()), progress=progress), strict=True))

    def __getitem__(self, job: BuildJob) -> BuildOutput:
        """The library of a job, which is built now if `build` was not given it. Raises ToolchainFailed."""
        self.build((job,))
        found = self._found(job)
        assert found is not None
        return found

    def _found(self, job: BuildJob) -> BuildOutput | None:
        """The library of a job, the one with an archive where there is one."""
        whole = self._outputs.get(_job_key(replace(job, archive=True)))
        return whole or self._outputs.get(_job_key(job))


def _job_key(job: BuildJob) -> str:
    kind = _WHOLE if job.archive else _SHARED
    return _key(kind, job.toolchain, job.target, checked(job.sources))


def build_library(
    sources: Sources,
    target: Target,
    toolchain: Toolchain,
    *,
    jobs: int | None = None,
    progress: Callable[[str], None] | None = None,
    children: Processes | None = None,
    archive: bool = True,
) -> BuildOutput:
    """Build a package folder, given as relative path -> contents; the same bytes from any folder on any day.

    Compiles every `.cc`, with `include/` and `src/` as include folders. Finished objects and libraries come from the
    cache. `jobs` defaults to the CPUs we may use; `progress` receives one line per step; `children` are processes of
    a larger undertaking. Without `archive`, nothing is compiled that only that needs. Raises ToolchainFailed, or
    BadInput for paths outside the package. `sources` are those contents, `target` is the machine, `toolchain` compiles
    and links."""
    sources = checked(sources)
    target.traits  # noqa: B018  an unknown target is the user's mistake: say so before anything runs
    cache = user_cache()
    keys = [_key(kind, toolchain, target, sources) for kind in ((_WHOLE,) if archive else (_WHOLE, _SHARED))]
    key = keys[-1]
    with _full_disk(cache), children.alone(key) if children else nullcontext():
        found = next((entry for each in keys if (entry := cache.get(each)) is not None), None)
        if found is not None:
            return BuildOutput.from_bytes(found)
        with build_folder(cache, jobs or processors(), progress, children, archive) as workspace:
            built = toolchain.build(sources, target, workspace)
        cache.put(key, built.to_bytes())
    return built


def build_program(
    sources: Sources,
    archive: bytes,
    target: Target,
    toolchain: Toolchain,
    *,
    libc: bool = True,
    jobs: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> bytes:
    """Link C (`.c`) and C++ (`.cc`) sources with a static library into a program; headers stand beside them.

    With the default toolchain it is static (musl) for every Linux target but this machine's own, so an emulator needs
    no sysroot; the first one for a target takes one to two minutes, as musl is built for it. Without `libc`, for
    targets of `links_without_libc`, the sources bring what they need of a C library. Raises ToolchainFailed. `sources`
    are contents by path, `archive` is the bytes of the library for `target`; `toolchain`, `jobs` and `progress` as of
    `build_library`."""
    sources = checked(sources)
    cache = user_cache()
    key = _key("program" if libc else "program without libc", toolchain, target, {**sources, "": archive})
    with _full_disk(cache):
        found = cache.get(key)
        if found is not None:
            return found
        with build_folder(cache, jobs or processors(), progress) as workspace:
            program = toolchain.program(sources, archive, target, workspace, libc=libc)
        cache.put(key, program)
    return program


def compile_source(sources: Sources, target: Target, toolchain: Toolchain) -> bytes:
    """The object of the one C++ source among `sources`, contents by path, which has machine code and data for `target`
    and not what a link optimises; or an archive around it. `toolchain` compiles. Raises ToolchainFailed."""
    sources = checked(sources)
    cache = user_cache()
    key = _key("object", toolchain, target, sources)
    with _full_disk(cache):
        found = cache.get(key)
        if found is not None:
            return found
        with build_folder(cache, 1, None) as workspace:
            made = toolchain.compile(sources, target, workspace)
        cache.put(key, made)
    return made


# Raised whenever the same key would stand for other bytes: 2 since unstripped modules have another name inside.
_ENTRIES = "2"
_WHOLE, _SHARED = "library", "shared library"


def _key(kind: str, toolchain: Toolchain, target: Target, sources: Sources) -> str:
    files = [part for item in sources.items() for part in item]
    return digest(
        (_ENTRIES, kind, toolchain.describe(), str(target), *toolchain.recipe(target), *files, sys.platform)
    )


@contextmanager
def _full_disk(cache: Cache) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)):
            cure = DISK_FULL
        elif error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            cure = "It cannot be written: set MINBUILD_CACHE to a folder that can."
        else:
            cure = "Set MINBUILD_CACHE and TMPDIR to folders that can be written."
        raise ToolchainFailed(f"{error.filename or cache.root}: {error.strerror or error}. {cure}") from error
