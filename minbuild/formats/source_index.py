"""Where code that headers put into many objects is written: functions and types looked up in the sources'
text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from minbuild.formats.symbol_names import parts, qualified

_KEYWORDS = frozenset(("if", "for", "while", "switch", "return", "sizeof", "defined"))
_FUNCTION = re.compile(  # a function with its body, or a table with its elements
    r"\b([A-Za-z_]\w*)\s*\((?:[^(){};]|\([^(){};]*\))*\)\s*(?:const|noexcept|\s)*\{"
    r"|\b([A-Za-z_]\w*)\s*(?:\[[^\]]*\]\s*)+=\s*\{"
)
_TYPE = re.compile(
    r"\b(?:struct|class)\s+(?:__attribute__\s*\(\(.*?\)\)\s*)?([A-Za-z_]\w*)\s*(?:final\s*)?[:{]"
)


@dataclass(frozen=True, slots=True)
class Home:
    """The file a piece of code is written in, and the name of the function or type there."""

    path: str
    name: str


class Texts:
    """Looks names up in C++ texts (path -> text)."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._types: dict[str, str] = {}
        self._functions: dict[str, str] = {}
        for path in sorted(texts):
            plain = re.sub(r"//[^\n]*|/\*.*?\*/", " ", texts[path], flags=re.DOTALL)
            for match in _TYPE.finditer(plain):
                self._types.setdefault(match[1], path)
            if path.endswith(".h"):
                for match in _FUNCTION.finditer(plain):
                    self._functions.setdefault(match[1] or match[2], path)

    def home(self, name: str) -> Home | None:
        """Where the demangled `name` is written, None when the texts do not show it.

        A template argument decides before the template: a loop that every kernel shares, instantiated for the
        body of one kernel, is that kernel's code. The innermost type decides first, since drivers nest. Then
        the class the function is a member of, then the function. Names in unnamed namespaces belong to their
        one object.
        """
        whole = qualified(name)
        scope = re.sub(r"<.*>", "", whole).split("::")
        if any(part in ("_GLOBAL__N_1", "_anonymous") for part in scope):
            return None
        arguments = sorted(
            ((depth, self._types[word], word) for depth, word in _arguments(whole) if word in self._types),
            key=lambda found: (found[1].endswith(".h"), -found[0]),  # stable: the first of equals
        )
        if arguments:
            return Home(*arguments[0][1:])
        for part in reversed(scope[:-1]):
            if part in self._types:
                return Home(self._types[part], part)
        own, _ = parts(name)
        return Home(self._functions[own], own) if own in self._functions and own not in _KEYWORDS else None


def _arguments(text: str) -> Iterator[tuple[int, str]]:
    """Every identifier between angle brackets with its depth."""
    depth = 0
    for token in re.finditer(r"[<>]|[A-Za-z_]\w*", text):
        if token[0] == "<":
            depth += 1
        elif token[0] == ">":
            depth -= 1
        elif depth:
            yield depth, token[0]
