"""Refused batches in words: which input is what, and what the model takes, read from the plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minbuild.ir import ElementType
from minbuild.planning.plan_encoding import EXPRESSIONS, decode_plan

INVALID_ARGUMENT, BAD_SHAPE, BAD_VALUE = 1, 6, 7  # mb_status
_CONSTANT, _SYMBOL = EXPRESSIONS.index("Constant"), EXPRESSIONS.index("Symbol")
# Kernels of losses over classes -> where their arguments scores [N,classes,...] and labels are.
_LABELS = {"softmax_cross_entropy": (2, 3), "nll_loss": (1, 2)}

Size = int | str | None  # a number, the name of a free dimension, or an expression that is neither


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a graph as the plan has it; `tensor` is its number there."""

    name: str
    type: ElementType
    sizes: tuple[Size, ...]
    tensor: int

    @property
    def shape(self) -> str:
        """Its sizes as they are written: [batch, 10]."""
        return f"[{', '.join('?' if size is None else str(size) for size in self.sizes)}]"


def refusal(plan: bytes, graph: int, status: int, inputs: Sequence[np.ndarray]) -> str:
    """The reason in the inputs why a step ended with `status`, or "" where they do not explain it."""
    tables = decode_plan(plan)
    wanted = _inputs(tables, graph)
    if status == INVALID_ARGUMENT and len(inputs) != len(wanted):
        names = ", ".join(each.name for each in wanted)
        return f"{_count(len(inputs))} given, the model takes {len(wanted)}: {names}."
    if status == BAD_SHAPE:
        return _unlike(wanted, inputs)
    if status == BAD_VALUE:
        return next(_labels_outside(tables, graph, wanted, inputs), "")
    return ""


def _count(number: int) -> str:
    return "1 input was" if number == 1 else f"{number} inputs were"


def _unlike(wanted: Sequence[Input], inputs: Sequence[np.ndarray]) -> str:
    """The first input whose type, rank or size is not what the model takes."""
    found: dict[
        str, tuple[str, int]
    ] = {}  # free dimension -> the input that had it first, and its size there
    for each, array in zip(wanted, inputs, strict=False):
        name, dtype = f"input '{each.name}'", each.type.dtype
        if array.dtype != dtype:
            cure = f" Convert it with astype(numpy.{dtype})." if hasattr(np, str(dtype)) else ""
            return f"{name} is {array.dtype}, the model takes {dtype}.{cure}"
        shape = list(array.shape)
        if len(shape) != len(each.sizes):
            return f"{name} has the shape {shape}, the model takes {each.shape}."
        for size, have in zip(each.sizes, shape, strict=True):
            if isinstance(size, int) and size != have:
                return f"{name} has the shape {shape}, the model takes {each.shape}."
            if isinstance(size, str):
                first, before = found.setdefault(size, (name, have))
                if before != have:
                    return f"{name} has {have} along '{size}', {first} has {before}."
                if have == 0:
                    return f"{name} is empty along '{size}', which is 1 at least."
    return ""


def _labels_outside(
    tables: dict[str, Any], graph: int, wanted: Sequence[Input], inputs: Sequence[np.ndarray]
) -> Iterator[str]:
    """Labels of a loss that are no class, where an input has them as they are."""
    by_tensor = {each.tensor: (each, array) for each, array in zip(wanted, inputs, strict=True)}
    args, params = tables["args"], tables["params"]
    first, count = int(tables["graphs"][graph]["steps"]), int(tables["graphs"][graph]["step_count"])
    for step in tables["steps"][first : first + count]:
        kernel = _name(tables, tables["kernels"][int(step["kernel"])]["name"]).split("<")[0]
        if kernel not in _LABELS:
            continue
        scores, labels = (int(args[int(step["args"]) + place]) for place in _LABELS[kernel])
        classes = _sizes(tables, scores)[1]
        if labels not in by_tensor or not isinstance(classes, int):
            continue
        each, array = by_tensor[labels]
        ignores, ignored = (int(n) for n in params[int(step["params"]) + 1 : int(step["params"]) + 3])
        outside = (array < 0) | (array >= classes)
        if ignores:
            outside &= array != ignored
        for place in np.argwhere(outside)[:1]:
            at = f"sample {place[0]}" if len(place) == 1 else f"place {place.tolist()}"
            label = array[tuple(place)]
            yield f"label {label} is outside 0..{classes - 1} ({at} of input '{each.name}')."


def _inputs(tables: dict[str, Any], graph: int) -> list[Input]:
    row = tables["graphs"][graph]
    first, count = int(row["ports"]), int(row["input_count"])
    return [
        Input(
            _name(tables, port["name"]),
            ElementType(int(tables["tensors"][int(port["tensor"])]["type"])),
            _sizes(tables, int(port["tensor"])),
            int(port["tensor"]),
        )
        for port in tables["ports"][first : first + count]
    ]


def _sizes(tables: dict[str, Any], tensor: int) -> tuple[Size, ...]:
    shapes, at = tables["shapes"], int(tables["tensors"][tensor]["shape"])
    return tuple(_size(tables, int(e)) for e in shapes[at + 1 : at + 1 + int(shapes[at])])


def _size(tables: dict[str, Any], expression: int) -> Size:
    row = tables["exprs"][expression]
    if row["op"] == _CONSTANT:
        return int(row["a"]) if int(row["b"]) == 0 else None
    return _name(tables, tables["symbols"][int(row["a"])]) if row["op"] == _SYMBOL else None


def _name(tables: dict[str, Any], at: int) -> str:
    names = tables["names"].tobytes()
    return bytes(names[int(at) : names.index(0, int(at))]).decode("utf-8", "replace")
