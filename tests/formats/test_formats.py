"""Libraries that are no ELF shared library: every byte has one owner, names are known, damage is a clear error."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from pathlib import Path

import pytest

from minbuild import assets
from minbuild.analysis.attribution import attribute
from minbuild.errors import BadInput, MinbuildError, ToolchainFailed
from minbuild.formats import detect as formats
from minbuild.formats import pe
from minbuild.formats.symbol_origins import Owners, from_archive
from minbuild.ir import Binary, Kernel
from minbuild.toolchain import (
    BuildOutput,
    build_library,
    build_program,
    check_link,
    find_emulator,
    find_toolchain,
    parse_target,
)
from minbuild.toolchain.cache import user_cache

HEADER = b"""
#include <stddef.h>
#if defined(_WIN32)
#define MB_API extern "C" __declspec(dllexport)
#else
#define MB_API extern "C" __attribute__((visibility("default")))
#endif
namespace minbuild {
struct Call { float* y; const float* x; int n; };
template <class T> int relu(const Call& call);
template <class T> int twice(const Call& call);
extern const int kSizes[6];
}
"""
SOURCES = {
    "src/kernel.h": HEADER,
    "src/kernels/relu.cc": b"""
#include "kernel.h"
namespace minbuild {
template <class T> int relu(const Call& c) {
  for (int i = 0; i < c.n; ++i) c.y[i] = c.x[i] > 0 ? c.x[i] : 0;
  return 0;
}
template int relu<float>(const Call&);
template <class T> int twice(const Call& c) {
  for (int i = 0; i < c.n; ++i) c.y[i] = c.x[i] * 2;
  return 1;
}
template int twice<float>(const Call&);
}
""",
    "src/runtime/session.cc": b"""
#include "kernel.h"
namespace minbuild {
const int kSizes[6] = {5, 4, 1, 7, 2, 9};
static int used = 3;
}
using namespace minbuild;
MB_API int mb_run(int op, float* y, const float* x, int n) {
  used += kSizes[n % 6];
  if (op == 7) return used;
  Call call = {y, x, n};
  [[clang::noinline]] return op ? relu<float>(call) : twice<float>(call);
}
MB_API const char* mb_name(int i) { return &"a name of this library"[i]; }
""",
}
KERNELS = (Kernel("relu", "relu", ("float",), (), 0), Kernel("relu", "twice", ("float",), (), 0))
TARGETS = (
    *("wasm32", "cortex-m4f", "x86_64-windows", "aarch64-windows", "aarch64-macos", "x86_64-macos"),
    "aarch64-linux-android",
)
RELU = "int minbuild::relu<float>(minbuild::Call const&)"


@dataclass(frozen=True)
class Library:
    target: str
    built: BuildOutput
    binary: Binary
    owners: Owners


@pytest.fixture(scope="module", params=TARGETS)
def library(request: pytest.FixtureRequest) -> Library:
    built = build_library(SOURCES, parse_target(request.param), find_toolchain())
    binary = formats.read_binary("library", request.param, built.shared, built.unstripped)
    return Library(request.param, built, binary, from_archive("a.a", built.archive, SOURCES))


def test_every_byte_has_one_owner(library: Library) -> None:
    found = attribute(library.binary, library.owners, KERNELS)
    assert sum(s.bytes for s in found.shares) == found.total == len(library.built.shared)
    owned = {(s.owner.kind, s.owner.name) for s in found.shares}
    assert {("operator", "relu"), ("runtime", "session")} <= owned
    assert not any("contents" in name or "unknown source" in name for _, name in owned)
    assert not any(s.owner.name.startswith("bytes outside") for s in found.shares)


def test_symbols_name_functions_and_data(library: Library) -> None:
    symbols = {s.name: s for s in library.binary.symbols}
    assert symbols[RELU].size > 8 and "mb_run" in symbols
    assert symbols["minbuild::kSizes"].size >= 24
    places = {s.name: s for s in library.binary.sections}
    for symbol in library.binary.symbols:
        section = places[symbol.section]
        assert (
            section.address
            <= symbol.address
            <= symbol.address + symbol.size
            <= section.address + section.size
        )


def test_a_symbol_says_where_its_bytes_are(library: Library) -> None:
    symbol = next(s for s in library.binary.symbols if s.name == "minbuild::kSizes")
    section = next(s for s in library.binary.sections if s.name == symbol.section)
    at = section.offset + symbol.address - section.address
    assert library.built.shared[at : at + 24] == struct.pack("<6i", 5, 4, 1, 7, 2, 9)


def test_the_link_is_checked(library: Library) -> None:
    names = {"symbols": [s.name for s in library.binary.symbols], "exports": library.binary.exports}
    known = {"kernels": ("relu", "twice"), "imports": library.binary.imports}
    check_link(selected=("relu<float>", "twice<float>"), **names, **known)
    with pytest.raises(ToolchainFailed, match="kernel twice<float> is in it"):
        check_link(selected=("relu<float>",), **names, **known)


def test_only_the_api_is_exported_and_nothing_is_imported(library: Library) -> None:
    assert library.binary.exports == ("mb_name", "mb_run")
    assert set(library.binary.imports) <= {"dyld_stub_binder"}


def test_every_truncation_is_a_clear_error(library: Library) -> None:
    shared, unstripped = library.built.shared, library.built.unstripped
    step = max(1, len(shared) // 150)
    for size in [*range(0, 64), *range(64, len(shared) - 1, step)]:
        try:
            binary = formats.read_binary("cut", "t", shared[:size], unstripped)
            attribute(binary, library.owners, KERNELS)  # what is cut off was padding
        except MinbuildError as error:
            assert "cut" in str(error)


def test_random_damage_never_escapes_as_another_error(library: Library) -> None:
    chance = random.Random(11)
    for victim in ("shared", "unstripped"):
        for _ in range(150):
            data = bytearray(getattr(library.built, victim))
            for _ in range(chance.randint(1, 6)):
                data[chance.randrange(chance.choice([min(600, len(data)), len(data)]))] = chance.randrange(
                    256
                )
            pair = {
                "shared": library.built.shared,
                "unstripped": library.built.unstripped,
                victim: bytes(data),
            }
            try:
                binary = formats.read_binary("damaged", "t", pair["shared"], pair["unstripped"])
                assert attribute(binary, library.owners, KERNELS).total == len(pair["shared"])
            except MinbuildError as error:
                assert "damaged" in str(error)


def test_an_unstripped_library_of_another_link_is_refused(library: Library) -> None:
    longer = {
        **SOURCES,
        "src/runtime/session.cc": SOURCES["src/runtime/session.cc"]
        + b"""
MB_API int mb_more(int a) { return kSizes[a] / 3; }
""",
    }
    other = build_library(longer, parse_target(library.target), find_toolchain())
    with pytest.raises(BadInput, match="different links"):
        formats.read_binary("library", "t", library.built.shared, other.unstripped)


def test_the_same_sources_give_the_same_bytes(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "zig").symlink_to(user_cache().compiler)  # what belongs to the compiler is not what is tested
    monkeypatch.setenv("MINBUILD_CACHE", str(tmp_path))
    again = build_library(SOURCES, parse_target(library.target), find_toolchain())
    assert (again.shared, again.unstripped, again.archive) == (
        library.built.shared,
        library.built.unstripped,
        library.built.archive,
    )


def test_libraries_of_macos_are_linked_without_building_helpers(library: Library) -> None:
    """They take most of a minute for each architecture; its C library has them."""
    assert ("-rtlib=none" in library.built.commands[-2]) == ("macos" in library.target)


@pytest.mark.parametrize("name", ["x86_64-windows", "aarch64-windows"])
def test_a_program_for_windows_asks_the_system_alone(name: str) -> None:
    """Without a C library, which would have to be built first."""
    target, toolchain = parse_target(name), find_toolchain()
    assert toolchain.links_without_libc(target)
    start = (assets.root("templates") / "verify/windows_calls.c").read_bytes()
    main = b'int main(void) { char a[9000]; __asm__ volatile("" ::"r"(a) : "memory"); return a[8]; }'
    archive = build_library(SOURCES, target, toolchain).archive
    sources = {"main.c": main, "windows_calls.c": start}
    program = build_program(sources, archive, target, toolchain, libc=False)
    assert pe.read_binary("program", name, program, program).imports == ("ExitProcess",)


def test_files_of_no_known_format_are_refused() -> None:
    for data in (b"", b"#!/bin/sh", b"\xca\xfe\xba\xbe" + bytes(60), b"MZ" + bytes(10)):
        with pytest.raises(BadInput, match="odd"):
            formats.read_binary("odd", "t", data, data)


def test_exports_by_number_and_imports_of_a_windows_library() -> None:
    """The linker's own tables, written by hand: one import by name, one by number."""
    names = b"\0\0memcpy\0"
    place = 0x1000
    table = struct.pack("<5I", place + 40, 0, 0, place + 100, place + 40) + bytes(20)
    table += struct.pack("<3Q", place + 80, 1 << 63 | 17, 0)
    body = (table.ljust(80, b"\0") + names).ljust(100, b"\0") + b"libc.dll\0"
    optional = bytes(112) + struct.pack("<4I", 0, 0, place, 40) + bytes(112)
    coff = struct.pack("<HHIIIHH", 0x8664, 1, 0, 0, 0, len(optional), 0x2022)
    dos = b"MZ".ljust(60, b"\0") + struct.pack("<I", 64)
    start = 64 + 4 + len(coff) + len(optional) + 40
    section = struct.pack(
        "<8sIIIIIIHHI", b".rdata", len(body), place, len(body), start, 0, 0, 0, 0, 0x40000040
    )
    data = dos + b"PE\0\0" + coff + optional + section + body
    assert pe.read_binary("x.dll", "t", data, data).imports == ("libc.dll#17", "memcpy")


def test_boards_and_modules_name_their_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    assert find_emulator(parse_target("wasm32")) == ["/bin/node", "runner.mjs"]
    command = find_emulator(parse_target("cortex-m7"))
    assert command is not None and command[:3] == ["/bin/qemu-system-arm", "-M", "mps2-an500"]
    command = find_emulator(parse_target("cortex-m55"))
    assert command is not None and command[1:3] == ["-M", "mps3-an547"]
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("os.access", lambda path, mode: False)  # wine is no program on the path of Debian
    assert find_emulator(parse_target("wasm32")) is None is find_emulator(parse_target("x86_64-windows"))


def test_targets_go_by_other_names_too() -> None:
    names = {
        "armv7-linux-gnueabihf": "arm-linux-gnueabihf",
        "armv7a-linux-androideabi": "arm-linux-androideabi",
        "arm64-macos": "aarch64-macos",
        "arm64-android:cortex_a55": "aarch64-linux-android:cortex_a55",
        "armv7-android": "arm-linux-androideabi",
        "amd64-windows": "x86_64-windows",
    }
    assert {name: str(parse_target(name)) for name in names} == names
    for name in ("arm64", "-linux-gnu", "armv7-linux-gnu", "windows-aarch64"):
        with pytest.raises(BadInput, match=rf"'{name}': unknown"):
            parse_target(name)
