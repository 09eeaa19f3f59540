"""Structures of WebAssembly modules and objects: sections, functions, data segments, names. Every read is checked
against the bytes there are; what does not fit is a BadInput that says where.

Numbers are LEB128; layouts are those of the WebAssembly core specification, its appendix on custom sections,
and the tool conventions' linking section.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from minbuild.errors import BadInput

MAGIC = b"\0asm\1\0\0\0"
_NAMES = (
    *("custom", "type", "import", "function", "table", "memory", "global", "export", "start"),
    *("element", "code", "data", "datacount", "tag"),
)
FUNCTION, TABLE, MEMORY, GLOBAL, TAG = range(5)  # what is imported or exported
_SYMBOL_TABLE, _SEGMENT_INFO = 8, 5  # parts of the linking section
_FUNCTION_NAMES = 1  # part of the name section
_DATA, _SECTION = 1, 3  # kinds of symbols beside functions, globals, tags and tables
WEAK, LOCAL, UNDEFINED, _EXPLICIT_NAME = 1, 2, 0x10, 0x40  # flags of symbols


@dataclass(frozen=True, slots=True)
class WasmSection:
    """A section: `start` is that of its header, `offset` that of its contents."""

    name: str
    start: int
    offset: int
    size: int

    @property
    def custom(self) -> bool:
        return self.name not in _NAMES


@dataclass(frozen=True, slots=True)
class Span:
    """Some bytes of the file."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class WasmSymbol:
    """An entry of the linking section. Of a function, `at` is the number; of data, the segment's, with `offset`
    and `size` in it."""

    name: str
    data: bool
    flags: int
    at: int = 0
    offset: int = 0
    size: int = 0

    @property
    def defined(self) -> bool:
        return not self.flags & UNDEFINED


@dataclass(frozen=True, slots=True)
class Wasm:
    """The contents of one file. `bodies` are the functions' code, each with its size in front, `segments` the data
    without theirs; `imports` and `exports` are (kind, name)."""

    label: str
    data: bytes
    sections: tuple[WasmSection, ...]
    bodies: tuple[Span, ...]
    segments: tuple[Span, ...]
    imports: tuple[tuple[int, str], ...]
    exports: tuple[tuple[int, str], ...]
    function_names: dict[int, str]
    segment_names: tuple[str, ...]
    symbols: tuple[WasmSymbol, ...]

    @property
    def imported_functions(self) -> int:
        return sum(1 for kind, _ in self.imports if kind == FUNCTION)


class _Reader:
    """Reads a part of the file from its start."""

    def __init__(self, label: str, data: bytes, at: int, end: int) -> None:
        self.label, self.data, self.at, self.end = label, data, at, end

    def fail(self, what: str) -> BadInput:
        return BadInput(
            f"{self.label}: damaged WebAssembly module: {what} at byte {self.at}. Build it again."
        )

    def skip(self, size: int) -> int:
        """Moves on; where it was."""
        start = self.at
        if size < 0 or start + size > self.end:
            raise self.fail(f"{size} bytes are missing")
        self.at += size
        return start

    def byte(self) -> int:
        return self.data[self.skip(1)]

    def number(self) -> int:
        """An unsigned number of at most 64 bits, or the bits of a signed one."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise self.fail("a number without end")

    def text(self) -> str:
        size = self.number()
        start = self.skip(size)
        return self.data[start : start + size].decode("utf-8", "replace")

    def part(self, size: int) -> _Reader:
        start = self.skip(size)
        return _Reader(self.label, self.data, start, start + size)

    def parts(self) -> Iterator[tuple[int, _Reader]]:
        """The rest as subsections: their type and contents."""
        while self.at < self.end:
            kind = self.byte()
            yield kind, self.part(self.number())


def parse(label: str, data: bytes) -> Wasm:
    """Reads a module or an object. `label` names it in errors. Raises BadInput."""
    if data[: len(MAGIC)] != MAGIC:
        raise BadInput(
            f"{label}: not a WebAssembly module of version 1, it starts with {data[:8].hex(' ') or 'nothing'}. "
            "Build it again."
        )
    whole = _Reader(label, data, len(MAGIC), len(data))
    sections = tuple(_sections(whole))
    known = {s.name: s for s in sections}

    def of(name: str) -> _Reader:
        s = known.get(name, WasmSection(name, 0, 0, 0))
        return _Reader(label, data, s.offset, s.offset + s.size)

    symbols, segment_names = _linking(of("linking"))
    return Wasm(
        label,
        data=data,
        sections=sections,
        bodies=tuple(_bodies(of("code"))),
        segments=tuple(_segments(of("data"))),
        imports=tuple(_imports(of("import"))),
        exports=tuple(_exports(of("export"))),
        function_names=_function_names(of("name")),
        segment_names=segment_names,
        symbols=symbols,
    )


def _sections(reader: _Reader) -> Iterator[WasmSection]:
    while reader.at < reader.end:
        start = reader.at
        kind = reader.byte()
        contents = reader.part(reader.number())
        if kind >= len(_NAMES):
            raise reader.fail(f"a section of unknown kind {kind} ends")
        name = contents.text() if kind == 0 else _NAMES[kind]
        yield WasmSection(name, start, contents.at, contents.end - contents.at)


def _count(reader: _Reader) -> int:
    return reader.number() if reader.at < reader.end else 0


def _bodies(reader: _Reader) -> Iterator[Span]:
    for _ in range(_count(reader)):
        start = reader.at
        reader.skip(reader.number())
        yield Span(start, reader.at - start)


def _segments(reader: _Reader) -> Iterator[Span]:
    for _ in range(_count(reader)):
        kind = reader.number()
        if kind == 2:
            reader.number()  # which memory
        if kind != 1:
            while reader.byte() != 0x0B:  # the address: one constant and the end of the expression
                reader.number()
        size = reader.number()
        yield Span(reader.skip(size), size)


def _imports(reader: _Reader) -> Iterator[tuple[int, str]]:
    for _ in range(_count(reader)):
        _, name, kind = reader.text(), reader.text(), reader.byte()
        if kind == TABLE:
            reader.byte()
        if kind in (TABLE, MEMORY):
            bounded = reader.number() & 1
            reader.number()
            if bounded:
                reader.number()
        elif kind == GLOBAL:
            reader.skip(2)
        else:
            reader.number() if kind == FUNCTION else (reader.byte(), reader.number())
        yield kind, name


def _exports(reader: _Reader) -> Iterator[tuple[int, str]]:
    for _ in range(_count(reader)):
        name, kind = reader.text(), reader.byte()
        reader.number()
        yield kind, name


def _function_names(reader: _Reader) -> dict[int, str]:
    names: dict[int, str] = {}
    for kind, part in reader.parts():
        if kind == _FUNCTION_NAMES:
            for _ in range(_count(part)):
                number = part.number()
                names[number] = part.text()
    return names


def _linking(reader: _Reader) -> tuple[tuple[WasmSymbol, ...], tuple[str, ...]]:
    """The symbols and the names of the data segments."""
    symbols: list[WasmSymbol] = []
    segments: list[str] = []
    _count(reader)  # the version
    for kind, part in reader.parts():
        if kind == _SYMBOL_TABLE:
            symbols.extend(_symbols(part))
        elif kind == _SEGMENT_INFO:
            for _ in range(_count(part)):
                segments.append(part.text())
                part.number(), part.number()  # alignment and flags
    return tuple(symbols), tuple(segments)


def _symbols(reader: _Reader) -> Iterator[WasmSymbol]:
    for _ in range(_count(reader)):
        kind, flags = reader.byte(), reader.number()
        if kind == _SECTION:
            reader.number()
        elif kind == _DATA:
            name = reader.text()
            place = () if flags & UNDEFINED else (reader.number(), reader.number(), reader.number())
            yield WasmSymbol(name, True, flags, *place)
        else:
            number = reader.number()
            named = not flags & UNDEFINED or flags & _EXPLICIT_NAME
            name = reader.text() if named else ""
            if kind == FUNCTION:
                yield WasmSymbol(name, False, flags, number)
