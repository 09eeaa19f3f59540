"""The owner of a symbol: an operator, code shared by several, a part of the runtime, or the C library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from minbuild import ir as model
from minbuild.formats.symbol_names import demangle, of_table, parts
from minbuild.formats.symbol_origins import Owners, is_kernel
from minbuild.ir.size_report import KINDS


@dataclass(frozen=True, slots=True)
class Owner:
    """Kind (a key of KINDS), name, and for shared code the operators that use it. Operators go by the stem of
    their kernel file: that is what shares helpers, is selected and is removed together."""

    kind: str
    name: str
    operators: tuple[str, ...] = ()

    @property
    def order(self) -> int:
        return tuple(KINDS).index(self.kind)


class Classifier:
    """Categories of one build, from its owners and its selected kernels."""

    def __init__(self, owners: Owners, kernels: Sequence[model.Kernel]) -> None:
        self._sources = {demangle(name): path for name, path in owners.sources.items()}
        self._users = {demangle(name): paths for name, paths in owners.users.items()}
        self._helpers = {demangle(name): helper for name, helper in owners.helpers.items()}
        self._stems = frozenset(k.stem for k in kernels)
        self._functions = {k.function: k.stem for k in kernels}

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
        path = PurePosixPath(self._sources.get(name, ""))
        folders = path.parts[:-1]
        if "lib" in folders:
            helper = self._helpers.get(name) or parts(name)[0]
            return Owner("shared", f"{helper} ({path.name})", self._who_uses(name))
        if path.name and ("runtime" in folders or path.stem not in self._stems):
            return Owner("runtime", path.stem.replace("_", " "))
        if path.name:
            return Owner("operator", path.stem, (path.stem,))
        return self._unplaced(name)

    def _unplaced(self, name: str) -> Owner:
        """The owner of a symbol that no source file is known of."""
        stem = self._functions.get(parts(name)[0], "") if is_kernel(name) else ""
        if stem:
            return Owner("operator", stem, (stem,))
        if name.startswith("mb_") or "minbuild::" in name:
            return Owner("runtime", "functions of unknown source")
        if name.startswith(".L"):
            _, _, unit = name.partition(" of ")
            return Owner("literal", f"literals of {unit}" if unit else "labelled literals")
        return Owner("library", short(name))

    def _who_uses(self, name: str) -> tuple[str, ...]:
        return tuple(sorted({PurePosixPath(path).stem for path in self._users.get(name, ())} & self._stems))


def short(name: str) -> str:
    """A symbol's name without return type, parameters and our namespace, for tables."""
    own, arguments = parts(name)
    return f"{own}<{', '.join(arguments)}>" if arguments else own
