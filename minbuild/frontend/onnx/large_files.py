"""Large ONNX files without a copy of their weights: read with the weights left in the file, and written in pieces.

An ONNX file is a protobuf: a field is a number (a tag: 8 times the field's number, and how its length is found) before
its content. Only the lengths of a model, its graph, and the initializers in that are looked at here.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from onnx import GraphProto, ModelProto, StringStringEntryProto, TensorProto

from minbuild.ir import ElementType
from minbuild.ir.pieces import LEAST, LEAST_IN_PIECES, Pieces

GRAPH = ModelProto.GRAPH_FIELD_NUMBER
INITIALIZER = GraphProto.INITIALIZER_FIELD_NUMBER
RAW_DATA = TensorProto.RAW_DATA_FIELD_NUMBER
_FIXED = {1: 8, 5: 4}  # kind of a field -> its bytes
_VARINT, _LENGTH = 0, 2  # kinds of fields: a number of 7 bits a byte, and bytes behind such a number

# ------------------------------------------------------------------------------------------------------- Reading


def without_weights(path: Path) -> bytes | None:
    """The bytes of ONNX file `path` with its large initializers marked as stored outside, at their places in this same
    file. None where the file is small, cannot be read, or is none that this is understood of."""
    try:
        if path.stat().st_size < LEAST_IN_PIECES:
            return None
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return b"".join(_without_weights(data, path.name))
    except (OSError, ValueError, IndexError, DecodeError):
        return None


def _without_weights(data: mmap.mmap, name: str) -> Iterator[bytes]:
    for number, start, inside, end in _fields(data, 0, len(data)):
        if number != GRAPH:
            yield data[start:end]
            continue
        graph = b"".join(_hollow(data, name, *field) for field in _fields(data, inside, end))
        yield field_head(GRAPH, len(graph)) + graph


def _hollow(data: mmap.mmap, name: str, number: int, start: int, inside: int, end: int) -> bytes:
    """A field of a graph; of a large initializer, its place in file `name` instead of its elements."""
    if number != INITIALIZER or end - start < LEAST:
        return data[start:end]
    rest = b""
    place: tuple[int, int] | None = None
    for field, at, content, until in _fields(data, inside, end):
        if field == RAW_DATA:
            place = content, until - content
        elif until - at >= LEAST:  # elements in a field of their type: numpy has to make them
            return data[start:end]
        else:
            rest += data[at:until]
    tensor = TensorProto.FromString(rest)
    if place is None or tensor.external_data:
        return data[start:end]
    mark_external(tensor, name, *place)
    content_bytes = bytes(tensor.SerializeToString())
    return field_head(INITIALIZER, len(content_bytes)) + content_bytes


def without_elements(name: str, array: np.ndarray) -> TensorProto:
    """The tensor `name` in type and shape of `array`."""
    element = ElementType.of(array.dtype)
    assert element is not None, "readers refuse other types"
    return TensorProto(name=name, data_type=int(element), dims=array.shape)


def mark_external(tensor: TensorProto, file: str, offset: int, length: int) -> None:
    """Notes that the elements of `tensor` stand in `file` beside the model: `length` bytes from `offset` on."""
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", file), ("offset", offset), ("length", length)):
        tensor.external_data.append(StringStringEntryProto(key=key, value=str(value)))


_Field = tuple[int, int, int, int]  # number, and where the field, its content and the next one begin


def _fields(data: mmap.mmap, at: int, end: int) -> Iterator[_Field]:
    """The fields of a message between two places. Raises ValueError for bytes that are none."""
    while at < end:
        start = at
        tag, at = _varint(data, at)
        kind, inside = tag & 7, at
        if kind == _VARINT:
            _, at = _varint(data, at)
        elif kind == _LENGTH:
            length, inside = _varint(data, at)
            at = inside + length
        else:
            at += _FIXED.get(kind, end)
        if at > end:
            raise ValueError(f"byte {start}: no field")
        yield tag >> 3, start, inside, at


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    """A number of 7 bits a byte, and where the next one begins."""
    found = 0
    for shift in range(0, 64, 7):
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found, at
    raise ValueError(f"byte {at}: a number has more than 64 bits")


# ------------------------------------------------------------------------------------------------------- Writing


def in_pieces(model: ModelProto, large: Mapping[str, np.ndarray]) -> Pieces:
    """The file of a model whose graph has the tensors `large` as initializers with names only. Its bytes are those of
    the whole model: fields stand in the order of their numbers."""
    graph, pieces = Pieces(), Pieces()
    before, after = _around(model.graph, INITIALIZER)
    graph.append(before)
    for tensor in model.graph.initializer:
        parts: list[bytes | np.ndarray] = [bytes(tensor.SerializeToString(deterministic=True))]
        if (array := large.get(tensor.name)) is not None:
            head = without_elements(tensor.name, array)
            parts = [head.SerializeToString(deterministic=True), field_head(RAW_DATA, array.nbytes), array]
        _append_field(graph, INITIALIZER, parts)
    graph.append(after)
    before, after = _around(model, GRAPH)
    pieces.append(before)
    pieces.append(field_head(GRAPH, len(graph)))
    pieces.extend(graph)
    pieces.append(after)
    return pieces


def _append_field(pieces: Pieces, number: int, parts: Iterable[bytes | np.ndarray]) -> None:
    content = Pieces()
    for part in parts:
        content.append(part)
    pieces.append(field_head(number, len(content)))
    pieces.extend(content)


def _around(message: Message, number: int) -> tuple[bytes, bytes]:
    """The bytes of a message's fields before field `number`, and behind it."""
    before, after = type(message)(), type(message)()
    before.CopyFrom(message)
    after.CopyFrom(message)
    for field in message.DESCRIPTOR.fields:
        if field.number >= number:
            before.ClearField(field.name)
        if field.number <= number:
            after.ClearField(field.name)
    return before.SerializeToString(deterministic=True), after.SerializeToString(deterministic=True)


def field_head(number: int, length: int) -> bytes:
    """The bytes before the content of a field that has a length."""
    return _of_varint(number << 3 | _LENGTH) + _of_varint(length)


def _of_varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))
