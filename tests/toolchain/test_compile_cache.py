"""The compile cache: what is compiled again, and what a cache does that is damaged, full, shared or unwritable."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from toolchain_sources import (
    HOST,
    KERNEL,
    RELU,
    SOURCES,
)

from minbuild.errors import ToolchainFailed
from minbuild.toolchain import (
    BuildJob,
    BuildOutput,
    Builds,
    Target,
    build_library,
    find_toolchain,
)
from minbuild.toolchain.cache import Cache, user_cache
from minbuild.toolchain.process import Processes


def test_second_build_comes_from_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_library(SOURCES, HOST, find_toolchain())
    monkeypatch.setattr(Processes, "run", lambda *_, **__: pytest.fail("started a process"))
    assert build_library(SOURCES, HOST, find_toolchain()) == first


def test_an_archive_that_nobody_asked_for_is_not_made(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shared library is the same without it, and one that was built with an archive serves as well."""
    said: list[str] = []
    alone = build_library(SOURCES, HOST, find_toolchain(), progress=said.append, archive=False)
    assert sum(line.startswith("compiled") for line in said) == 3 and alone.archive == b""
    assert build_library(SOURCES, HOST, find_toolchain(), archive=False) == alone
    whole = build_library(SOURCES, HOST, find_toolchain())
    assert whole.archive.startswith(b"!<arch>") and whole.commands[:-1] == alone.commands
    assert replace(whole, archive=b"", commands=alone.commands) == alone
    monkeypatch.setattr(Processes, "run", lambda *_, **__: pytest.fail("started a process"))
    builds = Builds()
    assert builds[BuildJob(SOURCES, HOST, find_toolchain())] == whole
    assert builds[BuildJob(SOURCES, HOST, find_toolchain(), archive=False)] == whole


def test_only_the_changed_source_is_compiled(cache: Path) -> None:
    build_library(SOURCES, HOST, find_toolchain())
    said: list[str] = []
    changed = {**SOURCES, "src/kernels/relu.cc": RELU + b"// changed\n"}
    build_library(changed, HOST, find_toolchain(), progress=said.append)
    assert sorted({line.split(" (")[0] for line in said}) == [
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
        assert len({line.split(" (")[0] for line in said if line.startswith("compiled")}) == 3


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


_BUILD = """
import sys
from toolchain_sources import HOST, SOURCES
from minbuild.toolchain import build_library, find_toolchain
print("ready", flush=True)
sys.stdin.readline()
build_library(SOURCES, HOST, find_toolchain(), jobs=1, progress=lambda line: print(line, flush=True))
"""


def test_processes_that_share_a_cache_compile_every_object_once(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(Path(__file__).parent), *sys.path))}
    builders = [
        subprocess.Popen(
            [sys.executable, "-c", _BUILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(3)
    ]
    for builder in builders:
        assert builder.stdout and builder.stdout.readline() == "ready\n"
    for builder in builders:  # all of them stand before an empty cache
        assert builder.stdin
        builder.stdin.write("\n")
        builder.stdin.flush()
    lines = [line for builder in builders for line in builder.communicate()[0].splitlines()]
    assert [builder.returncode for builder in builders] == [0, 0, 0]
    compiled = [line.split(" (")[0] for line in lines if line.startswith("compiled")]
    monkeypatch.setenv("MINBUILD_CACHE", str(tmp_path / "another"))
    alone: list[str] = []
    build_library(SOURCES, HOST, find_toolchain(), progress=alone.append)
    assert sorted(compiled) == sorted(line.split(" (")[0] for line in alone if line.startswith("compiled"))


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
