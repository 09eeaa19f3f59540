"""WebAssembly modules and objects: their sections and symbols, and the bytes that only describe them."""

from __future__ import annotations

from collections.abc import Iterator

from minbuild import ir as model
from minbuild.errors import BadInput
from minbuild.formats.object_file import ObjectSymbol, Structure
from minbuild.formats.symbol_names import demangle
from minbuild.formats.wasm_format import FUNCTION, LOCAL, MAGIC, WEAK, Span, Wasm, parse

MAGICS = (MAGIC,)


def structures(label: str, data: bytes) -> tuple[Structure, ...]:
    """The bytes that only say where sections and data are. Raises BadInput."""
    file = parse(label, data)
    spans = [("WebAssembly header", 0, len(MAGIC))]
    spans += [("section headers", s.start, s.offset - s.start) for s in file.sections]
    for section in (s for s in file.sections if s.name == "data"):
        at = section.offset
        for segment in file.segments:
            spans.append(("addresses of data", at, segment.offset - at))
            at = segment.offset + segment.size
    return tuple(spans)


def object_symbols(label: str, data: bytes) -> Iterator[ObjectSymbol]:
    """The symbols of an object's linking section. Raises BadInput."""
    file = parse(label, data)
    functions = [name for kind, name in file.imports if kind == FUNCTION]
    for s in file.symbols:
        name = s.name or (functions[s.at] if s.at < len(functions) and not s.data else "")
        if name and not name.startswith(".L"):
            yield ObjectSymbol(name, s.defined, s.defined and not s.flags & (WEAK | LOCAL))


def read_binary(label: str, target: str, stripped: bytes, unstripped: bytes) -> model.Binary:
    """The Binary of a shipped module and its unstripped copy, which has the names. The place in the file stands for
    the address, which functions have none of.

    `label` names the file in messages, `target` is its target's name, `stripped` and `unstripped` are the bytes of
    both. Raises BadInput for damaged files and for a copy with other functions or data."""
    shipped, full = parse(label, stripped), parse(f"{label} (with names)", unstripped)
    _check_same_link(shipped, full)
    sections = [
        model.Section(
            s.name, address=s.offset, offset=s.offset, size=s.size, file_size=s.size, allocated=not s.custom
        )
        for s in shipped.sections
        if s.name != "data"
    ]
    symbols = [
        model.Symbol(demangle(name), "code", body.offset, body.size)
        for number, body in enumerate(shipped.bodies, full.imported_functions)
        if (name := full.function_names.get(number))
    ]
    for number, (name, whole) in enumerate(zip(full.segment_names, full.segments, strict=True)):
        # Zeros are in the unstripped copy only.
        place = shipped.segments[number] if number < len(shipped.segments) else Span(0, 0)
        title = name if number < len(shipped.segments) else ".bss"
        sections.append(
            model.Section(
                title,
                address=place.offset,
                offset=place.offset,
                size=whole.size,
                file_size=place.size,
                allocated=True,
            )
        )
        symbols += [
            model.Symbol(demangle(s.name), title, place.offset + s.offset, s.size)
            for s in full.symbols
            if s.data and s.defined and s.at == number
        ]
    return model.Binary(
        path=label,
        target=target,
        data=stripped,
        sections=tuple(sections),
        symbols=tuple(sorted(set(symbols), key=lambda s: (s.address, s.size, s.name))),
        exports=tuple(sorted(n for kind, n in shipped.exports if kind == FUNCTION)),
        imports=tuple(sorted(n for _, n in shipped.imports)),
    )


def _check_same_link(shipped: Wasm, full: Wasm) -> None:
    """The unstripped copy is longer where numbers are padded, so what has to agree is what the numbers count."""

    def kinds(file: Wasm) -> list[bytes]:
        return [
            file.data[s.offset : s.offset + s.size] for s in file.sections if s.name in ("type", "function")
        ]

    sizes = [s.size for s in shipped.segments]
    if kinds(shipped) != kinds(full) or [s.size for s in full.segments[: len(sizes)]] != sizes:
        raise BadInput(
            f"{shipped.label}: its functions or data are not those of the module with names; the two come from "
            "different links. Link both from the same objects with the same flags."
        )
    if len(full.segment_names) != len(full.segments):
        raise BadInput(
            f"{full.label}: {len(full.segments)} data segments, {len(full.segment_names)} of them with a name. "
            "Link it with relocations."
        )
