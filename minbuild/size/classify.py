"""Whose a symbol is: an operator, code shared by several, a part of the runtime, or the C library."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from minbuild import model
from minbuild.size.names import demangle, of_table, parts
from minbuild.size.owners import Owners, is_kernel

# Order of the report, with the heading of each group.
KINDS: Mapping[str, str] = {
    "operator": "Operators",
    "shared": "Shared code",
    "runtime": "Runtime",
    "library": "C library and compiler runtime",
    "literal": "Literals and bytes without a symbol",
    "overhead": "File format",
}

# One name per integer type, whatever the target's data model calls it. `long` is settled by the fallback.
_SAME = {
    "signed char": "int8_t", "unsigned char": "uint8_t", "short": "int16_t", "unsigned short": "uint16_t",
    "int": "int32_t", "unsigned int": "uint32_t", "long": "int64_t", "long long": "int64_t",
    "unsigned long": "uint64_t", "unsigned long long": "uint64_t", "_Float16": "half", "__bf16": "bfloat16",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Owner:
    """Kind (a key of KINDS), name, and for operators and shared code the operators that use it."""

    kind: str
    name: str
    operators: tuple[str, ...] = ()

    @property
    def order(self) -> int:
        return tuple(KINDS).index(self.kind)


class Classifier:
    """Answers for one build: its owners and its selected kernels."""

    def __init__(self, owners: Owners, kernels: Sequence[model.Kernel]) -> None:
        self._sources = {demangle(name): path for name, path in owners.sources.items()}
        self._users = {demangle(name): paths for name, paths in owners.users.items()}
        self._exact = _index((k.function, tuple(map(_plain, k.types)), k.op) for k in kernels)
        self._loose = _index((k.function, (), k.op) for k in kernels)
        self._stems: Mapping[str, tuple[str, ...]] = {
            stem: tuple(sorted({k.op for k in kernels if k.stem == stem}))
            for stem in {k.stem for k in kernels}
        }

    def owner(self, names: tuple[str, ...]) -> Owner:
        """The one owner of bytes that carry `names`. Folded functions of several operators are theirs
        together."""
        owners = sorted({self._single(name) for name in names}, key=lambda o: (o.order, o.name))
        if len(owners) == 1:
            return owners[0]
        users = tuple(sorted({op for o in owners for op in o.operators}))
        if all(o.kind in ("operator", "shared") for o in owners):
            if len(users) == 1 and owners[0].kind == "operator":
                return owners[0]
            return Owner("shared", " = ".join(short(n) for n in names), users)
        return next((o for o in owners if o.kind == "runtime"), owners[0])

    def _single(self, name: str) -> Owner:
        name = of_table(name)
        path = self._sources.get(name, "")
        folders = PurePosixPath(path).parts[:-1]
        if "shared" in folders:
            return Owner("shared", f"{parts(name)[0]} ({PurePosixPath(path).name})", self._who_uses(name))
        operators = self._operators(name) if "runtime" not in folders else ()
        stem = PurePosixPath(path).stem
        if not operators and "runtime" not in folders:
            operators = self._stems.get(stem, ())
        if len(operators) == 1:
            return Owner("operator", operators[0], operators)
        if operators:
            label = short(name) if is_kernel(name) else f"helpers of {stem}"
            return Owner("shared", label, operators)
        if path:
            return Owner("runtime", stem.replace("_", " "))
        if name.startswith("mb_") or "minbuild::" in name:
            return Owner("runtime", "functions of unknown source")
        if name.startswith(".L"):
            return Owner("literal", "labelled literals")
        return Owner("library", short(name))

    def _operators(self, name: str) -> tuple[str, ...]:
        """The operators a kernel function serves; () for other functions."""
        if not is_kernel(name):
            return ()
        own, arguments = parts(name)
        return self._exact.get((own, tuple(map(_plain, arguments)))) or self._loose.get((own, ()), ())

    def _who_uses(self, name: str) -> tuple[str, ...]:
        stems = {PurePosixPath(path).stem for path in self._users.get(name, ())}
        return tuple(sorted({op for stem in stems for op in self._stems.get(stem, ())}))


_Key = tuple[str, tuple[str, ...]]  # function, template arguments


def _index(entries: Iterable[tuple[str, tuple[str, ...], str]]) -> dict[_Key, tuple[str, ...]]:
    collected: dict[_Key, set[str]] = {}
    for function, types, op in entries:
        collected.setdefault((function, types), set()).add(op)
    return {key: tuple(sorted(ops)) for key, ops in collected.items()}


def _plain(argument: str) -> str:
    text = re.sub(r"\b(minbuild|std)::", "", argument).strip()
    return _SAME.get(text, text)


def short(name: str) -> str:
    """A symbol's name without return type, parameters and our namespace, for tables."""
    own, arguments = parts(name)
    return f"{own}<{', '.join(arguments)}>" if arguments else own
