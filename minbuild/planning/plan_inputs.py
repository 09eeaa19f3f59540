"""The inputs that a plan's graphs take, as its bytes have them: names, types, sizes, and the classes of labels. Wrong
batches are explained from this, in Python and in the bindings."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from minbuild.ir import ElementType
from minbuild.ir.mapped import FileBytes
from minbuild.planning.plan_encoding import EXPRESSIONS, decode_plan, stable_key

_CONSTANT, _SYMBOL = EXPRESSIONS.index("Constant"), EXPRESSIONS.index("Symbol")
# Kernels of losses over classes -> where their arguments scores [N,classes,...] and labels are.
_LABELS = {"softmax_cross_entropy": (2, 3), "nll_loss": (1, 2)}

Size = int | str | None  # a number, the name of a free dimension, or an expression that is neither


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels that a loss takes: 0 to `classes` - 1, and the one that it ignores."""

    classes: int
    ignored: int | None


@dataclass(frozen=True, slots=True)
class PlanInput:
    """An input of a graph as the plan has it; `labels` where a loss reads it as labels."""

    name: str
    type: ElementType
    sizes: tuple[Size, ...]
    labels: Labels | None

    @property
    def shape(self) -> str:
        """Its sizes as they are written: [batch, 10]."""
        return f"[{', '.join('?' if size is None else str(size) for size in self.sizes)}]"


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """The inputs of training and evaluation, and the free dimensions with the sizes that sessions have memory for
    unless they are created with others. `key` distinguishes models, see `_key`."""

    train: tuple[PlanInput, ...]
    evaluate: tuple[PlanInput, ...]
    symbols: Mapping[str, int]
    key: int

    def of(self, graph: int) -> tuple[PlanInput, ...]:
        """Those of a graph by its number in trainer.h; only the first two have inputs."""
        return (self.train, self.evaluate)[graph] if graph < 2 else ()


def read_plan_inputs(plan: FileBytes) -> PlanInputs:
    """The inputs of a plan's graphs. Raises ValueError for bytes that are no plan."""
    tables = decode_plan(plan)
    symbols = [_name(tables, at) for at in tables["symbols"]]
    return PlanInputs(
        _inputs(tables, 0),
        _inputs(tables, 1),
        dict(zip(symbols, map(int, tables["defaults"]), strict=True)),
        _key(tables),
    )


def _inputs(tables: Mapping[str, Any], graph: int) -> tuple[PlanInput, ...]:
    labels = dict(reversed(list(_labels(tables, graph))))  # the first loss that reads an input counts
    return tuple(
        PlanInput(
            _name(tables, port["name"]),
            ElementType(int(tables["tensors"][int(port["tensor"])]["type"])),
            _sizes(tables, int(port["tensor"])),
            labels.get(int(port["tensor"])),
        )
        for port in _input_ports(tables, graph)
    )


def _input_ports(tables: Mapping[str, Any], graph: int) -> Any:
    row = tables["graphs"][graph]
    return tables["ports"][int(row["ports"]) : int(row["ports"]) + int(row["input_count"])]


def _labels(tables: Mapping[str, Any], graph: int) -> Iterator[tuple[int, Labels]]:
    """Tensors that losses read as labels."""
    args, params = tables["args"], tables["params"]
    first, count = int(tables["graphs"][graph]["steps"]), int(tables["graphs"][graph]["step_count"])
    for step in tables["steps"][first : first + count]:
        kernel = _name(tables, tables["kernels"][int(step["kernel"])]["name"]).split("<")[0]
        if kernel not in _LABELS:
            continue
        scores, labels = (int(args[int(step["args"]) + place]) for place in _LABELS[kernel])
        classes = _sizes(tables, scores)[1]
        if isinstance(classes, int):
            ignores, ignored = (int(n) for n in params[int(step["params"]) + 1 : int(step["params"]) + 3])
            yield labels, Labels(classes, ignored if ignores else None)


def _key(tables: Mapping[str, Any]) -> int:
    """A number that other models hardly have: the sum, in 32 bits, of the hashes of all inputs and parameters, of
    names, types and sizes as `mb_get` gives them, where one that is free is -1. Bindings compute it of a session, and
    so find its model among those of the package, or none if the session's plan came from elsewhere."""
    total = 0
    for port in [*_input_ports(tables, 0), *_input_ports(tables, 1), *tables["parameters"]]:
        tensor = int(port["tensor"])
        sizes = [size if isinstance(size, int) else -1 for size in _sizes(tables, tensor)]
        numbers = [int(tables["tensors"][tensor]["type"]), *sizes]
        data = _name(tables, port["name"]).encode() + struct.pack(f"<{len(numbers)}i", *numbers)
        total += stable_key(data)
    return total & 0xFFFFFFFF


def _sizes(tables: Mapping[str, Any], tensor: int) -> tuple[Size, ...]:
    shapes, at = tables["shapes"], int(tables["tensors"][tensor]["shape"])
    return tuple(_size(tables, int(e)) for e in shapes[at + 1 : at + 1 + int(shapes[at])])


def _size(tables: Mapping[str, Any], expression: int) -> Size:
    row = tables["exprs"][expression]
    if row["op"] == _CONSTANT:
        return int(row["a"]) if int(row["b"]) == 0 else None
    return _name(tables, tables["symbols"][int(row["a"])]) if row["op"] == _SYMBOL else None


def _name(tables: Mapping[str, Any], at: int) -> str:
    names = tables["names"].tobytes()
    return bytes(names[int(at) : names.index(0, int(at))]).decode("utf-8", "replace")
