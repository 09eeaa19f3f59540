"""Sessions from files, saving and exporting to files: what is mapped, what is named, where paths end."""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from case_sets import EVAL, GOLDEN, TRAIN, load, trainer
from memory_map import memory_map
from shared_library import shared_library

from minbuild.codegen.sources import emit_sources
from minbuild.ops import registry
from minbuild.planning.library_contents import COMPONENTS
from minbuild.training import c_api
from minbuild.training import library as device
from minbuild.training.library import Library, Session, TrainerError

CASE, BUILT = load(GOLDEN / "transfer"), trainer(GOLDEN / "transfer")  # has frozen parameters
IO = 8
TOO_LONG = 36  # ENAMETOOLONG


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """With all parts."""
    path = tmp_path_factory.mktemp("parts") / "all.so"
    sources = emit_sources(replace(BUILT.contents, components=frozenset(COMPONENTS)), registry())
    path.write_bytes(shared_library(sources))
    return Library(path)


class FromFiles(Session):
    """A session that maps its files itself."""

    def __init__(self, library: Library, plan: Path, checkpoint: Path | None) -> None:
        self.library, self._session = library, ctypes.POINTER(c_api.CSession)()
        options = c_api.COptions()
        paths = [None if p is None else os.fsencode(p) for p in (plan, checkpoint)]
        self.status = library.create_from_files(*paths, ctypes.byref(options), ctypes.byref(self._session))
        self.text = options.error.decode()
        self.parameters = {p.name.decode(): p for p in self._listed(4)} if not self.status else {}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "plan").write_bytes(BUILT.data)
    (tmp_path / "checkpoint").write_bytes(CASE.checkpoint)
    return tmp_path / "plan", tmp_path / "checkpoint"


def test_a_session_of_files_trains_like_one_of_bytes(library: Library, files: tuple[Path, Path]) -> None:
    session, other = FromFiles(library, *files), Session(library, BUILT.data, CASE.checkpoint)
    assert session.status == 0
    for each in (session, other):
        each.run(TRAIN, CASE.batch(0))
        each.optimizer_step()
    assert np.array_equal(session.run(EVAL, CASE.eval_batch())[0], other.run(EVAL, CASE.eval_batch())[0])
    assert session.checkpoint(True) == other.checkpoint(True)
    assert files[0].read_bytes() == BUILT.data and files[1].read_bytes() == CASE.checkpoint
    bare = FromFiles(library, files[0], None)  # its frozen parameters are nowhere
    assert bare.status == 4


def test_files_that_cannot_be_read_are_named(
    library: Library, files: tuple[Path, Path], tmp_path: Path
) -> None:
    plan, checkpoint = files
    (tmp_path / "empty").write_bytes(b"")
    for bad in (tmp_path / "nowhere", tmp_path / "empty", tmp_path):
        for given in ((bad, checkpoint), (plan, bad)):
            made = FromFiles(library, *given)
            assert made.status == IO and f"cannot read {bad}"[:150] in made.text and not made._session


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage/enabled").exists(), reason="no large pages")
@pytest.mark.parametrize("threads", [1, 2])
def test_frozen_parameters_are_mapped_in_large_pages_where_models_are_large(
    files: tuple[Path, Path], threads: int
) -> None:
    built = trainer(GOLDEN / "transfer", threads=threads)
    files[0].write_bytes(built.data)
    session = FromFiles(built.library, *files)
    (checkpoint,) = (m for m in memory_map() if m.path == str(files[1]))
    assert ("hg" in checkpoint.flags) is (threads > 1)
    session.close()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_nothing_stays_open_or_mapped(library: Library, files: tuple[Path, Path], tmp_path: Path) -> None:
    def held() -> tuple[int, int]:
        maps = Path("/proc/self/maps").read_text()
        return len(os.listdir("/proc/self/fd")), maps.count(str(tmp_path))

    def pages() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0])

    def use() -> None:
        session = FromFiles(library, *files)
        session.save(tmp_path / "saved", True)
        session.close()
        FromFiles(library, files[0], tmp_path / "nowhere").close()

    use()
    before, size = held(), pages()
    for _ in range(50):
        use()
    assert held() == before
    own = device.arena_size(library, BUILT.data) // 4096
    assert pages() - size < 25 * max(1, own), "sessions leave their memory behind"


@pytest.mark.parametrize("more", [-1, 0, 1, 2, 40])
def test_paths_end_within_their_room(library: Library, more: int, tmp_path: Path) -> None:
    """4,090 characters, with five for the temporary name and the end, are what the system takes: 4,096."""
    session = Session(library, BUILT.data, CASE.checkpoint)
    plain = f"{tmp_path}/saved"
    path = plain
    while len(path) < 4090 + more:
        path = path.replace(
            str(tmp_path) + "/", str(tmp_path) + ("//" if (4090 + more - len(path)) % 2 else "/./"), 1
        )
    assert len(path) == 4090 + more
    status = library.save_checkpoint(session._session, path.encode(), 1)
    if more <= 0:
        assert status == 0 and Path(plain).read_bytes() == session.checkpoint(True)
    else:
        text = session._session.contents.error.decode()
        assert status == IO and text.startswith("cannot write ") and not Path(plain).exists()
    assert [p.name for p in tmp_path.iterdir()] == (["saved"] if more <= 0 else [])


def test_exporting_to_a_file(library: Library, tmp_path: Path) -> None:
    session = Session(library, BUILT.data, CASE.checkpoint)
    name = next(iter(session.parameters))
    value = session.parameter(name).tobytes()
    piece = len(value).to_bytes(4, "little") + (1).to_bytes(4, "little")
    (tmp_path / "template").write_bytes(b"MBIM" + (1).to_bytes(4, "little") + piece)
    session.export_to(tmp_path / "template", tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").read_bytes() == value
    for bad, what in (("nowhere", "cannot read"), ("model.onnx", "not an intact export template")):
        with pytest.raises(TrainerError, match=what):
            session.export_to(tmp_path / bad, tmp_path / "other.onnx")
    assert not (tmp_path / "other.onnx").exists()
    with pytest.raises(TrainerError, match=r"cannot write .*: system error 2"):
        session.export_to(tmp_path / "template", tmp_path / "nowhere" / "model.onnx")
