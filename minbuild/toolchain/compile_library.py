"""Sources become objects, in parallel and through the cache; what a toolchain is and what it hands back."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

from minbuild.errors import BadInput
from minbuild.options.build_options import BuildOptions
from minbuild.toolchain import flags
from minbuild.toolchain.cache import Cache, digest
from minbuild.toolchain.include_scan import include_closure
from minbuild.toolchain.process import Processes, clean_environment, failure
from minbuild.toolchain.targets import Target

Sources = Mapping[str, bytes]  # relative path with slashes -> contents

PROGRAM_SOURCES = (".c", ".cc", ".cpp")
INCLUDES = ("-Iinclude", "-Isrc")


@dataclass(frozen=True, slots=True)
class BuildOutput:
    """A library in its three forms, and where it came from.

    `shared` is the file to ship; `unstripped` is the same link with symbols (and, from the default toolchain, with the
    relocations that show what refers to what): equal in everything the loader reads. `archive` may be empty where it
    was not asked for. `commands` name no folder of this machine. `map` is the linker's own account of every input
    section, "" where the linker gives none.
    """

    shared: bytes
    unstripped: bytes
    archive: bytes
    map: str
    commands: tuple[str, ...]
    toolchain: str
    target: str

    def to_bytes(self) -> bytes:
        """One cache entry: a line of JSON, then the blobs."""
        blobs = (self.shared, self.unstripped, self.archive, self.map.encode())
        head = {
            "sizes": [len(blob) for blob in blobs],
            "commands": self.commands,
            "toolchain": self.toolchain,
            "target": self.target,
        }
        return b"\n".join((json.dumps(head).encode(), b"".join(blobs)))

    @staticmethod
    def from_bytes(data: bytes) -> BuildOutput:
        """The inverse of `to_bytes`."""
        line, _, rest = data.partition(b"\n")
        head = json.loads(line)
        blobs = []
        for size in head["sizes"]:
            blobs.append(rest[:size])
            rest = rest[size:]
        shared, unstripped, archive, text = blobs
        return BuildOutput(
            shared,
            unstripped=unstripped,
            archive=archive,
            map=text.decode(),
            commands=tuple(head["commands"]),
            toolchain=head["toolchain"],
            target=head["target"],
        )


@dataclass(frozen=True, slots=True)
class Interface:
    """The interface of a library other than the trainer's own: its name for loaders, and the symbols it exports."""

    soname: str
    exports: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Linked:
    """The linker's output; fields as in BuildOutput. `helpers` is an object with the compiler's helpers that an archive
    for machines without an operating system has to bring along, b"" for none; `optimise` the call that made a single
    object of all before the link, () without one.
    """

    shared: bytes
    unstripped: bytes
    map: str
    command: tuple[str, ...]
    helpers: bytes = b""
    optimise: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BuildFolder:
    """The state that every step of one build shares: a neutral folder, the children, the cache, how many jobs, who
    listens.
    """

    folder: Path
    processes: Processes
    cache: Cache
    jobs: int
    report_progress: Callable[[str], None]
    environment: Mapping[str, str] = field(default_factory=dict)
    archive: bool = True  # False: the shared library is enough

    def run(self, where: str, command: tuple[str, ...], cure: str, program: str = "") -> tuple[bytes, str]:
        """Run in the neutral folder; standard output and error. `program` is what to start for `command[0]`.

        `command` are the words; `where` and `cure` begin and end the message of a failure. Raises ToolchainFailed
        when it does not exit with 0 or cannot be started."""
        result = self.processes.run((program or command[0], *command[1:]), self.folder, self.environment)
        if result.code:
            raise failure(where, command, result, cure)
        return result.out, result.err

    def write(self, files: Sources) -> None:
        """Put files into the neutral folder."""
        for name, data in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()


class Toolchain(Protocol):
    """Something that compiles and links for a target."""

    def describe(self) -> str:
        """Name and version, for reports and cache keys."""
        ...

    def recipe(self, target: Target) -> tuple[str, ...]:
        """Everything besides sources and `describe` that decides the bytes: flags, linker script, ..."""
        ...

    @property
    def build_options(self) -> BuildOptions:
        """The user's build options."""
        ...

    def with_build_options(self, build_options: BuildOptions) -> Toolchain:
        """The same, to build by other build options."""
        ...

    def honours(self, target: Target) -> frozenset[str]:
        """The build options that can be carried out for a target; others stay as they are by default."""
        ...

    def build(self, sources: Sources, target: Target, workspace: BuildFolder) -> BuildOutput:
        """Compile and link a library. `sources` are contents by path, `target` is the machine, `workspace` a folder
        for objects. Raises ToolchainFailed."""
        ...

    def program(
        self, sources: Sources, archive: bytes, target: Target, workspace: BuildFolder, *, libc: bool = True
    ) -> bytes:
        """Compile and link a program against the static library. `sources` are contents by path, `archive` the
        library's bytes, `target` is the machine, `workspace` a folder for objects. Without `libc` the sources bring
        start-up code and all that they need of a C library. Raises ToolchainFailed."""
        ...

    def compile(self, sources: Sources, target: Target, workspace: BuildFolder) -> bytes:
        """Compile a source as for a library, and link nothing. `sources` are contents by path, one of them in C++ and
        all others headers, `target` is the machine, `workspace` a folder for objects. The bytes are those of the
        object, without link-time optimisation, or of an archive around it. Raises ToolchainFailed."""
        ...

    def links_without_libc(self, target: Target) -> bool:
        """True if programs for `target` can be linked without a C library, which would have to be built first."""
        ...


@contextmanager
def build_folder(
    cache: Cache,
    jobs: int,
    report_progress: Callable[[str], None] | None,
    children: Processes | None = None,
    archive: bool = True,
) -> Iterator[BuildFolder]:
    """A fresh neutral folder, gone when the block is left in whatever way with everything running in it, unless that
    is among `children` of somebody else. `cache` keeps objects, `jobs` processes may run at a time, `report_progress`
    receives a line per step, `archive` is False where a shared library is enough. Raises OSError when it or the cache
    cannot be written."""
    cache.compiler.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="minbuild-", ignore_cleanup_errors=True) as name,
        nullcontext(children) if children else Processes(jobs) as running,
    ):
        environment = clean_environment(
            {
                "ZIG_GLOBAL_CACHE_DIR": str(cache.compiler),
                # Per build: our own cache holds the objects, zig's copy of them would only grow.
                "ZIG_LOCAL_CACHE_DIR": str(Path(name) / ".zig"),
            }
        )
        folder = Path(name) / "work"
        folder.mkdir()
        yield BuildFolder(
            folder,
            processes=running,
            cache=cache,
            jobs=jobs,
            report_progress=report_progress or (lambda text: None),
            environment=environment,
            archive=archive,
        )


def processors() -> int:
    """CPUs this process may use, which in a container are fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def checked(sources: Sources) -> Sources:
    """The sources in a fixed order. Raises BadInput for a path that would leave the folder, or without any
    `.cc`.
    """
    for name in sources:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or not path.parts:
            raise BadInput(
                f"source '{name}': not a path inside the package. Use relative paths with slashes."
            )
    if not any(name.endswith(PROGRAM_SOURCES) for name in sources):
        raise BadInput(
            "sources: nothing to compile, there is no .cc file. Was the package written completely?"
        )
    return {name: sources[name] for name in sorted(sources)}


def object_names(units: list[str], suffix: str = "") -> dict[str, str]:
    """Source -> object: the bare name where it is unique (archives have no folders), else all of it."""
    stems = [PurePosixPath(unit).stem for unit in units]
    return {
        unit: (stem if stems.count(stem) == 1 else str(PurePosixPath(unit).with_suffix("")).replace("/", "."))
        + f"{suffix}.o"
        for unit, stem in zip(units, stems, strict=True)
    }


def compile_objects(
    sources: Sources,
    command: Callable[[str], tuple[str, ...]],
    toolchain: Toolchain,
    workspace: BuildFolder,
    program: Callable[[str], str],
    extensions: tuple[str, ...] = (".cc",),
    suffix: str = "",
) -> tuple[str, ...]:
    """Compile every unit; object names in source order.

    `command` gives the compiler call of a source, without `-o`; `program` the file to start for its first word;
    `suffix` distinguishes objects of one source. An object is found in the cache by all that its compiler sees, the
    call, and the toolchain's name. `sources` are contents by path: those with `extensions` are compiled in
    `workspace`; `toolchain` is the compiler's."""
    workspace.write(sources)
    units = [name for name in sources if name.endswith(extensions)]
    folders = tuple(option.removeprefix("-I") for option in INCLUDES)
    objects = object_names(units, suffix)
    done = 0

    def one(unit: str) -> None:
        nonlocal done
        call = (*command(unit), "-c", unit, "-o", objects[unit])
        key = digest(("object", toolchain.describe(), *call, *include_closure(unit, sources, folders)))
        with workspace.processes.alone(key), workspace.cache.alone(key):
            found = workspace.cache.get(key)
            if found is None:
                cure = "Correct the source, or report it if minbuild generated it."
                workspace.run(unit, call, cure, program(call[0]))
                workspace.cache.put(key, workspace.read(objects[unit]))
        if found is not None:
            workspace.write({objects[unit]: found})
        done += 1
        workspace.report_progress(f"{'compiled' if found is None else 'reused'} {unit} ({done}/{len(units)})")

    workspace.processes.map(one, units, workspace.jobs)
    return tuple(objects[unit] for unit in units)


@dataclass(frozen=True, slots=True)
class Objects:
    """The compiled sources of a library: `static` for an archive, which is for any linker and shows where symbols are
    from, `linked` for this toolchain's own; `commands` are the calls, for size before those for speed."""

    static: tuple[str, ...]
    linked: tuple[str, ...]
    commands: tuple[str, ...]


def library_objects(
    sources: Sources,
    calls: Mapping[bool, tuple[str, ...]],
    build_options: BuildOptions,
    lto: bool,
    toolchain: Toolchain,
    workspace: BuildFolder,
    program: Callable[[str], str],
) -> Objects:
    """Compile a library as `build_options` say, and with `lto` once more for this link, or for it alone without an
    archive. `calls` are those of the
    compiler, for size and (True) for speed. `sources` are contents by path; `toolchain`, `workspace` and `program` as
    of `compile_objects`. Raises as `compile_objects`."""
    speed = flags.speed_units(build_options, sources)
    units = [name for name in sources if name.endswith(".cc")]

    def compiled(suffix: str = "", *more: str) -> tuple[str, ...]:
        made = compile_objects(
            sources, lambda unit: (*calls[unit in speed], *more), toolchain, workspace, program, suffix=suffix
        )
        return flags.in_link_order(dict(zip(units, made, strict=True)), speed)

    static = compiled() if workspace.archive or not lto else ()
    linked = compiled(".lto", flags.LTO) if lto else static
    used = sorted({unit in speed for unit in units})
    commands = tuple(" ".join((*calls[s], "-c", "SOURCE", "-o", "OBJECT")) for s in used)
    return Objects(static, linked, commands)
