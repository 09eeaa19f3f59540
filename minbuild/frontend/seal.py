"""The seal of checkpoints that minbuild writes: a checksum, the model's fingerprint, and counters of random draws,
where ONNX Runtime does not look. `kernels/runtime/checksum.h` has the layout."""

from __future__ import annotations

import struct

import numpy as np

from minbuild.ir import OptimizerGroup, Seal
from minbuild.ir.mapped import FileBytes

_SUMS = struct.Struct("<II")
_PROGRESS = struct.Struct("<qff")  # steps, learning rate, nothing; behind the draws
_CHUNK = 1 << 20  # bytes summed at once
_MODULUS = 1 << 32


def is_sealed(data: FileBytes) -> bool:
    """True if the file is sealed: the position of its root table says so."""
    return len(data) > 64 and int.from_bytes(data[:4], "little") & ~0x17 == 64


def read_seal(data: FileBytes) -> Seal | None:
    """The seal of a file, None if it has none. Raises ValueError for a file that is damaged."""
    if not is_sealed(data):
        return None
    end = len(data) - _SUMS.size
    simple, ordered = sums(memoryview(data)[:end])
    found = _SUMS.unpack_from(data, end)
    if found[0] != simple:
        raise ValueError("its checksum differs")
    draws = _counters(data, end)[: -_PROGRESS.size]
    return Seal((found[1] - ordered) % _MODULUS, struct.unpack(f"<{len(draws) // 8}q", draws))


def _counters(data: FileBytes, end: int) -> bytes:
    """The counters before `end`, which stand behind their number of bytes. That is a multiple of 8, and in its place
    would be the upper half of a counter if they were fewer."""
    for size in range(_PROGRESS.size + 8, end - 4, 8):
        if int.from_bytes(data[end - size - 4 : end - size], "little") == size:
            return bytes(data[end - size : end])
    raise ValueError("it has no counters")


def sums(data: FileBytes) -> tuple[int, int]:
    """Fletcher's sums of bytes modulo 2^32."""
    every = np.frombuffer(data, np.uint8)
    simple = ordered = 0
    for start in range(0, len(every), _CHUNK):
        piece = every[start : start + _CHUNK].astype(np.uint64)
        ordered += len(piece) * simple + int(np.dot(piece, np.arange(len(piece), 0, -1, dtype=np.uint64)))
        simple += int(piece.sum())
    return simple % _MODULUS, ordered % _MODULUS


def sealed(data: bytes, seal: Seal, group: OptimizerGroup) -> bytes:
    """The unsealed file with a seal; `group` has the step count and the learning rate. `data` is that file, `seal`
    has the fingerprint and the counts."""
    root = int.from_bytes(data[:4], "little")
    gap = next(n for n in range(0, 128, 8) if (root + n) & ~0x17 == 64)
    counters = struct.pack(f"<{len(seal.draws)}q", *seal.draws)
    counters += _PROGRESS.pack(group.step, group.initial_learning_rate, 0)
    whole = (root + gap).to_bytes(4, "little") + data[4:8] + bytes(gap) + data[8:]
    whole += bytes(-len(whole) % 8) + len(counters).to_bytes(4, "little") + counters
    simple, ordered = sums(whole)
    return whole + _SUMS.pack(simple, (ordered + seal.fingerprint) % _MODULUS)
