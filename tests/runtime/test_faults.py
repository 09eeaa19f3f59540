"""Faults of saving: every system call of saving, loading and creating fails in turn, and power is lost before each, on
a disk in memory that keeps what POSIX promises and nothing more (tests/faults); several processes share one path."""

from __future__ import annotations

import multiprocessing
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from case_sets import GOLDEN, load, trainer
from places import TESTS
from programs import CXX, run

from minbuild.codegen.sources import emit_sources
from minbuild.ops import registry
from minbuild.toolchain import build_library, find_toolchain, host_target
from minbuild.training.library import TrainerError

FAULTS = TESTS / "faults"


@pytest.mark.parametrize("name", ["dense_fixed"])
def test_the_old_or_the_new_checkpoint_survives_every_fault(name: str, tmp_path: Path) -> None:
    """files.cc is compiled for the simulated disk; everything else is the library as it ships."""
    built = trainer(GOLDEN / name)
    sources = emit_sources(built.contents, registry())
    for path, data in sources.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    (tmp_path / "library.a").write_bytes(build_library(sources, host_target(), find_toolchain()).archive)
    (tmp_path / "plan").write_bytes(built.data)
    (tmp_path / "checkpoint").write_bytes(load(GOLDEN / name).checkpoint)
    ours = ("src/runtime/files.cc", *(str(FAULTS / n) for n in ("faults.cc", "disk.cc")), "library.a")
    flags = ("-w", "-O1", "-g", "-fsanitize=undefined", "-fno-sanitize-recover=all")
    run(*CXX, *flags, f"-I{FAULTS}", "-Iinclude", "-Isrc", *ours, "-o", "faults", cwd=tmp_path)
    said = run("./faults", "plan", "checkpoint", cwd=tmp_path)
    assert said.splitlines()[-1] == "0 experiments went wrong", said


def _save(path: str, times: int, failures: Any) -> None:
    case = load(GOLDEN / "dense_fixed")
    session = trainer(case.folder).session(case.checkpoint)
    for _ in range(times):
        try:
            session.save(path, True)
        except TrainerError:
            failures.value += 1


def test_processes_that_save_to_one_path_hurt_neither_each_other_nor_a_reader(tmp_path: Path) -> None:
    case = load(GOLDEN / "dense_fixed")
    session, path = trainer(case.folder).session(case.checkpoint), tmp_path / "checkpoint"
    session.save(path, True)
    context = multiprocessing.get_context("fork")
    failures = context.Value("i", 0)
    writers = [context.Process(target=_save, args=(str(path), 300, failures)) for _ in range(2)]
    for writer in writers:
        writer.start()
    loads = 0
    while any(writer.is_alive() for writer in writers):
        session.load(path.read_bytes())  # refuses what is not whole
        loads += 1
    for writer in writers:
        writer.join()
    assert failures.value == 0 and loads > 10 and all(w.exitcode == 0 for w in writers)
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]


def test_only_regular_files_are_replaced_and_they_keep_their_mode(tmp_path: Path) -> None:
    case = load(GOLDEN / "dense_fixed")
    session, path = trainer(case.folder).session(case.checkpoint), tmp_path / "checkpoint"
    session.save(path, False)
    for mode in (0o640, 0o000):
        path.chmod(mode)
        session.save(path, True)
        assert stat.S_IMODE(path.stat().st_mode) == mode
    for name, make in (("pipe", os.mkfifo), ("folder", os.mkdir)):
        make(tmp_path / name)
        with pytest.raises(TrainerError, match="system error 17"):
            session.save(tmp_path / name, True)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(TrainerError, match="system error 17"):
        session.save(tmp_path / "link", True)
    with pytest.raises(TrainerError, match="cannot write .*nowhere/x: system error 2"):
        session.save(tmp_path / "nowhere" / "x", True)
