"""The dense encoding of a plan: the tables of `plan_encoding`, with expressions, parameters and steps as streams of
numbers of 7 bits a byte, tensors in order of use, and names without places.

A device reads it in place and in order: expressions when sizes change, steps as they run; nothing is decoded into
memory but the parameters of the step that runs. The file:

    0  the version, and an identifier, 4 bytes each
    8  numbers: the elements of each vector, then the scalars, in the orders of VECTORS and SCALARS
       expressions: constants by size as differences, then operations as (distance of the first operand, operator) and
           the second operand; the free dimensions stand before both and take no bytes
       for programs: the numbers of arguments and of parameters of each kernel
       parameters of steps, zigzag, equal lists once; then the steps of each graph
       the vectors, the last in VECTORS first; the file ends with the first, at a multiple of 8

A step is the number of its kind (kernel, outputs it adds to, loop, place of its parameters), then each argument as its
distance from the first tensor that no step had yet, which 0 names; behind the last step of a loop stand the bytes and
the tensors to go back. Places are bytes behind the numbers at the front. The first tensors are those of the parameters,
then those of the inputs and outputs; one that many steps name stands there again, so that it stays near. `names` has
the texts of these in their order, then of moments, free dimensions and, where the library has texts, kernels. What a
tensor is besides its place stands before its shape, from the lowest bit: type (6 bits), 1 where it is its own size
further back in every round of a loop, 1 where it is further on, region (3 bits), rank.

Indices have 8 bits where nothing has more than 256 of them, otherwise 16. Names stand there as they are, or those of
parameters are shared: each stands behind a byte, one more than the bytes at its front that it has from the one before
it, and without these. Each form has an identifier of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

import numpy as np

_KIND, _GRAPH = "<u1,<u1,<u1,<u1,<u2", "<u2,<u2,<u2,<u2,<u2,<u2,<u2"
_INDEX = {True: "<u1", False: "<u2"}
# The vectors: the name and the type, where a number is that of indices.
VECTORS: dict[str, str | int] = {
    "constants": "<u8",
    "kernels": "<u4",
    "defaults": "<i4",
    "graphs": _GRAPH,  # first step, steps, rounds, first port, inputs, outputs, first new tensor
    "steps": _KIND,  # kernel, arguments, accumulate, loop, parameters
    "tensors": 2,
    "heads": "<u2",  # of shapes; empty with 16-bit indices, where these stand in place of their numbers
    "shapes": 1,
    "orders": 1,  # of the parameters, empty where they are 0, 1, 2, ...
    "names": "<u1",
}
COUNTED = ("parameters", "ports", "moments")  # vectors that have no bytes of their own
SCALARS = (
    *("trainable_bytes", "persistent_bytes", "trained", "arena", "expr_count", "constant_count"),
    *("rollback_bytes", "fingerprint", "draw_bytes"),
)
IDENTIFIERS = (
    b"MBTD",
    b"MBTB",
    b"MBTP",
    b"MBTS",
)  # by form: 1 for 8-bit indices, and 2 more for shared names
MOST_SHARED = 254  # bytes at the front of a name
_HEAD = 8


def varint(number: int) -> bytes:
    """The bytes of a number of a stream: 7 bits each, the high ones first, and 128 in all but the last."""
    assert number >= 0
    groups = [number & 127]
    while number := number >> 7:
        groups.append(number & 127 | 128)
    return bytes(reversed(groups))


@dataclass
class NumberReader:
    """Numbers of a stream. Raises ValueError behind its end, and when more is read than a sound plan can have."""

    data: bytes
    at: int = 0
    budget: int = 0

    def number(self) -> int:
        number = 0
        while self.at < len(self.data) and self.budget > 0:
            byte = self.data[self.at]
            self.at, self.budget = self.at + 1, self.budget - 1
            number = (number << 7 | byte & 127) & 0xFFFFFFFF
            if byte < 128:
                return number
        raise ValueError(f"byte {self.at} of a stream: it ends within a number; the plan is damaged")


@dataclass
class DensePlan:
    """The parts of a file: `vectors` by the names in VECTORS, as arrays; `counts` by those in COUNTED; `scalars` by
    those in SCALARS; `stream` has the bytes between the numbers at the front and the vectors. Indices have 8 bits if
    `small`; names are `shared` or as they are."""

    version: int
    small: bool
    shared: bool
    vectors: dict[str, np.ndarray]
    counts: dict[str, int]
    scalars: dict[str, int]
    stream: bytes

    def encode(self) -> bytes:
        """The file."""
        vectors = {n: np.asarray(v, dtype_of(n, self.small)) for n, v in self.vectors.items()}
        numbers = [len(vectors[n]) for n in VECTORS] + [self.counts[n] for n in COUNTED]
        numbers += [self.scalars[n] for n in SCALARS]
        front = struct.pack("<I", self.version) + IDENTIFIERS[self.small + 2 * self.shared]
        front += b"".join(map(varint, numbers)) + self.stream
        back = b"".join(vectors[n].tobytes() for n in reversed(VECTORS))
        return front + bytes(-(len(front) + len(back)) % 8) + back

    @staticmethod
    def decode(data: bytes) -> DensePlan:
        """The parts of a file. Raises ValueError for what is none."""
        if len(data) < _HEAD or len(data) % 8 or data[4:8] not in IDENTIFIERS:
            raise ValueError("no dense plan, or one that is cut off")
        form = IDENTIFIERS.index(data[4:8])
        small, shared = form % 2 == 1, form > 1
        reader = NumberReader(data, _HEAD, budget=len(data))
        counts = {n: reader.number() for n in (*VECTORS, *COUNTED)}
        scalars = {n: reader.number() for n in SCALARS}
        vectors, end = {}, len(data)
        for name in VECTORS:
            dtype = np.dtype(dtype_of(name, small))
            start = end - counts[name] * dtype.itemsize
            if start < reader.at:
                raise ValueError(
                    f"{counts[name]} {name} are more than a plan of this size has; it is damaged"
                )
            vectors[name] = np.frombuffer(data[start:end], dtype)
            end = start
        (version,) = struct.unpack_from("<I", data)
        return DensePlan(
            version,
            small,
            shared,
            vectors,
            counts={n: counts[n] for n in COUNTED},
            scalars=scalars,
            stream=data[reader.at : end],
        )


def share_names(texts: Sequence[bytes], parameters: int) -> bytes:
    """`texts` with the bytes at the front of each of the first `parameters` that it has from the one before it as
    their number."""
    pool, before = bytearray(), b""
    for text in texts[:parameters]:
        same = len(commonprefix((before, text[:MOST_SHARED])))
        pool += bytes([same + 1]) + text[same:] + b"\0"
        before = text
    return bytes(pool) + b"".join(text + b"\0" for text in texts[parameters:])


def whole_names(pool: bytes, parameters: int) -> bytes:
    """The inverse of `share_names`. Raises ValueError for a pool that is none."""
    texts, at, before = bytearray(), 0, b""
    for _ in range(parameters):
        end = pool.find(0, at + 1)
        if at >= len(pool) - 1 or not 0 < pool[at] <= len(before) + 1 or end < 0:
            raise ValueError(f"byte {at} of the names is not where one may start; the plan is damaged")
        before = before[: pool[at] - 1] + pool[at + 1 : end]
        texts += before + b"\0"
        at = end + 1
    return bytes(texts) + pool[at:] or b"\0"


def dtype_of(vector: str, small: bool) -> Any:
    """The type of an element of a vector, for numpy."""
    kind = VECTORS[vector]
    if isinstance(kind, str):
        return kind
    return _INDEX[small] if kind == 1 else ",".join([_INDEX[small]] * kind)


def stride(vector: str, small: bool) -> int:
    """Bytes of an element of one of VECTORS or COUNTED."""
    return 0 if vector in COUNTED else np.dtype(dtype_of(vector, small)).itemsize
