"""Compact checkpoints: the parameters of one plan without names and shapes, for flash that a device only reads.
`kernels/runtime/checkpoint_read.cc` has the layout."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from minbuild.errors import BadInput
from minbuild.frontend.checkpoint import COMPACT
from minbuild.frontend.seal import sums
from minbuild.ir import Checkpoint, ElementType
from minbuild.ir.mapped import FileBytes, no_room
from minbuild.ir.pages import drop_pages
from minbuild.ir.pieces import LEAST_IN_PIECES, raw_bytes
from minbuild.planning.plan_encoding import decode_plan

_HEAD, _SUMS = 8, 8  # bytes before and behind the parameters
_OPTION = "--initial-checkpoint compact"


def compact_checkpoint(checkpoint: Checkpoint, plan: FileBytes, wish: str = _OPTION) -> FileBytes:
    """The parameters of `checkpoint` for the encoded `plan`; large ones are mapped from a file without a name. Raises
    BadInput for a checkpoint with more than parameters, which this form has no place for: `wish` begins the message."""
    more = (
        ("no values", checkpoint.nominal),
        ("optimizer state", any(group.step or group.moments for group in checkpoint.groups)),
        ("properties", bool(checkpoint.properties)),
    )
    for what, there in more:
        if there:
            raise BadInput(
                f"{wish}: the checkpoint has {what}, and a compact one has parameters only. Use "
                "--initial-checkpoint ort."
                if wish == _OPTION
                else f"{wish}. It has {what} besides, and the compact one that takes its place has parameters only. "
                "Remove them."
            )
    tables = decode_plan(plan)
    held = {parameter.name: parameter for parameter in checkpoint.parameters}
    end = compact_end(tables)
    whole = _room(end + _SUMS)
    whole[4:_HEAD] = np.frombuffer(COMPACT, np.uint8)
    for name, at, _ in _places(tables):
        values = held[name].data
        assert values is not None, "only nominal checkpoints lack values"
        whole[at : at + values.nbytes] = np.frombuffer(raw_bytes(values), np.uint8)
        drop_pages(values)
        drop_pages(whole)
    simple, ordered = sums(whole[:end].data)
    ordered = (ordered + int(tables["fingerprint"])) % (1 << 32)
    whole[end:] = np.array([simple, ordered], "<u4").view(np.uint8)
    drop_pages(whole)
    return whole.data.toreadonly() if isinstance(whole, np.memmap) else whole.tobytes()


def _room(size: int) -> np.ndarray:
    """`size` zeros, in a file without a name where they are many. Raises BadInput where the disk has no room."""
    if size < LEAST_IN_PIECES:
        return np.zeros(size, np.uint8)
    try:
        with tempfile.TemporaryFile(prefix="minbuild-checkpoint-") as file:
            file.truncate(size)
            return np.memmap(file, np.uint8, "r+", shape=(size,))
    except OSError as error:
        raise no_room(size, error) from error


def compact_end(tables: Mapping[str, Any]) -> int:
    """Where the sums of a compact checkpoint begin, by the tables of a decoded plan."""
    ends = (at + size for _, at, size in _places(tables))
    return -(-max((_HEAD + int(tables["trainable_bytes"]), *ends)) // 8) * 8


def _places(tables: Mapping[str, Any]) -> Iterator[tuple[str, int, int]]:
    """Every parameter: its name, where it is in a compact checkpoint, and its bytes."""
    names, shapes, exprs = bytes(tables["names"]), tables["shapes"].tolist(), tables["exprs"].tolist()
    tensors, trained = tables["tensors"].tolist(), int(tables["trained"])
    end = _HEAD + int(tables["trainable_bytes"])
    for number, (name, tensor, *_) in enumerate(tables["parameters"].tolist()):
        place, shape, _, element, _ = tensors[int(tensor)]
        dims = shapes[shape + 1 : shape + 1 + shapes[shape]]
        size = (
            prod(exprs[dim][0] for dim in dims) * ElementType(element).size
        )  # parameters have no free sizes
        at = _HEAD + exprs[place][0] if number < trained else end
        if number >= trained:
            end += -(-size // 8) * 8
        yield names[int(name) : names.index(b"\0", int(name))].decode(), at, size
