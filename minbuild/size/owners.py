"""Which source file each symbol comes from, read from the object files of the build."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from minbuild.size import ar, elf
from minbuild.size.names import demangle, parts

_CODE_OR_DATA = (elf.FUNC, elf.IFUNC, elf.OBJECT, elf.TLS)


@dataclass(frozen=True, slots=True)
class Owners:
    """Symbol -> the source file it is written in, and symbol -> every file whose object defines or calls it.

    Keys are names as Binary spells them (demangled); mangled keys work as well.
    """

    sources: Mapping[str, str]
    users: Mapping[str, tuple[str, ...]]


def from_objects(objects: Mapping[str, bytes], headers: Mapping[str, str] | None = None) -> Owners:
    """The owners that relocatable ELF `objects` (source path -> bytes) tell.

    Inline functions and templates are compiled into every object that uses them, so an object cannot tell
    which header they are written in. `headers` (path -> text) of shared code decides: a function of that name
    defined in one of them belongs to it. Others belong to the first object, by path, that has them. Kernels,
    which take a `Call`, are never looked up there: a shared helper may carry the same name. Raises BadInput
    for damaged objects.
    """
    found: dict[str, set[str]] = defaultdict(set)
    users: dict[str, set[str]] = defaultdict(set)
    for path in sorted(objects):
        for symbol in elf.parse(path, objects[path]).symbols(elf.SYMTAB):
            if symbol.name.startswith((".L", "$")) or not (
                symbol.type in _CODE_OR_DATA or symbol.section == 0
            ):
                continue  # labels of the compiler, which no linked file keeps
            name = demangle(symbol.name)
            users[name].add(path)
            if symbol.defined:
                found[name].add(path)
    defined_in = {path: _definitions(text) for path, text in sorted((headers or {}).items())}
    sources = {}
    for name in sorted(found):
        home = None if is_kernel(name) else _header_of(name, defined_in)
        sources[name] = home or min(found[name])
    return Owners(sources, {name: tuple(sorted(users[name])) for name in sorted(found)})


def from_archive(label: str, archive: bytes, sources: Mapping[str, bytes]) -> Owners:
    """The owners that the static library of a package tells. `sources` are the files it was built from, by path.

    A member is named after its source, with the folders in front where the bare name is not unique. Members of
    another origin, such as the compiler's helpers, own nothing. Raises BadInput for a damaged library.
    """
    members = ar.members(label, archive)
    objects = {}
    for path in sorted(sources):
        stem = PurePosixPath(path).with_suffix("")
        for member in (str(stem).replace("/", ".") + ".o", stem.name + ".o"):
            if path.endswith(".cc") and members.get(member, b"").startswith(elf.MAGIC):
                objects[path] = members.pop(member)
                break
    headers = {
        path: data.decode("utf-8", "replace")
        for path, data in sources.items()
        if path.endswith(".h") and "shared" in PurePosixPath(path).parts
    }
    return from_objects(objects, headers)


def is_kernel(name: str) -> bool:
    """Whether a demangled name has the one signature of kernels."""
    return name.split(" [.")[0].endswith("(minbuild::Call const&)")


def _header_of(name: str, defined_in: Mapping[str, frozenset[str]]) -> str | None:
    own, _ = parts(name)
    return next((path for path, names in defined_in.items() if own in names), None)


_WORDS = frozenset(("if", "for", "while", "switch", "return", "sizeof", "defined"))
_DEFINITION = re.compile(  # a function with its body, or a table with its elements
    r"\b([A-Za-z_]\w*)\s*\((?:[^(){};]|\([^(){};]*\))*\)\s*(?:const|noexcept|\s)*\{"
    r"|\b([A-Za-z_]\w*)\s*(?:\[[^\]]*\]\s*)+=\s*\{"
)


def _definitions(text: str) -> frozenset[str]:
    """Names of the functions with a body, and of the tables, in C++ text."""
    plain = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    return frozenset(m[1] or m[2] for m in _DEFINITION.finditer(plain)) - _WORDS
