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
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from minbuild.errors import BadInput, ToolchainFailed
from minbuild.toolchain import flags, link_image, link_pe, link_wasm
from minbuild.toolchain.cache import digest
from minbuild.toolchain.headers import shorten_hash, trim_headers
from minbuild.toolchain.library import (
    INCLUDES,
    PROGRAM_SOURCES,
    Built,
    Linked,
    Sources,
    Workshop,
    compile_objects,
)
from minbuild.toolchain.targets import Target, host_target

_UNDEFINED = re.compile(r"undefined symbol: (.+)")
# The compiler's own helpers: 64-bit division on 32-bit chips, half precision, ...
_HELPER = re.compile(r"__(?!errno)[a-z0-9_]+$")
_LINK_CURE = "Build with --cxx g++ or --cxx clang++ to see whether another linker accepts it."


@dataclass(frozen=True, slots=True)
class Zig:
    """The `ziglang` package, by the folder it is installed in."""

    home: Path
    version: str
    mechanisms: flags.Mechanisms = flags.Mechanisms()

    def describe(self) -> str:
        return f"ziglang {self.version}"

    def recipe(self, target: Target) -> tuple[str, ...]:
        if not target.traits.bundled:
            raise BadInput(
                f"--target {target}: the default toolchain has no C library for it. Install the Android NDK and give "
                "its build/cmake/android.toolchain.cmake with --cmake-toolchain."
            )
        m = self.mechanisms
        call, link = m.compile(_compile(target, "c++")), m.link(_link(target))
        return (*call, *link, m.layout.decode(), m.exports.decode(), f"{m.strip} {m.headers}")

    def build(self, sources: Sources, target: Target, shop: Workshop) -> Built:
        call = self.mechanisms.compile(_compile(target, "c++"))
        objects = compile_objects(sources, lambda unit: call, self, shop, self._program)
        shop.say("linking")
        linked = self._link(objects, target, shop)
        if linked.helpers:
            shop.write({"helpers.o": linked.helpers})
        members = (*objects, "helpers.o") if linked.helpers else objects
        archive = ("zig", "ar", "rcsD", "libminbuild.a", *members)
        self._run(archive, shop)
        return Built(
            shared=linked.shared,
            twin=linked.twin,
            archive=shop.read("libminbuild.a"),
            map=linked.map,
            commands=(
                " ".join((*call, "-c", "SOURCE", "-o", "OBJECT")),
                " ".join(linked.command),
                " ".join(archive),
            ),
            toolchain=self.describe(),
            target=str(target),
        )

    def program(self, sources: Sources, archive: bytes, target: Target, shop: Workshop) -> bytes:
        """Static with musl where the target has it, so that it runs anywhere and under qemu-user without a
        sysroot; for the machine we run on a plain dynamic program, which needs no C library to be built
        first. For a chip without an operating system the sources bring start-up code and a linker script.
        """
        name = _program_target(target)
        objects = compile_objects(
            sources,
            lambda unit: _compile(target, "cc" if unit.endswith(".c") else "c++", name),
            self,
            shop,
            self._program,
            PROGRAM_SOURCES,
        )
        shop.write({"libminbuild.a": archive})
        if not target.traits.hosted:
            # Where things are in memory, the sources know.
            script = next(iter(name for name in sources if name.endswith(".ld")), "")
            self._run(
                ("zig", "ld.lld", "--gc-sections", "-T", script, *objects, "libminbuild.a", "-o", "program"),
                shop,
            )
            return shop.read("program")
        shop.say(f"linking a program for {name} (the first one for a target builds its C library)")
        static = ("-static",) if "musl" in name else ()
        dead = "-Wl,--gc-sections" if target.traits.is_elf else "-Wl,-dead_strip"
        link = (
            *_driver(target, "cc", name),
            *static,
            "-Oz",
            "-s",
            dead,
            *objects,
            "libminbuild.a",
            "-o",
            "program",
        )
        self._run(link, shop)
        return shop.read("program")

    def _program(self, word: str) -> str:
        return str(self.home / ("zig.exe" if os.name == "nt" else "zig"))

    def _run(self, command: tuple[str, ...], shop: Workshop) -> str:
        return shop.run("link", command, _LINK_CURE, self._program(command[0]))[1]

    def _link(self, objects: tuple[str, ...], target: Target, shop: Workshop) -> Linked:
        def run(command: tuple[str, ...]) -> str:
            return self._run(command, shop)

        if target.traits.format == "wasm":
            return link_wasm.link(objects, self._helpers(target, shop), shop, run)
        if target.traits.format == "image":
            return link_image.link(
                objects, lambda names: self._extract_helpers(names, target, shop), shop, run
            )
        if target.traits.format == "pe":
            return link_pe.link(objects, _driver(target, "cc"), shop, run)
        return (self._link_elf if target.traits.is_elf else self._link_macos)(objects, target, shop)

    def _link_elf(self, objects: tuple[str, ...], target: Target, shop: Workshop) -> Linked:
        """Link `stripped` and `twin`."""
        m = self.mechanisms
        shop.write({"layout.ld": m.layout, "exports.map": m.exports})
        link = (*m.link(_link(target)), *objects)
        missing = self._link_twin(link, shop)
        helpers = tuple(name for name in missing if _HELPER.match(name))
        if helpers:
            shop.write({"helpers.o": self._extract_helpers(helpers, target, shop)})
            link = (*link, "helpers.o")
            missing = self._link_twin(link, shop)
        if missing:
            self._stub(target, shop)
            link = (*link, "libc-stub.so")
            missing = self._link_twin(link, shop)
        ours = sorted({name for name in missing if "::" in name or "(" in name})
        if ours:
            raise ToolchainFailed(
                f"link: {', '.join(ours)}: used but in none of the sources. "
                "Add the file that defines it to the package, or report it if minbuild wrote the package."
            )
        link = (*link, "-o")
        self._run((*link, "stripped", *(("--strip-all",) if m.strip else ())), shop)
        shared, twin = shop.read("stripped"), shop.read("twin")
        if m.headers:
            shared, twin = shorten_hash(shared), shorten_hash(twin)
        return Linked(
            trim_headers(shared) if m.headers else shared,
            twin,
            shop.read("twin.map").decode(errors="replace"),
            (*link, target.traits.shared_name, "--strip-all"),
        )

    def _link_twin(self, link: tuple[str, ...], shop: Workshop) -> tuple[str, ...]:
        """Link with symbols and relocations; the names no input defines."""
        report = ("-z", "defs", "--warn-unresolved-symbols", "--error-limit=0")
        said = self._run((*link, "--emit-relocs", "--Map=twin.map", *report, "-o", "twin"), shop)
        return tuple(sorted(set(_UNDEFINED.findall(said))))

    def _stub(self, target: Target, shop: Workshop) -> None:
        """A shared library with the C library's name and nothing in it, to link against."""
        shop.write({"stub.c": b""})
        self._run((*_driver(target, "cc"), "-fPIC", "-c", "stub.c", "-o", "stub.o"), shop)
        named = ("-soname", target.traits.libc, "-o", "libc-stub.so")
        self._run(("zig", "ld.lld", "-shared", "--hash-style=gnu", *named, "stub.o"), shop)

    def _extract_helpers(self, names: tuple[str, ...], target: Target, shop: Workshop) -> bytes:
        """An object of just these functions: the whole library has a slow memcpy that would replace libc's."""
        shop.write({"libhelpers.a": self._helpers(target, shop)})
        wanted = tuple(f"--undefined={name}" for name in names)
        self._run(("zig", "ld.lld", "-r", "--gc-sections", *wanted, "libhelpers.a", "-o", "extracted"), shop)
        return shop.read("extracted")

    def _helpers(self, target: Target, shop: Workshop) -> bytes:
        """The compiler's helper library of a target: built once, then from the cache."""
        source = str(self.home / "lib" / "compiler_rt.zig")
        pic = ("-fPIC",) if target.traits.hosted else ()
        options = ("-O", "ReleaseSmall", *pic, "-ffunction-sections", "--name", "helpers")
        machine = ("-target", target.traits.zig, "-mcpu", target.cpu or target.traits.cpu)
        key = digest(("helpers", self.describe(), *machine, *options))
        found = shop.cache.get(key)
        if found is None:
            shop.say(f"building the compiler's helper functions for {target}")
            self._run(("zig", "build-lib", source, *machine, *options), shop)
            found = shop.read("libhelpers.a")
            shop.cache.put(key, found)
        return found

    def _link_macos(self, objects: tuple[str, ...], target: Target, shop: Workshop) -> Linked:
        link = (*_driver(target, "c++"), *flags.link_macos(target), *objects, "-o")
        self._run((*link, "twin"), shop)
        self._run((*link, "stripped", "-s"), shop)
        return Linked(shop.read("stripped"), shop.read("twin"), "", (*link, target.traits.shared_name, "-s"))


def _driver(target: Target, language: str, name: str = "", mode: str = "") -> tuple[str, ...]:
    cpu = f"{target.cpu or target.traits.cpu}{mode}"
    return ("zig", language, "-target", name or target.traits.zig, f"-mcpu={cpu}")


def _compile(target: Target, language: str, name: str = "") -> tuple[str, ...]:
    cxx = ("-std=c++17", "-nostdlib++") if language == "c++" else ("-std=c11",)
    # zig's driver turns -Oz into -Os; the second spelling reaches clang itself.
    size = ("-Oz", "-Xclang", "-Oz", "-fno-sanitize=all", *_SMALL)
    common = flags.COMPILE if language == "c++" else tuple(f for f in flags.COMPILE if f not in _CXX_ONLY)
    return (
        *_driver(target, language, name, "" if name else target.traits.mode),
        *cxx,
        *size,
        *common,
        *target.traits.flags,
        *INCLUDES,
    )


# What clang does for speed even where size is all that counts. Loops that matter are vectors already, and no
# slower without.
_SMALL = (
    "-fno-jump-tables",
    "-fno-vectorize",
    "-fno-slp-vectorize",
    "-fno-strict-aliasing",  # keeps values in registers that are shorter to read again
    "-mllvm",
    "-disable-lsr",  # induction variables of their own for every address
    "-mllvm",
    "-disable-machine-licm",  # constants in registers around loops
    "-mllvm",
    "-indvars-widen-indvars=0",  # 64-bit counters for 32-bit ones
    "-mllvm",
    "-enable-pre=false",  # loads and sums copied to where they may be spared
    "-mllvm",
    "-split-spill-mode=size",  # values go to the stack where that is short
    "-mllvm",
    "-enable-gvn-sink",  # what branches end with alike, once behind them
)
_CXX_ONLY = ("-fno-rtti", "-fno-threadsafe-statics", "-fno-exceptions")


def _link(target: Target) -> tuple[str, ...]:
    if target.traits.format == "wasm":
        return link_wasm.recipe(target)
    if target.traits.format == "image":
        return link_image.recipe(target)
    if target.traits.format == "pe":
        return link_pe.recipe(target)
    if not target.traits.is_elf:
        return flags.link_macos(target)
    # Kernels are told apart by their place in a table, never by address: folding equal ones is safe.
    page = ("-z", f"max-page-size={target.traits.page}")
    own = ("-shared", "-soname", target.traits.shared_name, "--icf=all", "--no-rosegment", *page)
    return ("zig", "ld.lld", *own, *flags.LINK_ELF, "-T", "layout.ld", "--version-script=exports.map")


def _program_target(target: Target) -> str:
    traits = target.traits
    if traits.os == "macos":
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
