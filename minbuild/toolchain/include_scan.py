"""The include closure of one source: so that objects are found in the cache where
nothing changed but what they do not look at.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from functools import lru_cache

_QUOTED = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
_ANY_INCLUDE = re.compile(rb"^[ \t]*#[ \t]*include\b", re.MULTILINE)
_WORD = re.compile(rb"[A-Za-z_]\w*")
_DEFINE = re.compile(rb"#[ \t]*define[ \t]+(\w+)(?:\(([^)]*)\))?")
_JOINED = re.compile(rb"\w+(?:\s*##\s*\w+)+")
_LEADING_COMMENTS = re.compile(rb"\A(?://[^\n]*\n)+")
_KEPT = 4096  # texts whose words are remembered


def include_closure(
    unit: str, sources: Mapping[str, bytes], folders: tuple[str, ...]
) -> tuple[str | bytes, ...]:
    """Everything of `sources` that decides what `unit` compiles to: its text, and path and text of the headers that it
    reaches by quoted includes, looked for beside the including file and in `folders`. Comments that begin a file do
    not count. Of a header that only defines macros those count that are named somewhere, or may be by names that are
    put together."""
    texts = _reached(unit, sources, folders)
    tables = {path for path, text in texts.items() if path != unit and _is_table(text)}
    rest = [text for path, text in texts.items() if path not in tables]
    words = frozenset().union(*map(_words, rest))
    joined = tuple(sorted(frozenset().union(*map(_beginnings, texts.values()))))
    found: list[str | bytes] = []
    for path in sorted(texts):
        text = _LEADING_COMMENTS.sub(b"", texts[path])
        found += (path, _named(text, words, joined) if path in tables else text)
    return tuple(found)


def _reached(unit: str, sources: Mapping[str, bytes], folders: tuple[str, ...]) -> dict[str, bytes]:
    found, pending = {unit: sources[unit]}, [unit]
    while pending:
        here = pending.pop()
        for name in (match.decode() for match in _QUOTED.findall(sources[here])):
            places = (posixpath.dirname(here), *folders)
            paths = (posixpath.normpath(posixpath.join(place, name)) for place in places)
            path = next((p for p in paths if p in sources), None)
            if path is not None and path not in found:
                found[path] = sources[path]
                pending.append(path)
    return found


@lru_cache(_KEPT)
def _words(text: bytes) -> frozenset[bytes]:
    return frozenset(_WORD.findall(text))


@lru_cache(_KEPT)
def _lines(text: bytes) -> tuple[bytes, ...]:
    """Lines, those that go on in one."""
    return tuple(text.replace(b"\\\n", b" ").split(b"\n"))


@lru_cache(_KEPT)
def _is_table(text: bytes) -> bool:
    """True if there is nothing in a header but macros and what they depend on."""
    if _ANY_INCLUDE.search(text) or b"/*" in text:
        return False
    return all(line.lstrip().startswith((b"#", b"//")) for line in _lines(text) if line.strip())


@lru_cache(_KEPT)
def _beginnings(text: bytes) -> frozenset[bytes]:
    """The beginnings of names that macros put together from these letters and a parameter; b"" where a name may be
    any."""
    if b"##" not in text:
        return frozenset()
    found, seen = set(), 0
    for line in _lines(text):
        define = _DEFINE.match(line.lstrip())
        if define is None:
            continue
        parameters = {b"__VA_ARGS__", *_WORD.findall(define[2] or b"")}
        for name in _JOINED.findall(line):
            seen += name.count(b"##")
            first = _WORD.match(name)
            found.add(first[0] if first and first[0] not in parameters else b"")
    return frozenset(found) if seen == text.count(b"##") else frozenset({b""})  # or it stands elsewhere


def _named(table: bytes, words: frozenset[bytes], joined: tuple[bytes, ...]) -> bytes:
    """The lines of a table of macros but for definitions of what neither `words` nor kept lines name and what begins
    with none of `joined`."""
    lines = _lines(table)
    names = [match[1] if (match := _DEFINE.match(line)) else b"" for line in lines]
    kept: frozenset[int] = frozenset()
    while True:
        more = frozenset(
            i for i, name in enumerate(names) if not name or name in words or name.startswith(joined)
        )
        if more == kept:
            return b"\n".join(lines[i] for i in sorted(kept))
        words = words.union(*(_words(lines[i]) for i in more - kept))
        kept = more
