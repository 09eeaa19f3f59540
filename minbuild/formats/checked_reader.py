"""Shared by the readers of binary formats: reads checked against the file, and sizes of symbols that have none."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from minbuild import ir as model
from minbuild.errors import BadInput
from minbuild.formats.symbol_names import demangle


@dataclass(frozen=True, slots=True)
class Bytes:
    """A file with its name and format for errors."""

    label: str
    format: str
    data: bytes

    def unpack(self, layout: struct.Struct, at: int, what: str) -> tuple[int, ...]:
        """The fields at `at`. `layout` says what they are, `what` names them in messages. Raises BadInput where the
        file ends earlier."""
        self.need(at, layout.size, what)
        return layout.unpack_from(self.data, at)

    def need(self, at: int, size: int, what: str) -> None:
        """Raises BadInput unless the file has these bytes. They are `size` bytes from `at` on; `what` names them in
        messages."""
        if at < 0 or size < 0 or at + size > len(self.data):
            raise BadInput(
                f"{self.label}: truncated or damaged {self.format} file: {what} should end at byte {at + size}, "
                f"the file has {len(self.data)}. Build it again."
            )

    def text(self, at: int, end: int) -> str:
        """The string at `at`, up to its zero byte or `end`."""
        end = min(end, len(self.data))
        stop = self.data.find(b"\0", at, end) if 0 <= at < end else at
        return self.data[at : end if stop < 0 else stop].decode("utf-8", "replace") if 0 <= at < end else ""


def sized(
    places: Iterable[tuple[int, str, str]], sections: Mapping[str, model.Section]
) -> Iterator[model.Symbol]:
    """Symbols of (address, section, linker name), each up to the next one of its section or its end: these
    formats keep no sizes."""
    by_section: dict[str, dict[int, set[str]]] = {}
    for address, title, name in places:
        by_section.setdefault(title, {}).setdefault(address, set()).add(name)
    for title, found in sorted(by_section.items()):
        section = sections[title]
        addresses = sorted(a for a in found if section.address <= a < section.address + section.size)
        ends = [*addresses[1:], section.address + section.size]
        for address, following in zip(addresses, ends[: len(addresses)], strict=True):
            for name in sorted(found[address]):
                yield model.Symbol(demangle(name), title, address, following - address)


def same_sections(label: str, shipped: Iterable[model.Section], unstripped: Iterable[model.Section]) -> None:
    """Raises BadInput unless what is loaded of a file lies where its unstripped copy has it. `label` names the file
    in messages; sections are `shipped` and `unstripped` ones."""
    expected = {(s.name, s.address, s.size) for s in unstripped if s.allocated}
    for s in shipped:
        if s.allocated and (s.name, s.address, s.size) not in expected:
            raise BadInput(
                f"{label}: section {s.name} ({s.size} bytes at {s.address:#x}) is not in the unstripped copy; the "
                "two come from different links. Link both from the same objects with the same flags."
            )
