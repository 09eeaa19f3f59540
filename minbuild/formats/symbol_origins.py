"""Which source file each symbol comes from, read from the object files of the build."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from minbuild.formats import ar
from minbuild.formats import detect as formats
from minbuild.formats.source_index import Texts
from minbuild.formats.symbol_names import demangle


@dataclass(frozen=True, slots=True)
class Owners:
    """Symbol -> the source file it is written in; symbol -> every file whose object defines or calls it; and
    for code from headers, the function or type there that it is an instance of.

    Keys are names as Binary spells them (demangled); mangled keys work as well.
    """

    sources: Mapping[str, str]
    users: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    helpers: Mapping[str, str] = field(default_factory=dict)


def from_objects(objects: Mapping[str, bytes], texts: Mapping[str, str] | None = None) -> Owners:
    """The owners that relocatable `objects` (source path -> bytes) define.

    A symbol belongs to the one object that defines it. Inline functions and templates are compiled into every
    object that uses them, so there `texts` (path -> text of sources and headers) decide, see `Texts.home`;
    what they leave open belongs to the first object by path. Raises BadInput for damaged objects.
    """
    found: dict[str, set[str]] = defaultdict(set)
    users: dict[str, set[str]] = defaultdict(set)
    strong: set[str] = set()
    for path in sorted(objects):
        for symbol in formats.object_symbols(path, objects[path]):
            name = demangle(symbol.name)
            users[name].add(path)
            if symbol.defined:
                found[name].add(path)
                if symbol.strong:
                    strong.add(name)
    _pass_on(users, found, frozenset(path for path in objects if "lib" in PurePosixPath(path).parts))
    written = Texts(texts or {})
    sources, helpers = {}, {}
    for name in sorted(found):
        home = None if name in strong or is_kernel(name) else written.home(name)
        sources[name] = home.path if home else min(found[name])
        if home:
            helpers[name] = home.name
    return Owners(sources, {name: tuple(sorted(users[name])) for name in sorted(found)}, helpers)


def _pass_on(users: dict[str, set[str]], found: Mapping[str, set[str]], shared: frozenset[str]) -> None:
    """Gives `users` of what a source in `shared` alone defines, as in `found`, what that source uses."""
    for path in sorted(shared):
        callers = (
            set[str]().union(*(users[name] for name, paths in found.items() if paths == {path})) - shared
        )
        for paths in users.values():
            if path in paths:
                paths.remove(path)
                paths |= callers


def from_archive(label: str, archive: bytes, sources: Mapping[str, bytes]) -> Owners:
    """The owners that the static library of a package defines. `sources` are the files it was built from, by path.

    A member is named after its source, with the folders in front where the bare name is not unique. Members of
    another origin, such as the compiler's helpers, own nothing. Raises BadInput for a damaged library. `label` names
    the library in messages, `archive` is its bytes."""
    members = ar.members(label, archive)
    objects = {}
    for path in sorted(sources):
        stem = PurePosixPath(path).with_suffix("")
        for member in (str(stem).replace("/", ".") + ".o", stem.name + ".o"):
            if path.endswith(".cc") and formats.is_object(members.get(member, b"")):
                objects[path] = members.pop(member)
                break
    texts = {p: data.decode("utf-8", "replace") for p, data in sources.items() if p.endswith((".h", ".cc"))}
    return from_objects(objects, texts)


def is_kernel(name: str) -> bool:
    """True if a demangled name has the one signature of kernels."""
    return name.split(" [.")[0].endswith("(minbuild::Call const&)")
