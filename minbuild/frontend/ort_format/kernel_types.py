"""Where ONNX Runtime's kernels find the element types that they are registered with."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import onnx

from minbuild import assets

RECORD = assets.root("schemas") / "ort_kernel_types.txt"
_SIDES = "io"
_HEAD = (
    "# Where the kernels of operators that ONNX does not have find their types in ONNX Runtime 1.19.2: the arguments\n"
    "# of each type, i for inputs and o for outputs. Written by tests/slow/record_kernel_types.py.\n"
)

Places = Mapping[
    str, tuple[tuple[int, int], ...]
]  # a type -> the arguments of it: 0 and input, or 1 and output


def kernel_types(domain: str, name: str, since: int) -> Places | None:
    """The types of an operator by the names that its schema gives them, or by that of the argument where its type is
    fixed. None for operators that ONNX Runtime 1.19.2 does not have, as far as is known here. `domain` and `name` are
    the operator's, `since` is its version."""
    known = from_schema(domain, name, since)
    return _recorded().get(f"{domain}:{name}:{since}") if known is None else known


def from_schema(domain: str, name: str, since: int) -> Places | None:
    """The same of operators that ONNX has. `domain` and `name` are the operator's, `since` is its version."""
    try:
        schema = onnx.defs.get_schema(name, since, domain)
    except onnx.defs.SchemaError:
        return None
    variables = {constraint.type_param_str for constraint in schema.type_constraints}
    found: dict[str, list[tuple[int, int]]] = {}
    for side, formals in enumerate((schema.inputs, schema.outputs)):
        for index, formal in enumerate(formals):
            key = formal.type_str if formal.type_str in variables else formal.name
            found.setdefault(key, []).append((side, index))
    return {key: tuple(places) for key, places in found.items()}


@lru_cache(maxsize=1)
def _recorded() -> Mapping[str, Places]:
    lines = RECORD.read_text(encoding="utf-8").splitlines()
    return dict(_parsed(line) for line in lines if not line.startswith("#"))


def _parsed(line: str) -> tuple[str, Places]:
    title, *kinds = line.split(" ")
    places = {}
    for kind in kinds:
        name, _, arguments = kind.partition("=")
        places[name] = tuple((_SIDES.index(a[0]), int(a[1:])) for a in arguments.split(","))
    return title, places


def rendered(record: Mapping[str, Places]) -> str:
    """The text of RECORD."""
    lines = []
    for title, places in sorted(record.items()):
        kinds = (
            f"{name}={','.join(f'{_SIDES[side]}{index}' for side, index in arguments)}"
            for name, arguments in sorted(places.items())
        )
        lines.append(" ".join((title, *kinds)) + "\n")
    return _HEAD + "".join(lines)
