"""Every binary format with a reader, distinguished by the first bytes of the file."""

from __future__ import annotations

from collections.abc import Iterator

from minbuild import ir as model
from minbuild.errors import BadInput
from minbuild.formats import elf, macho, pe, wasm
from minbuild.formats.object_file import ObjectSymbol, Reader, Structure

_READERS: tuple[Reader, ...] = (elf, wasm, macho, pe)


def _reader(label: str, data: bytes) -> Reader:
    for reader in _READERS:
        if data.startswith(reader.MAGICS):
            return reader
    raise BadInput(
        f"{label}: a file of no known binary format, it starts with {data[:4].hex(' ') or 'nothing'}. "
        "Build it again."
    )


def is_object(data: bytes) -> bool:
    """True if there is a reader for the file."""
    return any(data.startswith(reader.MAGICS) for reader in _READERS)


def read_binary(label: str, target: str, stripped: bytes, unstripped: bytes) -> model.Binary:
    """The Binary of a shipped file and the unstripped copy of the same link, which lends its symbols.

    `label` names the file in messages, `target` is its target's name, `stripped` and `unstripped` are the bytes of
    both. Raises BadInput for damaged files and for a copy from another link."""
    return _reader(label, stripped).read_binary(label, target, stripped, unstripped)


def structures(label: str, data: bytes) -> tuple[Structure, ...]:
    """The headers of a file: bytes that describe it and belong to no section. Raises BadInput."""
    return _reader(label, data).structures(label, data)


def object_symbols(label: str, data: bytes) -> Iterator[ObjectSymbol]:
    """The symbols that an object defines and uses, without labels of the compiler. Raises BadInput."""
    return _reader(label, data).object_symbols(label, data)
