"""Every byte of a shipped file gets exactly one owner, with a name people understand.

The file is cut into spans: headers, sections, and what lies between them; sections are cut further by
symbols. Spans of one owner become one row. Whatever no symbol covers keeps the name of its section, so no row
is called "other".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from minbuild import ir as model
from minbuild.analysis.categories import Classifier, Owner
from minbuild.errors import ToolchainFailed
from minbuild.formats import detect as formats
from minbuild.formats.symbol_origins import Owners

# What a section without symbols, or the rest of one with symbols, is to a reader. The longest prefix counts.
_CONTENTS: Mapping[str, tuple[str, str]] = {
    ".text": ("literal", "padding and code without a symbol"),
    ".rodata": ("literal", "literals and jump tables"),
    ".data.rel.ro": ("literal", "addresses without a symbol"),
    ".data": ("literal", "initialised data without a symbol"),
    ".eh_frame": ("overhead", "unwind tables"),
    ".gcc_except_table": ("overhead", "unwind tables"),
    ".ARM.ex": ("overhead", "unwind tables"),
    ".dynsym": ("overhead", "dynamic symbols"),
    ".dynstr": ("overhead", "dynamic symbol names"),
    ".gnu.hash": ("overhead", "symbol lookup"),
    ".hash": ("overhead", "symbol lookup"),
    ".gnu.version": ("overhead", "symbol versions"),
    ".dynamic": ("overhead", "loader instructions"),
    ".rel": ("overhead", "relocations"),
    ".plt": ("overhead", "import stubs"),
    ".got": ("overhead", "import addresses"),
    ".init_array": ("overhead", "start-up functions"),
    ".fini_array": ("overhead", "shut-down functions"),
    ".comment": ("overhead", "compiler identification"),
    ".note": ("overhead", "notes"),
    ".ARM.attributes": ("overhead", "build attributes"),
    ".riscv.attributes": ("overhead", "build attributes"),
    ".shstrtab": ("overhead", "section names"),
    ".symtab": ("overhead", "symbols left in"),
    ".strtab": ("overhead", "names of symbols left in"),
    "code": ("literal", "code without a name"),
    "type": ("overhead", "types of functions"),
    "function": ("overhead", "types of functions"),
    "import": ("overhead", "imports"),
    "export": ("overhead", "exports"),
    "table": ("overhead", "table of functions"),
    "element": ("overhead", "table of functions"),
    "memory": ("overhead", "size of the memory"),
    "global": ("overhead", "stack pointer"),
    ".rdata": ("literal", "literals and jump tables"),
    "__text": ("literal", "padding and code without a symbol"),
    "__const": ("literal", "literals and jump tables"),
    "__cstring": ("literal", "literals and jump tables"),
    "__literal": ("literal", "literals and jump tables"),
    "__data": ("literal", "initialised data without a symbol"),
    "__stub": ("overhead", "import stubs"),
    "__la_symbol_ptr": ("overhead", "import addresses"),
    "__got": ("overhead", "import addresses"),
}


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of bytes under one symbol; several names when folding made them one. No names: what symbols
    leave."""

    names: tuple[str, ...]
    section: str
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Share:
    """All bytes of one owner, largest piece first."""

    owner: Owner
    bytes: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Attribution:
    """The whole file: shares in the order of `classify.KINDS`, largest first; their bytes add up to
    `total`."""

    total: int
    shares: tuple[Share, ...]


def attribute(binary: model.Binary, owners: Owners, kernels: Sequence[model.Kernel]) -> Attribution:
    """Attribute each byte of `binary.data` to one of `owners`. `kernels` are the selected ones.

    Raises ToolchainFailed when the file cannot be cut without overlap: then its headers contradict one
    another.
    """
    classifier = Classifier(owners, kernels)
    pieces: dict[tuple[str, str], list[Piece]] = defaultdict(list)
    users: dict[tuple[str, str], set[str]] = defaultdict(set)
    for owner, piece in _spans(binary, classifier):
        if piece.bytes:
            pieces[owner.kind, owner.name].append(piece)
            users[owner.kind, owner.name].update(owner.operators)
    shares = tuple(
        Share(
            Owner(*key, tuple(sorted(users[key]))),
            sum(p.bytes for p in group),
            tuple(sorted(group, key=lambda p: (-p.bytes, p.offset))),
        )
        for key, group in pieces.items()
    )
    total = sum(share.bytes for share in shares)
    if total != len(binary.data):
        raise ToolchainFailed(
            f"{binary.path}: {total} bytes have an owner, the file has {len(binary.data)}. Its section table "
            "contradicts the file; link it again."
        )
    return Attribution(total, tuple(sorted(shares, key=lambda s: (s.owner.order, -s.bytes, s.owner.name))))


def _spans(binary: model.Binary, classifier: Classifier) -> Iterator[tuple[Owner, Piece]]:
    """The file from the first byte to the last, without gap or overlap."""
    blocks: list[tuple[int, int, str, model.Section | None]] = [
        (offset, size, name, None) for name, offset, size in formats.structures(binary.path, binary.data)
    ]
    blocks += [(s.offset, s.file_size, s.name, s) for s in binary.sections if s.file_size]
    symbols = _by_section(binary.symbols)
    position, before = 0, "the start"
    for offset, size, name, section in sorted(blocks, key=lambda b: (b[0], b[1], b[2])):
        if offset < position:
            raise ToolchainFailed(
                f"{binary.path}: {name} starts at byte {offset} inside {before}, which ends at byte "
                f"{position}. The file's headers contradict one another; link it again."
            )
        yield _gap(binary.data[position:offset], f"before {name}", position)
        if section is None:
            yield Owner("overhead", name), Piece((), name, offset, size)
        else:
            yield from _cut(section, symbols.get(section.name, ()), classifier)
        position, before = offset + size, name
    yield _gap(binary.data[position:], "at the end of the file", position)


def _gap(data: bytes, where: str, offset: int) -> tuple[Owner, Piece]:
    name = f"bytes outside all sections {where}" if data.strip(b"\0\xcc\x90") else f"padding {where}"
    return Owner("overhead", name), Piece((), "", offset, len(data))


def _by_section(symbols: Iterable[model.Symbol]) -> dict[str, list[model.Symbol]]:
    grouped: dict[str, list[model.Symbol]] = defaultdict(list)
    for symbol in symbols:
        if symbol.size:
            grouped[symbol.section].append(symbol)
    return grouped


def _cut(
    section: model.Section, symbols: Iterable[model.Symbol], classifier: Classifier
) -> Iterator[tuple[Owner, Piece]]:
    """One section cut by its symbols. Where symbols overlap, the one that starts first keeps the bytes, the
    larger one of those that start together; symbols that get no byte of their own are listed with the one
    that did."""
    end = section.address + section.file_size
    inside = [s for s in symbols if section.address <= s.address < end]
    cuts: list[tuple[int, int, list[str]]] = []
    position = section.address
    for symbol in sorted(inside, key=lambda s: (s.address, -s.size, s.name)):
        stop = min(symbol.address + symbol.size, end)
        if stop <= position:
            cuts[-1][2].append(symbol.name)
            continue
        cuts.append((max(symbol.address, position), stop, [symbol.name]))
        position = stop
    position = section.address
    for start, stop, names in [*cuts, (end, end, [])]:
        rest = Piece((), section.name, section.offset + position - section.address, start - position)
        yield contents(section.name), rest
        unique = tuple(sorted(set(names)))
        if unique:
            place = section.offset + start - section.address
            yield classifier.owner(unique), Piece(unique, section.name, place, stop - start)
        position = stop


def contents(section: str) -> Owner:
    """The owner of what no symbol covers in a section."""
    prefix = max((p for p in _CONTENTS if section.startswith(p)), key=len, default="")
    kind, what = _CONTENTS.get(prefix, ("overhead", "contents"))
    return Owner(kind, f"{what} ({section})")
