"""Contents of large files: buffers one behind the other, which are not copied before they are written."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from minbuild.ir.pages import drop_pages

LEAST = 1 << 16  # bytes of an array that is worth a piece of its own
LEAST_IN_PIECES = 1 << 26  # bytes of a file that is worth not to be in memory as a whole


class Pieces:
    """The bytes of a file. Arrays are taken as they are, and may be mapped from another file: they must not change
    before the file is written."""

    def __init__(self) -> None:
        self._pieces: list[bytes | memoryview | np.ndarray] = []
        self._size = 0

    def append(self, piece: bytes | memoryview | np.ndarray) -> None:
        """Adds bytes, or the elements of an array in C order."""
        self._pieces.append(piece)
        self._size += len(piece) if isinstance(piece, bytes) else piece.nbytes

    def extend(self, other: Pieces) -> None:
        """Adds another file's content."""
        self._pieces += other._pieces
        self._size += len(other)

    def align(self, width: int) -> None:
        """Adds zeros up to a multiple of `width`."""
        if gap := -self._size % width:
            self.append(bytes(gap))

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes | memoryview]:
        for piece in self._pieces:
            yield raw_bytes(piece) if isinstance(piece, np.ndarray) else piece
            drop_pages(piece)

    def __bytes__(self) -> bytes:
        return b"".join(self)


FileContent = bytes | Pieces


def raw_bytes(array: np.ndarray) -> memoryview:
    """The elements of an array in C order; a copy only where they stand in another."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
