"""Large pages: asked for by sessions of libraries with threads or packed products, whose models read much memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from case_sets import load, trainer
from packed_model import packed_set
from places import GOLDEN

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
@pytest.mark.parametrize(("packed", "threads", "asks"), [(False, 1, False), (True, 1, True), (True, 2, True)])
def test_libraries_ask_for_large_pages(tmp_path, packed, threads, asks):
    case = load(packed_set(tmp_path) if packed else GOLDEN / "mse")
    built = trainer(case.folder, threads=threads)
    assert bool(built.contents.large_pages) is asks
    trains = Session(built.library, built.data, case.checkpoint)
    name = next(name for name in trains.parameters if trains.is_trained(name))
    assert ("hg" in flags_of(trains.gradient(name).ctypes.data)) is asks
    trains.close()
