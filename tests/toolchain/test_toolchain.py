"""Sources become libraries: whole, small, the same from everywhere; a failure leaves nothing behind."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from minbuild import toolchain
from minbuild.errors import BadInput, ToolchainFailed
from minbuild.formats import elf
from minbuild.toolchain import (
    BuildOutput,
    Target,
    build_library,
    build_program,
    check_link,
    find_toolchain,
    parse_target,
)
from minbuild.toolchain.cache import Cache, user_cache
from minbuild.toolchain.compile_library import object_names
from minbuild.toolchain.link_check import instantiation
from minbuild.toolchain.process import Processes, Result, failure
from minbuild.toolchain.zig import find_zig

API = b"""
#include <stddef.h>
#include <stdint.h>
#define MB_API __attribute__((visibility("default")))
#ifdef __cplusplus
extern "C" {
#endif
MB_API uint8_t mb_run(int op, float* y, const float* a, const float* b, int n);
MB_API uint8_t mb_save(const char* path, const void* bytes, size_t size);
MB_API uint64_t mb_divide(uint64_t a, uint64_t b);
#ifdef __cplusplus
}
#endif
"""
KERNEL = b"""
#include "minbuild/api.h"
namespace minbuild {
struct Call { float* y; const float* a; const float* b; int n; };
template <class T> uint8_t gemm(const Call& call);
template <class T> uint8_t relu(const Call& call);
}
"""
GEMM = b"""
#include "kernel.h"
namespace minbuild {
template <class T> uint8_t gemm(const Call& c) {
  for (int i = 0; i < c.n; ++i)
    for (int j = 0; j < c.n; ++j) {
      T sum = 0;
      for (int k = 0; k < c.n; ++k) sum += c.a[i * c.n + k] * c.b[k * c.n + j];
      c.y[i * c.n + j] = sum;
    }
  return 0;
}
template uint8_t gemm<float>(const Call&);
template uint8_t gemm<double>(const Call&);
}
"""
RELU = b"""
#include "kernel.h"
namespace minbuild {
template <class T> uint8_t relu(const Call& c) {
  for (int i = 0; i < c.n; ++i) c.y[i] = c.a[i] > 0 ? c.a[i] : 0;
  return 0;
}
template uint8_t relu<float>(const Call&);
}
"""
SESSION = b"""
#include "kernel.h"
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
using namespace minbuild;
static uint8_t (*const kTable[])(const Call&) = {gemm<float>, relu<float>};
uint8_t mb_run(int op, float* y, const float* a, const float* b, int n) {
  if (op < 0 || op > 1) return 1;
  memset(y, 0, n * sizeof(float));
  return kTable[op]({y, a, b, n});
}
uint8_t mb_save(const char* path, const void* bytes, size_t size) {
  int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (file < 0) return 8;
  bool whole = write(file, bytes, size) == static_cast<ssize_t>(size);
  return close(file) == 0 && whole ? 0 : 8;
}
uint64_t mb_divide(uint64_t a, uint64_t b) { return a / b; }
"""
SOURCES = {
    "include/minbuild/api.h": API,
    "src/kernel.h": KERNEL,
    "src/kernels/gemm.cc": GEMM,
    "src/kernels/relu.cc": RELU,
    "src/session.cc": SESSION,
}
PROGRAM = b"""
#include <stdio.h>
#include "minbuild/api.h"
int main(void) {
  float a[4] = {1, -2, 3, 4}, b[4] = {1, 2, 3, 5}, y[4];
  int status = mb_run(0, y, a, b, 2);
  printf("%d %g %g %g %g %d\\n", status, y[0], y[1], y[2], y[3], (int)mb_divide(1ull << 40, 1u << 30));
  return mb_save("saved", y, sizeof y);
}
"""
ANSWER = b"0 -5 -8 15 26 1024\n"
HOST = Target("x86_64-linux-gnu")
GXX = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")
on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="runs what it builds for Linux")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, so that nothing comes from an earlier run."""
    monkeypatch.setenv("MINBUILD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def zig_built(tmp_path_factory: pytest.TempPathFactory) -> BuildOutput:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINBUILD_CACHE", str(tmp_path_factory.mktemp("cache")))
        return build_library(SOURCES, HOST, find_toolchain())


def elf64(data: bytes) -> tuple[list[tuple[int, ...]], dict[str, bytes], list[tuple[str, bool]]]:
    """Program headers (type, flags, offset, vaddr, paddr, filesz, memsz, align), sections by name, dynamic
    symbols (name, defined) of a 64-bit file."""
    phoff, shoff = struct.unpack_from("<QQ", data, 32)
    phnum, _, shnum, shstr = struct.unpack_from("<HHHH", data, 56)
    programs = [struct.unpack_from("<IIQQQQQQ", data, phoff + 56 * i) for i in range(phnum)]
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, shoff + 64 * i) for i in range(shnum)]
    names = data[headers[shstr][4] : headers[shstr][4] + headers[shstr][5]]
    sections = {
        names[h[0] : names.index(b"\0", h[0])].decode(): b"" if h[1] == 8 else data[h[4] : h[4] + h[5]]
        for h in headers
    }
    strings, table = sections[".dynstr"], sections[".dynsym"]
    rows = [struct.unpack_from("<IBBHQQ", table, at) for at in range(24, len(table), 24)]
    symbols = [(strings[r[0] : strings.index(b"\0", r[0])].decode(), r[3] != 0) for r in rows]
    return programs, sections, symbols


def call_library(shared: bytes, folder: Path) -> None:
    path = folder / "libminbuild.so"
    path.write_bytes(shared)
    library = ctypes.CDLL(str(path))
    y, a, b = (ctypes.c_float * 4)(), (ctypes.c_float * 4)(1, -2, 3, 4), (ctypes.c_float * 4)(1, 2, 3, 5)
    assert library.mb_run(0, y, a, b, 2) == 0 and list(y) == [-5, -8, 15, 26]
    assert library.mb_run(1, y, a, b, 4) == 0 and list(y) == [1, 0, 3, 4]
    assert library.mb_save(str(folder / "saved").encode(), b"four", ctypes.c_size_t(4)) == 0
    assert (folder / "saved").read_bytes() == b"four"
    library.mb_divide.restype = ctypes.c_uint64
    assert library.mb_divide(ctypes.c_uint64(1 << 40), ctypes.c_uint64(3)) == (1 << 40) // 3


@on_linux
def test_library_of_the_default_toolchain_works(zig_built: BuildOutput, tmp_path: Path) -> None:
    call_library(zig_built.shared, tmp_path)


def test_library_exports_the_api_and_imports_libc_only(zig_built: BuildOutput) -> None:
    _, sections, symbols = elf64(zig_built.shared)
    assert sorted(name for name, defined in symbols if defined) == ["mb_divide", "mb_run", "mb_save"]
    assert sorted(name for name, defined in symbols if not defined) == ["close", "memset", "open", "write"]
    assert b"libc.so.6\0" in sections[".dynstr"] and b"libminbuild.so\0" in sections[".dynstr"]
    assert ".gnu.version" not in sections and ".comment" not in sections and ".symtab" not in sections


def test_library_has_the_section_headers_that_linkers_read(zig_built: BuildOutput) -> None:
    _, sections, _ = elf64(zig_built.shared)
    assert list(sections) == ["", ".dynsym", ".text", ".dynamic", ".dynstr"]
    twin = elf64(zig_built.twin)[1]
    assert {name: sections[name] for name in (".dynsym", ".text")} == {
        name: twin[name] for name in (".dynsym", ".text")
    }
    names = b"\0.dynsym\0.text\0.dynamic\0.dynstr\0"
    assert sections[".dynstr"] == twin[".dynstr"] + names


@on_linux
@pytest.mark.parametrize("linker", ["bfd", "gold", "lld"])
def test_programs_link_with_the_library(zig_built: BuildOutput, tmp_path: Path, linker: str) -> None:
    if linker != "lld" and not (shutil.which("gcc") and shutil.which(f"ld.{linker}")):
        pytest.skip(f"no gcc with {linker}")
    (tmp_path / "libminbuild.so").write_bytes(zig_built.shared)
    (tmp_path / "main.c").write_text(
        "unsigned long long mb_divide(unsigned long long, unsigned long long);\n"
        "int main(void) { return (int)mb_divide(1ull << 40, 1ull << 38); }\n"
    )
    compiler = [sys.executable, "-m", "ziglang", "cc"] if linker == "lld" else ["gcc", f"-fuse-ld={linker}"]
    options = [f"-L{tmp_path}", "-lminbuild", f"-Wl,-rpath,{tmp_path}", "-o", str(tmp_path / "main")]
    subprocess.run([*compiler, str(tmp_path / "main.c"), *options], check=True)
    assert subprocess.run([str(tmp_path / "main")], check=False).returncode == 4


def test_no_memory_is_writable_and_executable(zig_built: BuildOutput) -> None:
    programs, _, _ = elf64(zig_built.shared)
    assert all(flags & 3 != 3 for kind, flags, *_ in programs)
    assert [flags for kind, flags, *_ in programs if kind == 0x6474E551] == [6], (
        "the stack has to be declared"
    )


def test_twin_loads_what_the_library_loads(zig_built: BuildOutput) -> None:
    programs, _, _ = elf64(zig_built.shared)
    twin_programs, twin_sections, _ = elf64(zig_built.twin)
    assert programs == twin_programs
    head = 64  # tells where the section headers are: the loader does not look
    for kind, _flags, offset, _v, _p, size, *_ in programs:
        if kind == 1:
            start = max(offset, head)
            assert zig_built.shared[start : offset + size] == zig_built.twin[start : offset + size]
    assert b"_ZN8minbuild4gemmIfEEhRKNS_4CallE" in twin_sections[".strtab"]
    assert ".rela.text" in twin_sections, "references between functions are read from here"
    assert "gemm.o:(.text._ZN8minbuild4gemmIfEEhRKNS_4CallE)" in zig_built.map


def test_unused_instantiation_is_dropped(zig_built: BuildOutput) -> None:
    assert b"4gemmIdE" not in elf64(zig_built.twin)[1][".strtab"]


def test_library_stays_small(zig_built: BuildOutput) -> None:
    assert len(zig_built.shared) <= 2400


def test_same_bytes_from_another_folder(
    zig_built: BuildOutput, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "elsewhere" / "deep"))
    monkeypatch.setenv("CPATH", str(tmp_path))
    again = build_library(dict(reversed(SOURCES.items())), HOST, find_toolchain(), jobs=1)
    assert again == zig_built


def test_no_folder_of_this_machine_in_the_result(zig_built: BuildOutput) -> None:
    for text in (*zig_built.commands, zig_built.map):
        assert "/tmp" not in text and str(Path.home()) + "/" not in text and str(find_zig().home) not in text
    for data in (zig_built.shared, zig_built.twin, zig_built.archive):
        assert b"/tmp" not in data and b"minbuild-" not in data


def test_commands_tell_flags(zig_built: BuildOutput) -> None:
    compile_line, link_line, archive_line = zig_built.commands
    assert compile_line.startswith("zig c++ -target x86_64-linux-gnu.2.17 ") and " -Oz " in compile_line
    assert link_line.startswith("zig ld.lld -shared ") and archive_line.startswith("zig ar ")


def test_second_build_comes_from_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_library(SOURCES, HOST, find_toolchain())
    monkeypatch.setattr(Processes, "run", lambda *_, **__: pytest.fail("started a process"))
    assert build_library(SOURCES, HOST, find_toolchain()) == first


def test_only_the_changed_source_is_compiled(cache: Path) -> None:
    build_library(SOURCES, HOST, find_toolchain())
    said: list[str] = []
    changed = {**SOURCES, "src/kernels/relu.cc": RELU + b"// changed\n"}
    build_library(changed, HOST, find_toolchain(), progress=said.append)
    assert sorted(line.split(" (")[0] for line in said) == [
        "compiled src/kernels/relu.cc",
        "linking",
        "reused src/kernels/gemm.cc",
        "reused src/session.cc",
    ]


def test_a_header_or_cpu_change_compiles_everything(cache: Path) -> None:
    build_library(SOURCES, HOST, find_toolchain())
    for sources, target in (
        ({**SOURCES, "src/kernel.h": KERNEL + b"\n"}, HOST),
        (SOURCES, Target(HOST.name, "x86_64_v3")),
    ):
        said: list[str] = []
        build_library(sources, target, find_toolchain(), progress=said.append)
        assert sum(line.startswith("compiled") for line in said) == 3


def test_damaged_cache_entries_are_built_again(cache: Path) -> None:
    first = build_library(SOURCES, HOST, find_toolchain())
    for entry in (cache / "built").rglob("*"):
        if entry.is_file():
            entry.write_bytes(entry.read_bytes()[:-1] + b"?")
    assert build_library(SOURCES, HOST, find_toolchain()) == first


def test_concurrent_builds_share_a_cache(cache: Path) -> None:
    results: list[BuildOutput] = []
    threads = [
        threading.Thread(
            target=lambda: results.append(build_library(SOURCES, HOST, find_toolchain(), jobs=2))
        )
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3 and len(set(results)) == 1
    assert not list(cache.rglob(".new-*"))


@pytest.mark.parametrize(
    "name",
    [
        "x86_64-linux-musl",
        "aarch64-linux-gnu",
        "aarch64-linux-musl",
        "arm-linux-gnueabihf",
        "riscv64-linux-musl",
        "loongarch64-linux-gnu",
    ],
)
def test_other_linux_targets(cache: Path, name: str) -> None:
    built = build_library(SOURCES, parse_target(name), find_toolchain())
    libc = b"libc.so.6\0" if "gnu" in name else b"libc.so\0"
    if built.shared[4] == 1:  # 32 bits: division came from the compiler's helpers, memset did not
        assert libc in built.shared and b"memset\0" in built.shared and b"aeabi" not in built.shared
        return
    _, sections, symbols = elf64(built.shared)
    assert sorted(s for s, defined in symbols if not defined) == ["close", "memset", "open", "write"]
    assert libc in sections[".dynstr"]


def test_compile_error_names_file_command_and_cure(cache: Path) -> None:
    broken = {**SOURCES, "src/kernels/relu.cc": b'#include "kernel.h"\nint f() { return missing; }\n'}
    with pytest.raises(ToolchainFailed) as failed:
        build_library(broken, HOST, find_toolchain())
    text = str(failed.value)
    assert text.startswith("src/kernels/relu.cc: zig failed with exit code 1.")
    assert (
        "use of undeclared identifier 'missing'" in text
        and "Command: zig c++" in text
        and "report it" in text
    )
    assert str(Path.home()) + "/" not in text and len(text.splitlines()) < 14
    assert not list(cache.rglob(".new-*"))


def test_undefined_function_of_ours_is_named(cache: Path) -> None:
    short = {name: data for name, data in SOURCES.items() if not name.endswith("relu.cc")}
    with pytest.raises(ToolchainFailed, match=r"minbuild::relu<float>\(.*used but in none of the sources"):
        build_library(short, HOST, find_toolchain())


def test_stopping_kills_the_compilers(cache: Path, tmp_path: Path) -> None:
    """Ctrl-C in the middle: the process ends soon, no child lives on, no temporary file is left."""
    slow = tmp_path / "slow-compiler"
    slow.write_text(
        "#!/bin/sh\ncase $1 in --version) echo gcc 12.2.0;; -dumpmachine) echo x86_64-linux-gnu;;"
        f" -print*) echo ar;; *) echo $$ >> {tmp_path}/pids; sleep 60;; esac\n"
    )
    slow.chmod(0o755)
    script = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from minbuild.toolchain import *\n"
        "build_library({'src/a.cc': b'', 'src/b.cc': b''}, Target('x86_64-linux-gnu'), "
        "find_toolchain(sys.argv[1]), jobs=2)\n"
    )
    root = str(Path(toolchain.__file__).parents[2])
    environment = {**os.environ, "TMPDIR": str(tmp_path / "t")}
    (tmp_path / "t").mkdir()
    run = subprocess.Popen(
        [sys.executable, "-c", script, str(slow), root], stderr=subprocess.PIPE, env=environment
    )
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and len(lines(tmp_path / "pids")) < 2:
        time.sleep(0.02)
    pids = [int(line) for line in lines(tmp_path / "pids")]
    assert len(pids) == 2
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=20)
    assert b"KeyboardInterrupt" in said
    assert not any(alive(pid) for pid in pids)
    assert not list(cache.rglob(".new-*")) and not list((tmp_path / "t").iterdir())


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A container without an init process keeps the dead listed.
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_full_disk_says_so(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Cache, key: str, body: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(cache))

    monkeypatch.setattr(Cache, "put", full)
    with pytest.raises(ToolchainFailed, match=r"No space left on device.*free some space.*MINBUILD_CACHE"):
        build_library(SOURCES, HOST, find_toolchain())


def test_cache_that_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINBUILD_CACHE", str(tmp_path / "file"))
    with pytest.raises(ToolchainFailed, match=r"file.*MINBUILD_CACHE"):
        build_library(SOURCES, HOST, find_toolchain())


def test_read_only_home_falls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINBUILD_CACHE", raising=False)
    (tmp_path / "home").write_text("not a folder: nobody can write below it")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("minbuild.toolchain.cache._platform_folder", lambda: tmp_path / "home")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    root = user_cache().root
    assert root.is_dir() and root.parent == tmp_path and root.stat().st_mode & 0o077 == 0


def test_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("minbuild.toolchain.cache.os.replace", fail)
    with pytest.raises(KeyboardInterrupt):
        Cache(tmp_path).put("ab12", b"body")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


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
    assert "g++" in built.toolchain and len(built.shared) < len(built.twin)
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
    assert len(built.shared) < len(built.twin) and str(tmp_path) not in " ".join(built.commands)
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
    file = elf.parse("twin", built.twin)
    table = next(s for s in file.sections if s.type == elf.SYMTAB)
    symbols = struct.iter_unpack("<IIIBBH", built.twin[table.offset : table.offset + table.size])
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
