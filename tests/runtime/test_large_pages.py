"""Large pages: asked for by sessions of libraries with threads, whose models read much memory, and by no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from case_sets import TRAIN, load, persistent, trainer
from packed_model import packed_set

from minbuild.training.library import Session

MAPS = Path("/proc/self/smaps")


def flags_of(address: int) -> set[str]:
    """How the system marks the piece of memory that has this address."""
    inside = False
    for line in MAPS.read_text("ascii").splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= address < int(found[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return set(line.split()[1:])
    raise AssertionError("no memory there")


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage/enabled").exists(), reason="no large pages")
def test_libraries_with_threads_ask_for_large_pages(tmp_path):
    case = load(packed_set(tmp_path))
    results = []
    for threads, asks in ((1, False), (2, True)):
        built = trainer(case.folder, threads=threads)
        trains = Session(built.library, built.data, case.checkpoint)
        name = next(name for name in trains.parameters if trains.is_trained(name))
        assert ("hg" in flags_of(trains.gradient(name).ctypes.data)) is asks
        trains.run(TRAIN, case.batch(0))
        trains.optimizer_step()
        results.append(persistent(trains, built))
        trains.close()
    assert results[0] == results[1]
