"""The registry: the operators and kernels that the files of `minbuild/ops` declare (`OPS`, `KERNELS`). Adding a file
edits nothing; what a file imports is not collected."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.machinery import SourceFileLoader
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from minbuild.errors import BadInput
from minbuild.ir import ElementType, Kernel, Shape
from minbuild.ops.core.definition import EXTENT, SCRATCH, EqualLowering, KernelCall, KernelFunction, Op

_OPERATORS = Path(__file__).resolve().parents[1]
_Declared = TypeVar("_Declared", Op, KernelFunction, EqualLowering)


@dataclass(frozen=True)
class Registry:
    """All operators by `domain:Name`, all kernel functions with the stem (file) and the operators they serve."""

    ops: Mapping[str, Op]
    functions: Mapping[str, KernelFunction]
    stems: Mapping[str, str]  # function -> stem of kernels/<stem>.cc
    op_stems: Mapping[str, str]  # operator key -> stem
    folders: tuple[Path, ...]  # where kernels/<stem>.cc of user operators are found
    equals: tuple[EqualLowering, ...] = ()  # lowerings that a library may have in place of others
    lowerings: tuple[EqualLowering, ...] = ()  # those of them that were chosen
    _kernels: dict[tuple[str, tuple[ElementType, ...]], Kernel] = field(
        default_factory=dict, compare=False, repr=False
    )  # those asked for: one for all its calls

    def find(self, domain: str, name: str) -> Op | None:
        return self.ops.get(f"{domain}:{name}")

    def kernel(self, function: KernelFunction, types: tuple[ElementType, ...]) -> Kernel:
        """The instantiation of `function` for `types`, one per template variable."""
        known = self._kernels.get((function.function, types))
        if known is not None:
            return known
        chosen = dict(zip(function.types, types, strict=True))
        args = tuple(_slot(spec, chosen) for spec in function.args)
        stem = self.stems[function.function]
        names = tuple(t.ctype for t in types) or ("void",)
        made = Kernel(stem, function.function, names, args, len(function.params))
        return self._kernels.setdefault((function.function, types), made)

    def with_lowerings(self, lowerings: Iterable[EqualLowering]) -> Registry:
        """The same registry, where kernels have equals in their place."""
        return replace(self, lowerings=tuple(lowerings))

    def lowered(self, call: KernelCall, shape: Callable[[str], Shape]) -> tuple[KernelCall, ...]:
        """The calls that the chosen lowerings have in place of `call`, each of them in place of those of others too;
        `shape` gives those of values, by name."""
        for equal in self.lowerings:
            rule = equal.replaces.get(call.kernel.function)
            calls = rule(call, shape) if rule else None
            if calls is not None:
                others = self.with_lowerings(other for other in self.lowerings if other is not equal)
                return tuple(lower for each in calls for lower in others.lowered(each, shape))
        return (call,)

    def all_kernels(self) -> tuple[Kernel, ...]:
        """Every kernel for every type: the full build."""
        found = [
            self.kernel(function, types)
            for function in self.functions.values()
            for types in product(*function.types.values())
        ]
        return tuple(sorted(found, key=lambda k: (k.stem, k.function, k.types)))

    def all_features(self) -> tuple[str, ...]:
        """Every feature of every kernel, as `stem.feature`."""
        return tuple(
            sorted(
                {f"{self.stems[f.function]}.{name}" for f in self.functions.values() for name in f.features}
            )
        )


def _slot(spec: str, chosen: Mapping[str, ElementType]) -> tuple[int, bool, bool]:
    kind = spec.split(":")[1].rstrip("=?")
    if kind == EXTENT:
        number = 0
    elif kind == SCRATCH:
        number = ElementType.UINT8
    elif kind in chosen:
        number = chosen[kind]
    else:
        number = ElementType[kind.upper()]
    return int(number), "=" in spec or kind == SCRATCH, "?" in spec


@cache
def registry(extra: tuple[Path, ...] = ()) -> Registry:
    """The operators and kernels that every `ops/<family>/<stem>.py` declares, then those of the `extra` folders a user
    brings, whose operators replace those of the same name. Raises BadInput where a file declares nothing, or a name
    that another one has."""
    found = _Declarations()
    for path in sorted(_OPERATORS.glob("*/*.py"), key=lambda path: path.stem):
        if path.stem != "__init__" and path.parent.name != "core":
            found.add(path, importlib.import_module(f"minbuild.ops.{path.parent.name}.{path.stem}"))
    for folder in extra:
        found.sources.clear()
        for path in sorted(folder.glob("*.py")):
            found.add(path, _load(path))
    return Registry(
        found.ops, found.functions, found.stems, found.op_stems, extra, equals=tuple(found.equals)
    )


@dataclass
class _Declarations:
    """The declarations of files, by `OPS = (...)`, `KERNELS = (...)` and `EQUALS = (...)`."""

    ops: dict[str, Op] = field(default_factory=dict)
    functions: dict[str, KernelFunction] = field(default_factory=dict)
    stems: dict[str, str] = field(default_factory=dict)  # of kernels
    op_stems: dict[str, str] = field(default_factory=dict)
    equals: list[EqualLowering] = field(default_factory=list)
    sources: dict[str, Path] = field(default_factory=dict)  # of operators, in the folders of one author

    def add(self, path: Path, module: ModuleType) -> None:
        if not hasattr(module, "OPS"):
            raise BadInput(
                f"{path}: the file declares no operators. List them at its end, and the kernels of "
                f"{path.stem}.cc: OPS = (...) and KERNELS = (...)."
            )
        for kernel in _listed(path, module, "KERNELS", KernelFunction):
            if kernel.function in self.functions:
                raise BadInput(
                    f"{path} and {self.stems[kernel.function]}.py both declare kernel {kernel.function}. Rename one, "
                    "or list it in the KERNELS of one file only."
                )
            self.functions[kernel.function], self.stems[kernel.function] = kernel, path.stem
        self.equals += _listed(path, module, "EQUALS", EqualLowering)
        for op in _listed(path, module, "OPS", Op):
            if op.key in self.sources:
                raise BadInput(
                    f"{path} and {self.sources[op.key]} both declare operator {op.title}. Remove one."
                )
            self.sources[op.key], self.ops[op.key], self.op_stems[op.key] = path, op, path.stem


def _listed(path: Path, module: ModuleType, name: str, kind: type[_Declared]) -> tuple[_Declared, ...]:
    """The declaration `name` of a module, () where it has none."""
    listed = getattr(module, name, ())
    wrong = (
        listed
        if not isinstance(listed, tuple)
        else next((x for x in listed if not isinstance(x, kind)), None)
    )
    if wrong is not None:
        raise BadInput(f"{path}: {name} is a tuple of {kind.__name__}, and holds {wrong!r}. Correct it.")
    return listed


class _LeavesNothing(SourceFileLoader):
    """Loads a module without its bytecode, which would be written into the user's folder."""

    def set_data(self, *_: object, **__: object) -> None:
        pass


def _load(path: Path) -> ModuleType:
    name = f"minbuild_user_ops.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_LeavesNothing(name, str(path)))
    if spec is None or spec.loader is None:
        raise BadInput(f"{path}: not a Python file that can be loaded.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise BadInput(
            f"{path}: this operator definition does not load: {error!r}. Correct the file."
        ) from error
    return module
