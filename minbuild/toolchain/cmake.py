"""A CMake toolchain file: build the package's own CMakeLists.txt with it, as its users will."""

from __future__ import annotations

import hashlib
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from minbuild.errors import BadInput, ToolchainFailed
from minbuild.options.build_options import OFF, PLAN, SOURCES, BuildOptions, table
from minbuild.toolchain.compile_library import BuildFolder, BuildOutput, Sources
from minbuild.toolchain.process import Processes, clean_environment
from minbuild.toolchain.targets import Target, host_target

_CURE = (
    "Check the toolchain file with a small CMake project of your own, or use --cxx or the default toolchain."
)
_SHARED = ("libminbuild.so", "libminbuild.dylib", "minbuild.dll")
_STATIC = ("libminbuild_static.a", "libminbuild.a", "minbuild_static.lib")
_PROGRAM = """cmake_minimum_required(VERSION 3.13)
project(program C CXX)
set(CMAKE_CXX_STANDARD 17)
add_executable(program {sources})
target_include_directories(program PRIVATE include src)
target_link_libraries(program PRIVATE ${{CMAKE_SOURCE_DIR}}/libminbuild.a {static})
"""
# Without link-time optimisation, whatever the toolchain file has: the object holds machine code and data.
_OBJECT = """cmake_minimum_required(VERSION 3.13)
project(object CXX)
set(CMAKE_CXX_STANDARD 17)
add_library(object STATIC {source})
target_include_directories(object PRIVATE include src)
target_compile_options(object PRIVATE -fno-lto)
"""


@dataclass(frozen=True, slots=True)
class CMake:
    """A toolchain file, with the digest of its text and the version of cmake."""

    file: Path
    digest: str
    path: str
    version: str
    ninja: bool
    build_options: BuildOptions = BuildOptions()

    def describe(self) -> str:
        return f"{self.version} with {self.file.name} ({self.digest[:12]})"

    def recipe(self, target: Target) -> tuple[str, ...]:
        return (
            str(self.file),
            *self._configure(target, "package", "build"),
            _PROGRAM,
            _OBJECT,
            self.build_options.strip,
        )

    def with_build_options(self, build_options: BuildOptions) -> CMake:
        return replace(self, build_options=build_options)

    def honours(self, target: Target) -> frozenset[str]:
        """The options that the package's CMakeLists.txt carries out, and stripping; the linker is the toolchain
        file's."""
        found = {option.name for option in table() if option.stage in (PLAN, SOURCES)}
        found |= {"optimize", "speed_for", "size_for", "unwind_tables", "strip"}
        if target.traits.is_elf:
            found |= {"visibility", "gc_sections", "separate_code", "max_page_size"}
        return frozenset(found)

    def build(self, sources: Sources, target: Target, workspace: BuildFolder) -> BuildOutput:
        """As `Toolchain.build`: `sources` by path become a library for `target` in `workspace`, by the package's
        CMakeLists.txt."""
        if "CMakeLists.txt" not in sources:
            raise BadInput("--cmake-toolchain: the package has no CMakeLists.txt. Was it written completely?")
        workspace.write({f"package/{name}": data for name, data in sources.items()})
        # The package strips by default; here the symbols are needed first.
        configure = self._configure(target, "package", "build", "-DMINBUILD_STRIP=OFF")
        build = (
            "cmake",
            "--build",
            "build",
            "--target",
            "minbuild",
            "minbuild_static",
            "-j",
            str(workspace.jobs),
        )
        for command in (configure, build):
            workspace.report_progress(" ".join(command[:3]))
            workspace.run("cmake", command, _CURE, self.path)
        unstripped = _find(workspace.folder / "build", _SHARED)
        return BuildOutput(
            shared=unstripped.read_bytes()
            if self.build_options.strip == OFF
            else self._strip(unstripped, workspace),
            unstripped=unstripped.read_bytes(),
            archive=_find(workspace.folder / "build", _STATIC).read_bytes(),
            map="",
            commands=tuple(
                " ".join(command).replace(str(self.file), self.file.name) for command in (configure, build)
            ),
            toolchain=self.describe(),
            target=str(target),
        )

    def program(
        self, sources: Sources, archive: bytes, target: Target, workspace: BuildFolder, *, libc: bool = True
    ) -> bytes:
        """A dynamic program where this machine runs it, else a static one: emulators have no other C library.
        `sources` by path are linked with `archive` for `target` in `workspace`, with the C library of the
        toolchain file whatever `libc` is."""
        static = "-static" if target.traits.is_elf and host_target().name != target.name else ""
        units = " ".join(name for name in sources if name.endswith((".c", ".cc", ".cpp")))
        listing = {
            "CMakeLists.txt": _PROGRAM.format(sources=units, static=static).encode(),
            "libminbuild.a": archive,
        }
        workspace.write({f"program/{name}": data for name, data in {**sources, **listing}.items()})
        workspace.run("cmake", self._configure(target, "program", "build-program"), _CURE, self.path)
        workspace.run("cmake", ("cmake", "--build", "build-program"), _CURE, self.path)
        return _find(workspace.folder / "build-program", ("program", "program.exe")).read_bytes()

    def compile(self, sources: Sources, target: Target, workspace: BuildFolder) -> bytes:
        """As `Toolchain.compile`: a static library of the one source among `sources` for `target`, made in
        `workspace`."""
        (source,) = (name for name in sources if name.endswith(".cc"))
        listing = {"CMakeLists.txt": _OBJECT.format(source=source).encode()}
        workspace.write({f"object/{name}": data for name, data in {**sources, **listing}.items()})
        workspace.run("cmake", self._configure(target, "object", "build-object"), _CURE, self.path)
        workspace.run("cmake", ("cmake", "--build", "build-object"), _CURE, self.path)
        return _find(workspace.folder / "build-object", ("libobject.a", "object.lib")).read_bytes()

    def links_without_libc(self, target: Target) -> bool:
        return False

    def _configure(self, target: Target, source: str, build: str, *more: str) -> tuple[str, ...]:
        # The NDK's toolchain file serves every architecture and asks which, and since which version of Android.
        abi = target.traits.android
        android = (f"-DANDROID_ABI={abi}", "-DANDROID_PLATFORM=android-23") if abi else ()
        generator = ("-G", "Ninja") if self.ninja else ()
        file = f"-DCMAKE_TOOLCHAIN_FILE={self.file}"
        kind = "-DCMAKE_BUILD_TYPE=MinSizeRel"
        return ("cmake", "-S", source, "-B", build, *generator, file, *android, kind, *more)

    def _strip(self, unstripped: Path, workspace: BuildFolder) -> bytes:
        """The library without symbols, by the `strip` cmake found beside the compiler."""
        cache = (workspace.folder / "build" / "CMakeCache.txt").read_text()
        found = re.search(r"^CMAKE_STRIP:\w+=(.+)$", cache, re.MULTILINE)
        if found is None or found.group(1).endswith("NOTFOUND"):
            raise ToolchainFailed(
                f"{self.file.name}: cmake finds no `strip` for it. Set CMAKE_STRIP in the toolchain file."
            )
        stripped = workspace.folder / "stripped"
        all_or_local = "-x" if unstripped.suffix == ".dylib" else "--strip-all"
        shutil.copyfile(unstripped, stripped)
        workspace.run("strip", ("strip", all_or_local, "stripped"), _CURE, found.group(1))
        return stripped.read_bytes()


def _find(folder: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        for path in sorted(folder.rglob(name)):
            if path.is_file() and "CMakeFiles" not in path.parts:
                return path
    raise ToolchainFailed(f"cmake: built none of {', '.join(names)}. {_CURE}")


def find_cmake(file: Path, cxx: str | None = None) -> CMake:
    """The toolchain of a file. Raises BadInput without the file or with a compiler named twice,
    ToolchainFailed without cmake."""
    if cxx is not None:
        raise BadInput(f"--cxx {cxx} and --cmake-toolchain {file}: both name a compiler. Give one of them.")
    if not file.is_file():
        raise BadInput(f"--cmake-toolchain {file}: no such file. Give the path of a CMake toolchain file.")
    path = shutil.which("cmake")
    if path is None:
        raise ToolchainFailed(
            "--cmake-toolchain: `cmake` is not installed. Run `python -m pip install cmake`."
        )
    with Processes() as processes:
        output = processes.run(
            (path, "--version"), Path.cwd(), clean_environment({}), timeout=60
        ).out.decode()
    version = output.splitlines()[0].replace(" version", "") if output else "cmake"
    text = hashlib.sha256(file.read_bytes()).hexdigest()
    return CMake(file.resolve(), text, path, version, shutil.which("ninja") is not None)
