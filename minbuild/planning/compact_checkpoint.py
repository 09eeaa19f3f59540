"""Compact checkpoints: the parameters of one plan without names and shapes, for flash that a device only reads.
`kernels/runtime/checkpoint_read.cc` has the layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from minbuild.errors import BadInput
from minbuild.frontend.seal import sums
from minbuild.ir import Checkpoint, ElementType
from minbuild.planning.plan_encoding import decode_plan

_IDENTIFIER = b"MBCP"
_HEAD = 8  # bytes before the parameters


def compact_checkpoint(checkpoint: Checkpoint, plan: bytes) -> bytes:
    """The parameters of `checkpoint` for the encoded `plan`. Raises BadInput for a checkpoint with more than
    parameters, which this form has no place for."""
    more = (
        ("no values", checkpoint.nominal),
        ("optimizer state", any(group.step or group.moments for group in checkpoint.groups)),
        ("properties", bool(checkpoint.properties)),
    )
    for what, there in more:
        if there:
            raise BadInput(
                f"--initial-checkpoint compact: the checkpoint has {what}, and a compact one has parameters "
                "only. Use --initial-checkpoint ort."
            )
    tables = decode_plan(plan)
    held = {parameter.name: parameter for parameter in checkpoint.parameters}
    whole = bytearray(compact_end(tables))
    whole[4:_HEAD] = _IDENTIFIER
    for name, at, _ in _places(tables):
        values = held[name].data
        assert values is not None, "only nominal checkpoints lack values"
        data = values.tobytes()
        whole[at : at + len(data)] = data
    simple, ordered = sums(bytes(whole))
    ordered = (ordered + int(tables["fingerprint"])) % (1 << 32)
    return bytes(whole) + simple.to_bytes(4, "little") + ordered.to_bytes(4, "little")


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
