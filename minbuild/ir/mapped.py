"""Files that are mapped in place of being read: their pages come into memory as they are used, and leave it when they
are dropped."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import numpy as np

from minbuild.ir.pieces import LEAST_IN_PIECES

FileBytes = bytes | memoryview  # a file's bytes, in memory or mapped
_PART = 1 << 24  # bytes that are in memory at a time
_EVERY = 0.01  # seconds between drops


def map_large(path: Path) -> memoryview | None:
    """The bytes of a file that is large enough to be mapped, read-only; else None, as on Windows, where
    a mapped file cannot be replaced. Raises OSError."""
    if os.name != "posix" or path.stat().st_size < LEAST_IN_PIECES:
        return None
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


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


def drop_pages(data: object) -> None:
    """Pages of a mapped file, given as a view or as an array, leave the memory and come back where they are read.
    Nothing happens to other data, or where the system has no way."""
    mapped = data.obj if isinstance(data, memoryview) else getattr(data, "_mmap", None)
    if isinstance(mapped, np.ndarray):
        mapped = getattr(mapped, "_mmap", None)
    if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


@contextmanager
def dropping(data: object) -> Iterator[None]:
    """Drops the pages of `data` again and again, while other code reads it once from its beginning to its end."""
    ended = threading.Event()

    def drop() -> None:
        while not ended.wait(_EVERY):
            drop_pages(data)

    thread = threading.Thread(target=drop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        drop_pages(data)
