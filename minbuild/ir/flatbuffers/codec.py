"""Flatbuffers by schema: decode hostile bytes into plain data, encode plain data into bytes.

Tables are dicts keyed by field name, strings are `str`, vectors of scalars and of structs are numpy arrays,
other vectors are lists. A union is the dict of the table it holds, beside the number of that table in the field
named `<field>_type`. An absent scalar reads as its default, anything else that is absent as None. Every problem is a
`ValueError` that says which byte is wrong; the caller knows the file's name and adds it.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from typing import Any

import flatbuffers
import numpy as np

from minbuild.ir.flatbuffers.schema import Field, Schema, Table, Type, parse_schema, tag_of
from minbuild.ir.pieces import LEAST, LEAST_IN_PIECES, Pieces, raw_bytes

__all__ = ["Schema", "decode", "encode", "encode_pieces", "parse_schema"]

MAX_DEPTH = 64  # nesting of tables: deeper than any format here, far from Python's own limit
_SHARING = 16  # how many times a file's own size its decoded content may be, when offsets share objects
_MOST = 2**31 - 1  # bytes of a builder
_ROOM = 1 << 24  # for what is not in arrays
_HEAD = 256  # about the bytes that stand beside an array
_BYTE = Type("scalar", "ubyte", np.dtype("u1"), 1)

# ----------------------------------------------------------------------------------------------------- Decode


def decode(schema: Schema, data: bytes | memoryview) -> dict[str, Any]:
    """The root table of `data` as a dict. Vectors of scalars and structs are read-only views into `data` (not
    necessarily aligned). Time and memory are linear in the size of `data`, whatever its bytes are."""
    return _Decoder(schema, data).root()


class _Decoder:
    def __init__(self, schema: Schema, data: bytes | memoryview) -> None:
        self.schema, self.data, self.size = schema, memoryview(data).cast("B"), len(data)
        self.budget = _SHARING * self.size + 4096

    def root(self) -> dict[str, Any]:
        if self.size < 8:
            raise ValueError(f"{self.size} bytes are too few for a file of this kind; it is empty or cut off")
        if self.schema.identifier and bytes(self.data[4:8]) != self.schema.identifier.encode():
            raise ValueError(
                f"bytes 4 to 7 are {bytes(self.data[4:8])!r} instead of {self.schema.identifier.encode()!r}"
            )
        return self.table(self.schema.tables[self.schema.root], self.unsigned(0, 4), 0)

    def unsigned(self, at: int, width: int) -> int:
        self.check(at, width)
        return int.from_bytes(self.data[at : at + width], "little")

    def check(self, at: int, length: int) -> None:
        if at < 0 or length < 0 or at + length > self.size:
            raise ValueError(
                f"byte {at}: {length} bytes expected, but the file has {self.size}; it is damaged or cut off"
            )

    def spend(self, at: int, length: int) -> None:
        self.check(at, length)
        self.budget -= length + 4
        if self.budget < 0:
            raise ValueError(f"byte {at}: offsets repeat the same content too often; the file is damaged")

    def table(self, table: Table, at: int, depth: int) -> dict[str, Any]:
        if depth > MAX_DEPTH:
            raise ValueError(f"byte {at}: tables are nested deeper than {MAX_DEPTH}; the file is damaged")
        self.spend(at, 4)
        vtable = at - int.from_bytes(self.data[at : at + 4], "little", signed=True)
        length, inline = self.unsigned(vtable, 2), self.unsigned(vtable + 2, 2)
        self.check(vtable, length)
        self.spend(at, inline)
        found: dict[str, Any] = {}
        for field in table.fields:
            entry = field.vtable_offset
            offset = self.unsigned(vtable + entry, 2) if entry + 2 <= length else 0
            if offset and offset + field.type.size > inline:
                raise ValueError(f"byte {at}: field '{field.name}' of {table.name} lies outside of its table")
            if not offset and field.required:
                raise ValueError(f"byte {at}: {table.name} has no '{field.name}'")
            kind = field.type
            if kind.kind == "union":
                members = self.schema.unions[kind.name]
                tag = found[tag_of(field.name)]
                offset = (
                    offset if 1 <= tag <= len(members) else 0
                )  # newer files may hold what this schema lacks
                kind = Type("table", members[tag - 1]) if offset else kind
            found[field.name] = self.value(kind, at + offset, depth) if offset else field.default
        return found

    def value(self, kind: Type, at: int, depth: int) -> Any:
        if kind.dtype is not None:
            self.check(at, kind.size)
            return np.frombuffer(self.data, kind.dtype, 1, at)[0].item()
        target = at + self.unsigned(at, 4)
        if kind.kind == "table":
            return self.table(self.schema.tables[kind.name], target, depth + 1)
        count = self.unsigned(target, 4)
        element = kind.element or _BYTE
        self.spend(target + 4, count * element.size + (kind.kind == "string"))  # strings end with a NUL
        if kind.kind == "string":
            try:
                return str(self.data[target + 4 : target + 4 + count], "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(f"byte {target}: a string is not UTF-8; the file is damaged") from error
        if element.dtype is not None:
            return np.frombuffer(self.data, element.dtype, count, target + 4)
        return [self.value(element, target + 4 + 4 * i, depth) for i in range(count)]


# ----------------------------------------------------------------------------------------------------- Encode


def encode(schema: Schema, value: Mapping[str, Any]) -> bytes:
    """The bytes of root table `value`. Absent keys and None leave a field out, as does a scalar that equals
    its default. Vectors of structs take structured arrays or lists of tuples. Deterministic."""
    return bytes(encode_pieces(schema, value))


def encode_pieces(schema: Schema, value: Mapping[str, Any]) -> Pieces:
    """The same in pieces: large arrays of bytes are not copied, and must not change before the file is written."""
    size = _array_bytes(value)  # growth takes twice the bytes, room in a mapping none
    builder = _Builder(min(size + (_ROOM if size >= LEAST_IN_PIECES else 1024), _MOST))
    root = _encode_table(builder, schema, schema.tables[schema.root], value)
    builder.Finish(root, file_identifier=schema.identifier.encode() or None)
    pieces, at, end = Pieces(), builder.Head(), len(builder.Bytes)
    for place, array in reversed(builder.apart):  # places count from the end: what grows does so in front
        pieces.append(bytes(builder.Bytes[at : end - place]))
        pieces.append(array)
        at = end - place + array.nbytes
    pieces.append(bytes(builder.Bytes[at:]))
    return pieces


class _Builder(flatbuffers.Builder):  # type: ignore[misc]
    """A builder that leaves the places of large arrays empty. `apart` has the arrays, each behind the
    distance of its first byte from the end of the file."""

    def __init__(self, size: int) -> None:
        super().__init__(0)
        # Of a mapping the system gives only the pages that are written to, small ones as well where memory has large.
        self.Bytes = mmap.mmap(-1, size) if size >= LEAST_IN_PIECES else bytearray(size)
        self.head = size
        self.apart: list[tuple[int, np.ndarray]] = []


def _array_bytes(value: Any) -> int:
    """The bytes of all arrays in a table, with room for what stands before each."""
    if isinstance(value, np.ndarray):
        return value.nbytes + _HEAD
    if isinstance(value, Mapping):
        return sum(map(_array_bytes, value.values()))
    tables = isinstance(value, list | tuple) and value and isinstance(value[0], Mapping)
    return sum(map(_array_bytes, value)) if tables else 0


def _encode_table(builder: Any, schema: Schema, table: Table, value: Mapping[str, Any]) -> int:
    unknown = sorted(set(value) - {f.name for f in table.fields})
    if unknown:
        raise ValueError(f"{table.name} has no field {', '.join(unknown)}")
    missing = [f.name for f in table.fields if f.required and value.get(f.name) is None]
    if missing:
        raise ValueError(f"{table.name} needs {', '.join(missing)}")
    present = [f for f in table.fields if value.get(f.name) is not None]
    for field in table.fields:
        if field.type.kind == "union" and value.get(tag_of(field.name)) and field not in present:
            raise ValueError(f"{table.name}: '{tag_of(field.name)}' is given, but '{field.name}' is not")
    offsets = {
        f.name: _encode_object(builder, schema, _held(schema, table, f, value), value[f.name])
        for f in present
        if f.type.dtype is None
    }
    builder.StartObject(len(table.fields))
    # Wide fields first keep the padding inside a table small.
    for field in sorted(present, key=lambda f: (-f.type.align, f.slot)):
        if field.name in offsets:
            builder.PrependUOffsetTRelativeSlot(field.slot, offsets[field.name], 0)
        elif field.type.kind == "struct" or value[field.name] != field.default:
            _place(builder, _array([value[field.name]], field.type).tobytes(), field.type.align)
            builder.Slot(field.slot)
    return int(builder.EndObject())


def _held(schema: Schema, table: Table, field: Field, value: Mapping[str, Any]) -> Type:
    """The type of a field's content: of a union, the table that the field before it names."""
    if field.type.kind != "union":
        return field.type
    members, tag = schema.unions[field.type.name], value.get(tag_of(field.name)) or 0
    if not 1 <= tag <= len(members):
        raise ValueError(
            f"{table.name}: '{tag_of(field.name)}' is {tag}, but {field.type.name} holds 1 to {len(members)}: "
            f"{', '.join(members)}"
        )
    return Type("table", members[tag - 1])


def _encode_object(builder: Any, schema: Schema, kind: Type, value: Any) -> int:
    if kind.kind == "string":
        return int(builder.CreateString(value))
    if kind.kind == "table":
        return _encode_table(builder, schema, schema.tables[kind.name], value)
    element = kind.element
    assert element is not None
    if element.dtype is not None:
        array = _array(value, element)
        builder.StartVector(element.size, len(array), element.align)
        builder.head = builder.head - array.nbytes
        if array.nbytes >= LEAST:
            builder.apart.append((builder.Offset(), array))
        else:
            builder.Bytes[builder.head : builder.head + array.nbytes] = raw_bytes(array)
        return int(builder.EndVector())
    items = [_encode_object(builder, schema, element, item) for item in value]
    builder.StartVector(4, len(items), 4)
    for item in reversed(items):
        builder.PrependUOffsetTRelative(item)
    return int(builder.EndVector())


def _place(builder: Any, data: bytes, align: int) -> None:
    """Put aligned `data` in front of what is written; the builder itself can do this for scalars only."""
    builder.Prep(align, len(data) - align)
    builder.head = builder.head - len(data)
    builder.Bytes[builder.head : builder.head + len(data)] = data


def _array(value: Any, kind: Type) -> np.ndarray:
    """`value` (array, bytes, or list of numbers or tuples) as an array of `kind`."""
    dtype = kind.dtype
    assert dtype is not None
    if isinstance(value, (bytes, bytearray, memoryview)):
        return np.frombuffer(value, dtype)
    if isinstance(value, np.ndarray) and (value.ndim != 1 or value.dtype.names != dtype.names):
        raise ValueError(f"an array of {value.dtype} with shape {value.shape} is not a vector of {kind.name}")
    if isinstance(value, np.ndarray) and value.dtype == dtype and dtype.names is None:
        return value
    items = value if isinstance(value, np.ndarray) else list(value)
    array = np.zeros(len(items), dtype)
    _fill(array, items, kind.name)
    return array


def _fill(target: np.ndarray, items: Any, label: str) -> None:
    """Assign member by member: a whole struct would bring along what lies in its padding."""
    names = target.dtype.names
    if names is None:
        _check_range(items, target.dtype, label)
        target[...] = items
        return
    if not isinstance(items, np.ndarray) and any(len(item) != len(names) for item in items):
        raise ValueError(f"a {label} has {len(names)} members: {', '.join(names)}")
    for position, name in enumerate(names):
        part = items[name] if isinstance(items, np.ndarray) else [item[position] for item in items]
        _fill(target[name], part, f"{label}.{name}")


def _check_range(values: Any, dtype: np.dtype[Any], label: str) -> None:
    """Numpy would wrap numbers that are too large and cut fractions; a file format must not."""
    if dtype.kind not in "iu" or len(values) == 0:
        return
    if isinstance(values, np.ndarray):
        whole, least, most = values.dtype.kind in "iub", values.min(), values.max()
    else:
        # Not through numpy, which makes floats of integers that need both a sign and 64 bits.
        whole = all(issubclass(t, (int, np.integer, np.bool_)) for t in set(map(type, values)))
        least, most = min(values), max(values)
    limits = np.iinfo(dtype)
    if not whole or least < limits.min or most > limits.max:
        raise ValueError(f"{label}: numbers from {least} to {most} do not fit into {dtype.name}")
