"""Pages of mapped files: those that were read leave the memory before it has all of them."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_EVERY = 0.01  # seconds between drops


def drop_pages(data: object) -> None:
    """Pages of a mapped file, given as a view or as an array, leave the memory and come back where they are read.
    Nothing happens to other data, or where the system has no way."""
    mapped = data
    while mapped is not None and not isinstance(mapped, mmap.mmap):
        mapped = mapped.obj if isinstance(mapped, memoryview) else getattr(mapped, "base", None)
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
