"""The registry: every operator and kernel, found in the folders of `minbuild/ops`, so that adding one edits nothing."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from types import ModuleType

from minbuild.errors import BadInput
from minbuild.ir import ElementType, Kernel
from minbuild.ops.core.definition import EXTENT, SCRATCH, KernelFunction, Op

_OPERATORS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Registry:
    """All operators by `domain:Name`, all kernel functions with the stem (file) and the operators they serve."""

    ops: Mapping[str, Op]
    functions: Mapping[str, KernelFunction]
    stems: Mapping[str, str]  # function -> stem of kernels/<stem>.cc
    op_stems: Mapping[str, str]  # operator key -> stem
    folders: tuple[Path, ...]  # where kernels/<stem>.cc of user operators are found

    def find(self, domain: str, name: str) -> Op | None:
        return self.ops.get(f"{domain}:{name}")

    def kernel(self, function: KernelFunction, types: tuple[ElementType, ...]) -> Kernel:
        """The instantiation of `function` for `types`, one per template variable."""
        chosen = dict(zip(function.types, types, strict=True))
        args = tuple(_slot(spec, chosen) for spec in function.args)
        stem = self.stems[function.function]
        names = tuple(t.ctype for t in types) or ("void",)
        return Kernel(stem, function.function, names, args, len(function.params))

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
    """Reads every `ops/<stem>.py`, then those of the `extra` folders a user brings."""
    modules = [
        (path.stem, importlib.import_module(f"minbuild.ops.{path.parent.name}.{path.stem}"))
        for path in sorted(_OPERATORS.glob("*/*.py"), key=lambda path: path.stem)
        if path.stem != "__init__" and path.parent.name != "core"
    ]
    for folder in extra:
        modules += [(path.stem, _load(path)) for path in sorted(folder.glob("*.py"))]
    ops: dict[str, Op] = {}
    functions: dict[str, KernelFunction] = {}
    stems: dict[str, str] = {}
    op_stems: dict[str, str] = {}
    for stem, module in modules:
        for thing in _declared(module):
            if isinstance(thing, Op):
                ops[thing.key] = thing
                op_stems[thing.key] = stem
            else:
                if stems.setdefault(thing.function, stem) != stem:
                    raise BadInput(
                        f"ops/{stem}.py and ops/{stems[thing.function]}.py both declare kernel {thing.function}. "
                        "Rename one, or let one launch through a function of the other."
                    )
                functions[thing.function] = thing
    return Registry(ops, functions, stems, op_stems, extra)


def _declared(module: ModuleType) -> list[Op | KernelFunction]:
    """The operators and kernel functions among a module's names."""
    values = [v for value in vars(module).values() for v in (value if isinstance(value, tuple) else (value,))]
    return [v for v in values if isinstance(v, (Op, KernelFunction))]


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"minbuild_user_ops.{path.stem}", path)
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
