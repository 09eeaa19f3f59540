"""The script and the replies of `templates/verify/runner.c`, which performs a script where no Python runs."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from minbuild.errors import VerificationFailed
from minbuild.ir import ElementType
from minbuild.ir.mapped import FileBytes
from minbuild.ir.size_report import Stack
from minbuild.verify.script import GRAPH_OF, Action, Results, TestScript

# Words of the script, as the runner has them.
_VERBS = (
    "create",
    "rate",
    "train",
    "eval",
    "optimizer",
    "reset",
    "gradients",
    "parameters",
    "save",
    "initialize",
    "copy",
    "train_and_update",
)
# What verbs whose stack is measured call.
_CALLS = {
    "create": "mb_create",
    "train": "mb_train_step",
    "train_and_update": "mb_train_and_update",
    "eval": "mb_eval_step",
    "optimizer": "mb_optimizer_step",
    "initialize": "mb_initialize",
    "save": "mb_write_checkpoint",
}


def encode(script: TestScript, garbage: int, watch: int = 0) -> bytes:
    """The bytes of `script` for the runner: the byte `garbage` that memory is filled with, `watch` (the task at each
    step in three bits, a seed above it), the sizes, then actions; everything in little-endian 32-bit words."""
    head = struct.pack(f"<III{len(script.sizes)}i", garbage, watch, len(script.sizes), *script.sizes)
    return b"".join((head, *(_action(a, script) for a in script.actions)))


def files_of(script: TestScript) -> dict[str, FileBytes]:
    """The checkpoints of `script`, as files that the runner reads beside it."""
    return {f"checkpoint.{number}": data for number, data in enumerate(script.checkpoints.values())}


def _action(action: Action, script: TestScript) -> bytes:
    head = struct.pack("<II", _VERBS.index(action.verb), bool(action.label))
    if action.verb == "create":
        return head + struct.pack("<I", list(script.checkpoints).index(action.operand))
    if action.verb == "rate":
        return head + struct.pack("<f", float(action.operand))
    if action.verb in GRAPH_OF:
        arrays = script.batches[action.operand]
        return head + struct.pack("<I", len(arrays)) + b"".join(map(_tensor, arrays))
    return head


def _tensor(array: np.ndarray) -> bytes:
    element = next(e for e in ElementType if e.dtype == array.dtype)
    dims = (*array.shape, *(0,) * (8 - array.ndim))
    return struct.pack("<II8I", element, array.ndim, *dims) + _blob(np.ascontiguousarray(array).tobytes())


def _blob(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def decode(reply: bytes, like: Results) -> dict[str, np.ndarray]:
    """The recorded tensors, each with a 32-bit size in front, in the order and with the types of `like`.
    Raises VerificationFailed when they are not that."""
    found: dict[str, np.ndarray] = {}
    for (name, array), data in zip(like.items(), _records(reply), strict=False):
        if name != "checkpoint" and len(data) != array.nbytes:
            raise VerificationFailed(
                f"the runner returned {len(data)} bytes for '{name}', expected {array.nbytes}."
            )
        found[name] = np.frombuffer(data, array.dtype) if name == "checkpoint" else _as(data, array)
    if len(found) != len(like):
        raise VerificationFailed(f"the runner recorded {len(found)} tensors, expected {len(like)}.")
    return found


def stack_of(reply: bytes) -> Stack:
    """The depth of the stack: the last piece of a reply, a 32-bit number for each verb. Raises
    VerificationFailed."""
    pieces = list(_records(reply))
    if not pieces or len(pieces[-1]) != 4 * len(_VERBS):
        raise VerificationFailed("the runner did not say how deep the stack was.")
    depths = dict(zip(_VERBS, struct.unpack(f"<{len(_VERBS)}I", pieces[-1]), strict=True))
    return Stack(tuple((call, depths[verb]) for verb, call in _CALLS.items() if depths[verb]))


def _as(data: bytes, like: np.ndarray) -> np.ndarray:
    return np.frombuffer(data, like.dtype).reshape(like.shape)


def _records(reply: bytes) -> Iterator[bytes]:
    at = 0
    while at + 4 <= len(reply):
        (size,) = struct.unpack_from("<I", reply, at)
        yield reply[at + 4 : at + 4 + size]
        at += 4 + size
