"""Flatbuffers schemas: the text of a `.fbs` file as plain data, every slot, offset and size worked out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

_SCALARS: Mapping[str, str] = {
    "bool": "?", "byte": "<i1", "ubyte": "<u1", "short": "<i2", "ushort": "<u2", "int": "<i4",
    "uint": "<u4", "long": "<i8", "ulong": "<u8", "float": "<f4", "double": "<f8", "int8": "<i1",
    "uint8": "<u1", "int16": "<i2", "uint16": "<u2", "int32": "<i4", "uint32": "<u4", "int64": "<i8",
    "uint64": "<u8", "float32": "<f4", "float64": "<f8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Type:
    """A field's type. `kind` is scalar, struct, table, string, vector or union; `name` is what the schema calls it,
    empty for a vector; `dtype` is the little-endian numpy type of scalars (also enums) and structs."""

    kind: str
    name: str = ""
    dtype: np.dtype[Any] | None = None
    align: int = 4
    element: Type | None = None

    @property
    def size(self) -> int:
        """Bytes inside a table, struct or vector: the value of scalars and structs, else a 32-bit offset."""
        return self.dtype.itemsize if self.dtype is not None else 4


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a struct at a fixed byte offset."""

    name: str
    type: Type
    offset: int


@dataclass(frozen=True, slots=True)
class Struct:
    """A fixed layout without vtable. `size` includes the padding to `align`."""

    name: str
    members: tuple[Member, ...]
    size: int
    align: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """The same bytes as a numpy structured type."""
        return np.dtype(
            {
                "names": [m.name for m in self.members],
                "formats": [m.type.dtype for m in self.members],
                "offsets": [m.offset for m in self.members],
                "itemsize": self.size,
            }
        )


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a table."""

    name: str
    type: Type
    slot: int
    default: Any
    required: bool

    @property
    def vtable_offset(self) -> int:
        """Byte offset of the field's entry in the vtable."""
        return 4 + 2 * self.slot


@dataclass(frozen=True, slots=True)
class Table:
    """A table; fields stand in slot order."""

    name: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Enum:
    """Named integers of one scalar type."""

    name: str
    scalar: str
    values: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Schema:
    """Everything a `.fbs` file declares."""

    namespace: str
    unions: Mapping[
        str, tuple[str, ...]
    ]  # names of tables; the field before one of this type holds 1 + the index
    enums: Mapping[str, Enum]
    structs: Mapping[str, Struct]
    tables: Mapping[str, Table]
    root: str
    identifier: str


_TOKEN = re.compile(
    r"(?P<skip>\s+|//[^\n]*|/\*.*?\*/)|(?P<text>\"[^\"\n]*\")|(?P<number>-?\d[\w.+-]*)|(?P<word>[A-Za-z_][\w.]*)"
    r"|(?P<sign>[{}()\[\]:;,=])",
    re.DOTALL,
)


def tag_of(field: str) -> str:
    """The field that says which table a field of union type holds; flatbuffers adds it before that one."""
    return f"{field}_type"


def parse_schema(text: str) -> Schema:
    """Parse schema `text`. A struct's members must be declared before it; tables may stand in any order.
    Raises ValueError for anything outside the subset (fixed arrays, includes, services)."""
    return _Parser(text).schema()


class _Parser:
    """One pass over the tokens; table fields are resolved at the end because tables may refer forward."""

    def __init__(self, text: str) -> None:
        self.tokens = list(_tokens(text))
        self.at = 0
        self.unions: dict[str, tuple[str, ...]] = {}
        self.enums: dict[str, Enum] = {}
        self.structs: dict[str, Struct] = {}
        self.raw: dict[str, list[tuple[str, str, bool, str, dict[str, str]]]] = {}
        self.single = {
            "namespace": "",
            "root_type": "",
            "file_identifier": "",
            "file_extension": "",
            "attribute": "",
        }

    def schema(self) -> Schema:
        while self.at < len(self.tokens):
            word = self.next()
            if word in self.single:
                self.single[word] = self.next().strip('"')
                self.expect(";")
            elif word == "enum":
                self.enum()
            elif word == "union":
                self.union()
            elif word in ("struct", "table"):
                self.record(word)
            else:
                raise ValueError(f"schema: '{word}' is not a declaration this parser knows")
        tables = {name: self.table(name, fields) for name, fields in self.raw.items()}
        for name, members in self.unions.items():
            if lost := [m for m in members if m not in tables]:
                raise ValueError(f"schema: union {name}: '{lost[0]}' is not a table of this schema")
        root, identifier = self.single["root_type"], self.single["file_identifier"]
        if root not in tables:
            raise ValueError(f"schema: root_type '{root}' is not a table of this schema")
        if len(identifier) not in (0, 4):
            raise ValueError(f"schema: file_identifier '{identifier}' must have 4 characters")
        return Schema(
            self.single["namespace"],
            unions=self.unions,
            enums=self.enums,
            structs=self.structs,
            tables=tables,
            root=root,
            identifier=identifier,
        )

    def next(self) -> str:
        if self.at >= len(self.tokens):
            raise ValueError("schema: the text ends inside a declaration")
        self.at += 1
        return self.tokens[self.at - 1]

    def accept(self, token: str) -> bool:
        found = self.at < len(self.tokens) and self.tokens[self.at] == token
        self.at += found
        return found

    def expect(self, token: str) -> None:
        got = self.next()
        if got != token:
            raise ValueError(f"schema: expected '{token}' but found '{got}'")

    def enum(self) -> None:
        name = self.next()
        self.expect(":")
        scalar, values, following = self.next(), {}, 0
        self.expect("{")
        while not self.accept("}"):
            key = self.next()
            following = values[key] = int(self.next(), 0) if self.accept("=") else following
            following += 1
            self.accept(",")
        self.enums[name] = Enum(name, scalar, values)

    def union(self) -> None:
        name, tables = self.next(), []
        self.expect("{")
        while not self.accept("}"):
            tables.append(self.next())
            self.accept(",")
        self.unions[name] = tuple(tables)

    def record(self, kind: str) -> None:
        name = self.next()
        fields: list[tuple[str, str, bool, str, dict[str, str]]] = []
        self.metadata()
        self.expect("{")
        while not self.accept("}"):
            field = self.next()
            self.expect(":")
            vector = self.accept("[")
            type_name = self.next()
            if vector:
                self.expect("]")
            default = self.next() if self.accept("=") else ""
            if type_name in self.unions:
                fields.append((tag_of(field), "ubyte", False, "", {}))
            fields.append((field, type_name, vector, default, self.metadata()))
            self.expect(";")
        if kind == "struct":
            self.structs[name] = self.struct(name, fields)
        else:
            self.raw[name] = fields

    def metadata(self) -> dict[str, str]:
        found: dict[str, str] = {}
        if self.accept("("):
            while not self.accept(")"):
                key = self.next()
                found[key] = self.next() if self.accept(":") else ""
                self.accept(",")
        return found

    def struct(self, name: str, fields: Sequence[tuple[str, str, bool, str, dict[str, str]]]) -> Struct:
        members, offset, align = [], 0, 1
        for field, type_name, vector, _, _ in fields:
            kind = self.type(type_name)
            if vector or kind.dtype is None:
                raise ValueError(f"schema: struct {name}: member '{field}' must be a scalar or a struct")
            offset = -(-offset // kind.align) * kind.align
            members.append(Member(field, kind, offset))
            offset, align = offset + kind.size, max(align, kind.align)
        return Struct(name, tuple(members), -(-offset // align) * align, align)

    def table(self, name: str, raw: Sequence[tuple[str, str, bool, str, dict[str, str]]]) -> Table:
        fields = []
        for position, (field, type_name, vector, default, meta) in enumerate(raw):
            kind = self.type(type_name)
            if vector and "force_align" in meta:
                kind = replace(kind, align=int(meta["force_align"]))
            if vector:
                kind = Type("vector", element=kind)
            slot = int(meta.get("id", position))
            fields.append(Field(field, kind, slot, self.default(kind, default), "required" in meta))
        slots = sorted(f.slot for f in fields)
        if slots != list(range(len(slots))):
            raise ValueError(f"schema: table {name}: ids must count from 0 without gaps, found {slots}")
        return Table(name, tuple(sorted(fields, key=lambda f: f.slot)))

    def type(self, name: str) -> Type:
        if name in _SCALARS:
            dtype = np.dtype(_SCALARS[name])
            return Type("scalar", name, dtype, dtype.itemsize)
        if name in self.enums:
            dtype = np.dtype(_SCALARS[self.enums[name].scalar])
            return Type("scalar", name, dtype, dtype.itemsize)
        if name in self.structs:
            return Type("struct", name, self.structs[name].dtype, self.structs[name].align)
        if name == "string":
            return Type("string")
        if name in self.raw:
            return Type("table", name)
        if name in self.unions:
            return Type("union", name)
        raise ValueError(
            f"schema: type '{name}' is not declared (structs and enums must stand before their use)"
        )

    def default(self, kind: Type, text: str) -> Any:
        if kind.kind != "scalar" or kind.dtype is None:
            return None
        if kind.name in self.enums and text in self.enums[kind.name].values:
            return self.enums[kind.name].values[text]
        if kind.dtype.kind == "b":
            return text == "true"
        return float(text or 0) if kind.dtype.kind == "f" else int(text or "0", 0)


def _tokens(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(
                f"schema: unexpected character {text[at]!r} in line {text.count(chr(10), 0, at) + 1}"
            )
        at = match.end()
        if match.lastgroup != "skip":
            yield match.group()
