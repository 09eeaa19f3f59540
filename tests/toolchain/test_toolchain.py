"""Sources become libraries: whole, small, the same from everywhere; a failure leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from interrupts import heed_interrupts
from toolchain_sources import (
    HOST,
    SOURCES,
    call_library,
    elf64,
    on_linux,
)

from minbuild import toolchain
from minbuild.errors import ToolchainFailed
from minbuild.options.build_options import BuildOptions
from minbuild.toolchain import (
    BuildOutput,
    build_library,
    find_toolchain,
    parse_target,
)
from minbuild.toolchain.zig import find_zig


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
    unstripped = elf64(zig_built.unstripped)[1]
    assert {name: sections[name] for name in (".dynsym", ".text")} == {
        name: unstripped[name] for name in (".dynsym", ".text")
    }
    names = b"\0.dynsym\0.text\0.dynamic\0.dynstr\0"
    assert sections[".dynstr"] == unstripped[".dynstr"] + names


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


def test_the_unstripped_library_loads_what_the_library_loads(zig_built: BuildOutput) -> None:
    programs, _, _ = elf64(zig_built.shared)
    unstripped_programs, unstripped_sections, _ = elf64(zig_built.unstripped)
    assert programs == unstripped_programs
    head = 64  # tells where the section headers are: the loader does not look
    for kind, _flags, offset, _v, _p, size, *_ in programs:
        if kind == 1:
            start = max(offset, head)
            assert zig_built.shared[start : offset + size] == zig_built.unstripped[start : offset + size]
    assert b"_ZN8minbuild4gemmIfEEhRKNS_4CallE" in unstripped_sections[".strtab"]
    assert ".rela.text" in unstripped_sections, "references between functions are read from here"


def test_the_map_names_the_object_of_a_function(cache: Path) -> None:
    """Without link-time optimisation, which has one object for all sources."""
    built = build_library(SOURCES, HOST, find_toolchain(build_options=BuildOptions(lto="off")))
    assert "gemm.o:(.text._ZN8minbuild4gemmIfEEhRKNS_4CallE)" in built.map


def test_unused_instantiation_is_dropped(zig_built: BuildOutput) -> None:
    assert b"4gemmIdE" not in elf64(zig_built.unstripped)[1][".strtab"]


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
    for data in (zig_built.shared, zig_built.unstripped, zig_built.archive):
        assert b"/tmp" not in data and b"minbuild-" not in data


def test_commands_tell_flags(zig_built: BuildOutput) -> None:
    compile_line, optimise_line, link_line, archive_line = zig_built.commands
    assert optimise_line.startswith("zig ld.lld -shared ") and " --lto-obj-path=optimised.o " in optimise_line
    assert " optimised.o " in link_line and "lto" not in link_line
    assert compile_line.startswith("zig c++ -target x86_64-linux-gnu.2.17 ") and " -Oz " in compile_line
    assert link_line.startswith("zig ld.lld -shared ") and archive_line.startswith("zig ar ")


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
    command = [sys.executable, "-c", script, str(slow), root]
    run = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, preexec_fn=heed_interrupts)
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
