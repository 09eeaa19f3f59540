"""Files that are mapped in place of being read: their pages come into memory as they are used, and leave it when they
are dropped."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from minbuild.errors import BadInput
from minbuild.ir.pages import drop_pages
from minbuild.ir.pieces import LEAST_IN_PIECES, Pieces

FileBytes = bytes | memoryview  # a file's bytes, in memory or mapped
_PART = 1 << 24  # bytes that are in memory at a time


def map_large(path: Path) -> memoryview | None:
    """The bytes of a file that is large enough to be mapped, read-only; else None, as on Windows, where
    a mapped file cannot be replaced. Raises OSError."""
    if os.name != "posix" or path.stat().st_size < LEAST_IN_PIECES:
        return None
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def file_bytes(pieces: Pieces) -> FileBytes:
    """The bytes of `pieces`: many of them in a file without a name, which is mapped. Raises BadInput where the disk has
    no room."""
    if os.name != "posix" or len(pieces) < LEAST_IN_PIECES:
        return bytes(pieces)
    try:
        with tempfile.TemporaryFile(prefix="minbuild-") as file:
            for piece in pieces:
                for part in parts_of(piece):
                    file.write(part)
            file.flush()
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise no_room(len(pieces), error) from error


def no_room(size: int, error: OSError) -> BadInput:
    """The error for `size` bytes that a file without a name cannot take because of `error`."""
    return BadInput(
        f"{tempfile.gettempdir()}: {size:,} bytes of parameters cannot be written: {error.strerror}. Free some space, "
        "or set TMPDIR to another folder."
    )


def parts_of(data: FileBytes) -> Iterator[FileBytes]:
    """The bytes of a file in order. Parts of a mapped one have left the memory when the next begins."""
    if isinstance(data, bytes):
        yield data
        return
    for start in range(0, len(data), _PART):
        yield data[start : start + _PART]
        drop_pages(data)


def write_bytes(path: Path, data: FileBytes) -> None:
    """Writes `data` as file `path`. Raises OSError."""
    if isinstance(data, bytes):
        path.write_bytes(data)
        return
    with path.open("wb") as file:
        for part in parts_of(data):
            file.write(part)


def sha256_of(data: FileBytes) -> str:
    """The digest of a file, in hexadecimal."""
    found = sha256()
    for part in parts_of(data):
        found.update(part)
    return found.hexdigest()
