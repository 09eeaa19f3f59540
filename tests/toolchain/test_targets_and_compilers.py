"""Targets, compilers and emulators: those that work, and those that are refused with a cure; the check of a link."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest
from toolchain_sources import (
    ANSWER,
    API,
    GXX,
    HOST,
    PROGRAM,
    SOURCES,
    call_library,
    elf64,
    on_linux,
)

from minbuild import toolchain
from minbuild.errors import BadInput, ToolchainFailed
from minbuild.formats import elf
from minbuild.toolchain import (
    Target,
    build_library,
    build_program,
    check_link,
    find_toolchain,
    parse_target,
)
from minbuild.toolchain.compile_library import object_names
from minbuild.toolchain.link_check import instantiation
from minbuild.toolchain.process import Result, failure
from minbuild.toolchain.zig import find_zig


def test_unknown_target_lists_the_known() -> None:
    with pytest.raises(
        BadInput, match=r"'vax-vms': unknown\. Known targets: aarch64-linux-gnu, .*x86_64-linux-musl"
    ):
        parse_target("vax-vms")
    with pytest.raises(BadInput, match="no CPU name"):
        parse_target("x86_64-linux-gnu:v3 -o")
    assert parse_target("x86_64-linux-gnu:x86_64_v3") == Target("x86_64-linux-gnu", "x86_64_v3")


def test_host_without_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "PDP11")
    with pytest.raises(BadInput, match="--target"):
        toolchain.host_target()


def test_missing_toolchains_name_their_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ToolchainFailed, match=r"--cxx nowhere\+\+: no such program.*default toolchain"):
        find_toolchain("nowhere++")
    with pytest.raises(BadInput, match="no such file"):
        find_toolchain(cmake_toolchain=tmp_path / "none.cmake")
    with pytest.raises(BadInput, match="Give one of them"):
        find_toolchain("g++", tmp_path / "none.cmake")
    find_zig.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ToolchainFailed, match="pip install ziglang"):
        find_toolchain()


@pytest.mark.parametrize("name", ["/etc/passwd.cc", "../a.cc", "a\\b.cc"])
def test_sources_stay_inside(name: str) -> None:
    with pytest.raises(BadInput, match="not a path inside"):
        build_library({name: b""}, HOST, find_toolchain())


def test_no_sources() -> None:
    with pytest.raises(BadInput, match="nothing to compile"):
        build_library({"README.md": b""}, HOST, find_toolchain())


def test_objects_of_equal_name_stay_apart() -> None:
    assert object_names(["a/x.cc", "b/x.cc", "b/y.cc"]) == {
        "a/x.cc": "a.x.o",
        "b/x.cc": "b.x.o",
        "b/y.cc": "y.o",
    }


@GXX
@on_linux
def test_gcc_builds_a_working_library_and_program(cache: Path, tmp_path: Path) -> None:
    gcc, host = find_toolchain("g++"), toolchain.host_target()
    built = build_library(SOURCES, host, gcc)
    call_library(built.shared, tmp_path)
    assert "g++" in built.toolchain and len(built.shared) < len(built.unstripped)
    program = build_program({"main.c": PROGRAM, "include/minbuild/api.h": API}, built.archive, host, gcc)
    assert toolchain.run_program(program, target=host).out == ANSWER
    if host == HOST:
        _, sections, symbols = elf64(built.shared)
        assert sorted(name for name, defined in symbols if defined) == ["mb_divide", "mb_run", "mb_save"]
        assert ".gnu.version_r" not in sections


@GXX
def test_gcc_for_another_machine_is_refused(cache: Path) -> None:
    other = "riscv64-linux-gnu" if toolchain.host_target().traits.arch != "riscv64" else "x86_64-linux-gnu"
    with pytest.raises(BadInput, match=rf"not for {other}.*{other}-g\+\+"):
        build_library(SOURCES, Target(other), find_toolchain("g++"))


LISTING = b"""
cmake_minimum_required(VERSION 3.13)
project(minbuild CXX)
add_library(minbuild SHARED src/session.cc src/kernels/gemm.cc src/kernels/relu.cc)
add_library(minbuild_static STATIC src/session.cc src/kernels/gemm.cc src/kernels/relu.cc)
foreach(library minbuild minbuild_static)
  target_include_directories(${library} PRIVATE include src)
endforeach()
"""


@GXX
@on_linux
@pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake here")
def test_cmake_toolchain_file(cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "host.cmake"
    file.write_text("set(CMAKE_CXX_COMPILER g++)\n")
    cmake, host = find_toolchain(cmake_toolchain=file), toolchain.host_target()
    built = build_library({**SOURCES, "CMakeLists.txt": LISTING}, host, cmake)
    call_library(built.shared, tmp_path)
    assert len(built.shared) < len(built.unstripped) and str(tmp_path) not in " ".join(built.commands)
    file.write_text("message(FATAL_ERROR no)\n")
    with pytest.raises(ToolchainFailed, match="cmake"):
        build_library({**SOURCES, "CMakeLists.txt": LISTING}, host, find_toolchain(cmake_toolchain=file))


def test_what_the_linker_says_comes_before_what_cmake_makes_of_it() -> None:
    said = ["CMake Error at CMakeTestCCompiler.cmake:70 (message):", *("  The compiler is broken.",) * 9]
    text = "\n".join([*said, "  ld.lld: error: unable to find library -lc", "  CMake will not continue."])
    told = str(failure("cmake", ("cmake", "-S", "."), Result(1, b"", text), "A cure."))
    assert told.splitlines()[1] == "    ld.lld: error: unable to find library -lc" and "A cure." in told
    only = str(failure("cmake", ("cmake",), Result(1, b"", "-- Checking\n" + said[0]), "A cure."))
    assert only.splitlines()[1].strip() == said[0]


@pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake here")
def test_the_ndks_toolchain_file_is_told_the_architecture(tmp_path: Path) -> None:
    file = tmp_path / "android.toolchain.cmake"
    file.write_text("")
    cmake = find_toolchain(cmake_toolchain=file)
    for name, abi in (("arm-linux-androideabi", "armeabi-v7a"), ("aarch64-linux-android", "arm64-v8a")):
        assert f"-DANDROID_ABI={abi}" in cmake.recipe(parse_target(name))
    assert not any("ANDROID" in word for word in cmake.recipe(parse_target("aarch64-linux-gnu")))


def test_thumb_is_what_32_bit_boards_get(cache: Path) -> None:
    """Bit 0 of a function's address says Thumb."""
    built = build_library(SOURCES, parse_target("arm-linux-musleabihf"), find_toolchain())
    file = elf.parse("unstripped", built.unstripped)
    table = next(s for s in file.sections if s.type == elf.SYMTAB)
    symbols = struct.iter_unpack("<IIIBBH", built.unstripped[table.offset : table.offset + table.size])
    functions = [value for _, value, _, info, _, section in symbols if info & 15 == elf.FUNC and section]
    ours = {s.address for s in file.symbols(elf.SYMTAB) if s.name.startswith(("mb_", "_ZN8minbuild"))}
    assert ours and all(address | 1 in functions for address in ours)


def test_emulator_of_a_foreign_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minbuild.toolchain.run_binaries.host_target", lambda: HOST)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}" if name == "qemu-arm" else None)
    assert toolchain.find_emulator(Target("arm-linux-gnueabihf")) == ["/bin/qemu-arm"]
    assert toolchain.find_emulator(Target("riscv64-linux-gnu")) is None
    assert toolchain.find_emulator(Target("x86_64-linux-musl")) == []
    with pytest.raises(ToolchainFailed, match="qemu-riscv64"):
        toolchain.run_program(b"", target=Target("riscv64-linux-gnu"))


@on_linux
def test_program_that_hangs(tmp_path: Path) -> None:
    with pytest.raises(ToolchainFailed, match="did not finish within 0.2 s"):
        toolchain.run_program(b"#!/bin/sh\nsleep 60\n", target=toolchain.host_target(), timeout=0.2)


@on_linux
def test_how_long_a_program_may_run_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINBUILD_RUN_SECONDS", "0.2")
    with pytest.raises(ToolchainFailed, match=r"within 0.2 s. Set MINBUILD_RUN_SECONDS to a larger number"):
        toolchain.run_program(b"#!/bin/sh\nsleep 60\n", target=toolchain.host_target())
    for text in ("soon", "0", "nan", "inf"):
        monkeypatch.setenv("MINBUILD_RUN_SECONDS", text)
        with pytest.raises(BadInput, match=f"MINBUILD_RUN_SECONDS={text}: is no number of seconds"):
            toolchain.run_program(b"", target=toolchain.host_target())


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("minbuild::Status minbuild::gemm<float>(minbuild::Call const&)", "gemm<float>"),
        ("minbuild::gemm<float>", "gemm<float>"),
        ("gemm<int64_t, bool>", "gemm<int64_t, bool>"),
        (
            "minbuild::Status minbuild::cast<unsigned char, long>(minbuild::Call const&)",
            "cast<uint8_t, int64_t>",
        ),
        (
            "minbuild::Status minbuild::cast<unsigned char, long long>(minbuild::Call const&)",
            "cast<uint8_t, int64_t>",
        ),
        (
            "minbuild::Status minbuild::cast_real<minbuild::half, minbuild::bfloat16>(minbuild::Call const&)",
            "cast_real<half, bfloat16>",
        ),
        (
            "minbuild::Status minbuild::cast_whole<unsigned short, signed char>(minbuild::Call const&)",
            "cast_whole<uint16_t, int8_t>",
        ),
        (
            "minbuild::Status minbuild::binary<minbuild::Add, float>(minbuild::Call const&)",
            "binary<Add, float>",
        ),
        ("minbuild::Status minbuild::(anonymous namespace)::pad<4u>(minbuild::Call const&)", "pad<4>"),
        ("minbuild::Status minbuild::pad<(minbuild::Mode)1>(minbuild::Call const&)", "pad<1>"),
        ("minbuild::Status minbuild::map<minbuild::Op<float> >(minbuild::Call const&)", "map<Op<float>>"),
        ("minbuild::relu(minbuild::Call const&)", "relu"),
        ("minbuild::gemm<float>(minbuild::Call const&) (.cold)", "gemm<float>"),
        ("mb_run", "mb_run"),
    ],
)
def test_names_of_kernels(symbol: str, name: str) -> None:
    assert instantiation(symbol) == name


GOOD = {
    "selected": ["minbuild::gemm<float>"],
    "kernels": ["minbuild::gemm", "minbuild::relu"],
    "symbols": [
        "mb_run",
        "minbuild::Status minbuild::gemm<float>(minbuild::Call const&)",
        "minbuild::gemm_tile(float*)",
        "void minbuild::gemm<double>(minbuild::Gemm<double> const&)",
    ],
    "exports": ["mb_run"],
    "imports": ["memcpy"],
}


def test_check_of_a_good_link() -> None:
    check_link(**GOOD)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("part", "name", "finding"),
    [
        (
            "symbols",
            "unsigned char minbuild::relu<float>(minbuild::Call const&)",
            r"kernel relu<float> is in it",
        ),
        (
            "symbols",
            "minbuild::Status minbuild::gemm<double>(minbuild::Call const&)",
            r"kernel gemm<double> is in it",
        ),
        ("exports", "_ZN8minbuild3runEv", "only mb_"),
        (
            "symbols",
            "minbuild::relu<float>(minbuild::Call const&)::{lambda(int)#1}::operator()(int) const",
            r"kernel relu<float>",
        ),
        ("imports", "printf", "printf is imported"),
    ],
)
def test_check_of_a_bad_link(part: str, name: str, finding: str) -> None:
    with pytest.raises(ToolchainFailed, match=finding):
        check_link(**{**GOOD, part: [*GOOD[part], name]})  # type: ignore[arg-type]
