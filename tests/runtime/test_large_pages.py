"""Large pages: asked for by sessions of libraries with threads or packed products, whose models read much memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from case_sets import load, trainer
from memory_map import memory_map
from packed_model import packed_set
from places import GOLDEN

from minbuild.training.library import Session


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage/enabled").exists(), reason="no large pages")
@pytest.mark.parametrize(("packed", "threads", "asks"), [(False, 1, False), (True, 1, True), (True, 2, True)])
def test_libraries_ask_for_large_pages(tmp_path, packed, threads, asks):
    case = load(packed_set(tmp_path) if packed else GOLDEN / "mse")
    built = trainer(case.folder, threads=threads)
    assert bool(built.contents.large_pages) is asks
    trains = Session(built.library, built.data, case.checkpoint)
    name = next(name for name in trains.parameters if trains.is_trained(name))
    address = trains.gradient(name).ctypes.data
    assert ("hg" in next(m.flags for m in memory_map() if address in m.addresses)) is asks
    trains.close()
