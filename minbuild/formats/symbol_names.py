"""Symbol names: from what the linker knows to what people read, and the parts of a C++ name."""

from __future__ import annotations

import re
from functools import lru_cache

from itanium_demangler import parse

# Vector types are no builtins: like class names they can be referred back to. So a class name may stand in
# for them without shifting the references that follow.
_VECTOR = re.compile(r"Dv(\d+)_([a-z])")
_LETTERS = {"f": "float", "d": "double", "i": "int", "j": "uint", "a": "int8_", "h": "uint8_", "s": "int16_",
            "t": "uint16_", "l": "long", "m": "ulong"}  # fmt: skip
_STAND_IN = str(parse("_Z1fDe")).split("(")[1][:-1]  # a type no kernel uses
_CAST = re.compile(r"\((?:bool|int|long|unsigned int|unsigned long)\)(\d+)")
_QUALIFIERS = re.compile(r"(?: volatile| const)+(?=\()")  # of a member function
_TAIL = re.compile(r"E(\d+)([A-Za-z_]\w*?)(_\d*)?$")


@lru_cache(maxsize=65536)
def demangle(name: str) -> str:
    """The C++ spelling of a mangled name; other names, demangled ones included, come back unchanged.

    Names that the demangler does not know (lambdas, statics of functions) become `scope::function(...)`, with
    the entity's own name behind it where it has one. Suffixes such as `.cold` are kept in brackets.
    """
    if not name.startswith("_Z"):
        return name
    stem, dot, suffix = name.partition(".")
    text = _parse(stem) or _skeleton(stem) or stem
    return f"{text} [.{suffix}]" if dot and not suffix.startswith("llvm") else text


def _parse(name: str) -> str | None:
    simple = _VECTOR.sub(_vector_as_class, name).replace("DF16_", "Dh").replace("DF16b", "De")
    try:
        tree = parse(simple)
    except (NotImplementedError, KeyError, IndexError, ValueError, AttributeError, RecursionError):
        return None
    if tree is None:
        return None
    text, broken, _ = _CAST.sub(r"\1", str(tree)).replace(_STAND_IN, "__bf16").partition("<Node ")
    text = _qualifiers_last(text)
    if not broken:
        return text
    # Parameter packs come out as the demangler's own data. In the parameter list they may go, elsewhere not.
    start = text.rfind("(")
    balanced = text[:start].count("<") == text[:start].count(">")
    return f"{text[:start]}(...)" if start > 0 and balanced else None


def _qualifiers_last(text: str) -> str:
    """`f(int) const`, which the demangler spells `f const(int)`."""
    for found in _QUALIFIERS.finditer(text):
        before = text[: found.start()]
        if all(before.count(o) == before.count(c) for o, c in ("<>", "()")):
            return f"{before}{text[found.end() :]}{found[0]}"
    return text


def _vector_as_class(match: re.Match[str]) -> str:
    label = f"{_LETTERS.get(match[2], match[2])}x{match[1]}"
    return f"{len(label)}{label}"


def _skeleton(name: str) -> str | None:
    """Scope and function of a name too complex for the demangler: its leading source names."""
    at = re.compile(r"_ZZ*N?[rVK]*[RO]?").match(name)
    parts: list[str] = []
    position = at.end() if at else len(name)
    while found := re.compile(r"L?(\d+)").match(name, position):
        end = found.end() + int(found[1])
        parts.append(name[found.end() : end])
        position = end
    if not parts:
        return None
    text = "::".join(parts) + "(...)"
    tail = _TAIL.search(name, position)
    local = name.startswith("_ZZ") and tail and len(tail[2]) == int(tail[1])
    return f"{text}::{tail[2]}" if local and tail else text


def of_table(name: str) -> str:
    """The function a compiler-made switch table belongs to, or the name itself."""
    return demangle(re.sub(r"^(\.L)?switch\.table\.(.+?)(\.\d+)?$", r"\2", name))


def qualified(name: str) -> str:
    """`minbuild::gemm<float>` of `minbuild::Status minbuild::gemm<float>(minbuild::Call const&)`."""
    plain = name.replace("(anonymous namespace)", "_anonymous").split(" [.")[0]
    depth, end, start = 0, len(plain), 0
    for i, c in enumerate(plain):
        depth += (c == "<") - (c == ">")
        if depth == 0 and c == "(" and i and not plain[:i].endswith("operator"):
            end = i
            break
        if depth == 0 and c == " ":
            start = i + 1
    return plain[start:end]


def parts(name: str) -> tuple[str, tuple[str, ...]]:
    """The function's own name and its template arguments: ("gemm", ("float",))."""
    text = qualified(name)
    head, open_, rest = text.partition("<")
    own = head.rsplit("::", 1)[-1]
    if not open_:
        return own, ()
    inner, after = _balanced(rest)
    if after.startswith("::"):  # a member of a class template: its own name, its class's arguments
        own = parts(after[2:])[0]
    return own, tuple(_split(inner))


def _balanced(text: str) -> tuple[str, str]:
    depth = 1
    for i, c in enumerate(text):
        depth += (c == "<") - (c == ">")
        if depth == 0:
            return text[:i], text[i + 1 :]
    return text, ""


def _split(text: str) -> list[str]:
    depth, pieces = 0, [""]
    for c in text:
        depth += (c in "<(") - (c in ">)")
        if c == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += c
    return [p.strip() for p in pieces if p.strip()]
