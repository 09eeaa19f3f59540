"""Large files are mapped: their pages leave the memory as they are passed over."""

from __future__ import annotations

import mmap
import os
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from minbuild.errors import BadInput
from minbuild.frontend.files import read_shared
from minbuild.ir.mapped import file_bytes, map_large, parts_of, sha256_of, write_bytes
from minbuild.ir.pages import drop_pages, dropping
from minbuild.ir.pieces import LEAST_IN_PIECES, Pieces

pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="pages cannot be dropped here")
SIZE = LEAST_IN_PIECES + 5


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mapped") / "large"
    path.write_bytes(np.random.default_rng(3).bytes(SIZE))
    return path


def resident() -> int:
    """Bytes of this process that are in memory and stand in a file."""
    return int(Path("/proc/self/statm").read_text().split()[2]) * os.sysconf("SC_PAGE_SIZE")


def test_only_large_files_are_mapped(large: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.write_bytes(b"few bytes")
    assert map_large(small) is None and read_shared(small) == b"few bytes"
    found = read_shared(large)
    assert isinstance(found, memoryview) and found.readonly and len(found) == SIZE
    assert read_shared(large) is found, "one map serves all readers"


def test_parts_are_the_whole(large: Path, tmp_path: Path) -> None:
    data = read_shared(large)
    assert b"".join(parts_of(data)) == large.read_bytes()
    assert list(parts_of(b"in memory")) == [b"in memory"]
    assert sha256_of(data) == sha256(large.read_bytes()).hexdigest()
    write_bytes(tmp_path / "copy", data)
    assert (tmp_path / "copy").read_bytes() == data


def test_a_replaced_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(SIZE))
    before = read_shared(path)
    (tmp_path / "new").write_bytes(b"\1" * SIZE)
    (tmp_path / "new").replace(path)
    after = read_shared(path)
    assert before[-1] == 0 and after[-1] == 1


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system shows no resident set")
def test_dropped_pages_are_not_in_memory(large: Path) -> None:
    data = read_shared(large)
    drop_pages(data)
    least = resident()
    assert sum(bytes(data)) > 0 and resident() > least + SIZE // 2
    drop_pages(data)
    assert resident() < least + SIZE // 4
    for _ in parts_of(data):
        pass
    sha256_of(data)
    assert resident() < least + SIZE // 4
    array = np.memmap(large, np.uint8, "r")
    with dropping(array):
        total = int(array.sum())
    assert resident() < least + SIZE // 4 and total == sum(bytes(data))


def test_pieces_of_mapped_files_are_stored_as_they_are(large: Path) -> None:
    """Copies in C order come into memory one at a time, and what was written of one leaves it."""
    small = Pieces()
    small.append(b"few bytes")
    assert file_bytes(small) == b"few bytes"
    array = np.memmap(large, "<u2", "r", shape=(SIZE // 8, 4))
    pieces, expected = Pieces(), b""
    for column in range(4):
        pieces.append(array[:, column : column + 1].T)
        expected += array[:, column].tobytes()
    pieces.append(b"end")
    data = file_bytes(pieces)
    assert isinstance(data, memoryview) and data.readonly and data == expected + b"end"


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system shows no resident set")
def test_views_of_a_mapped_file_are_stored_without_its_pages(large: Path) -> None:
    pieces = Pieces()
    for part in np.split(np.memmap(large, np.uint8, "r", shape=(1 << 26,)), 16):
        pieces.append(part.reshape(-1, 4).T)
    least = resident()
    data = file_bytes(pieces)
    assert resident() < least + SIZE // 4 and len(data) == 1 << 26


def test_a_disk_without_room_is_named(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("minbuild.ir.mapped.tempfile.TemporaryFile", full)
    pieces = Pieces()
    pieces.append(np.memmap(large, np.uint8, "r"))
    with pytest.raises(BadInput, match=rf"{SIZE:,} bytes .* cannot be written: No space .* TMPDIR"):
        file_bytes(pieces)
