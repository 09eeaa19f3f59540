"""Refused batches in words: which input is what, and what the model takes, read from the plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from minbuild.ir.mapped import FileBytes
from minbuild.planning.plan_inputs import PlanInput, read_plan_inputs

INVALID_ARGUMENT, BAD_SHAPE, BAD_VALUE, UNSUPPORTED = 1, 6, 7, 9  # mb_status


def refusal(plan: FileBytes, graph: int, status: int, inputs: Sequence[np.ndarray]) -> str:
    """The reason in the inputs why a step ended with `status`, or "" where they do not explain it. `plan` is the
    trainer's, `graph` the number of the step's graph, `inputs` its arrays in order."""
    known = read_plan_inputs(plan)
    expected = known.of(graph)
    if status == INVALID_ARGUMENT and len(inputs) != len(expected):
        names = ", ".join(each.name for each in expected)
        return f"{_count(len(inputs))} given, the model takes {len(expected)}: {names}."
    if status == BAD_SHAPE:
        return _unlike(expected, inputs) or _uncounted(known.symbols, expected, inputs)
    if status == BAD_VALUE:
        return next(_labels_outside(expected, inputs), "")
    return ""


def _count(number: int) -> str:
    return "1 input was" if number == 1 else f"{number} inputs were"


def _unlike(expected: Sequence[PlanInput], inputs: Sequence[np.ndarray]) -> str:
    """The first input whose type, rank or size is not what the model takes."""
    found: dict[
        str, tuple[str, int]
    ] = {}  # free dimension -> the input that had it first, and its size there
    for each, array in zip(expected, inputs, strict=False):
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


def _uncounted(
    planned: Mapping[str, int], expected: Sequence[PlanInput], inputs: Sequence[np.ndarray]
) -> str:
    """Free dimensions beyond the sizes that memory was `planned` for, where a plan of that width cannot count more."""
    beyond = {
        size: have
        for each, array in zip(expected, inputs, strict=False)
        for size, have in zip(each.sizes, array.shape, strict=True)
        if isinstance(size, str) and have > planned[size]
    }
    if not beyond:
        return ""
    found = ", ".join(f"'{name}' is {have:,}, planned for {planned[name]:,}" for name, have in beyond.items())
    sizes = " ".join(f"--max-dim {name}={have}" for name, have in beyond.items())
    return f"the memory of these sizes is more than this plan counts: {found}. Reduce with {sizes}."


def _labels_outside(expected: Sequence[PlanInput], inputs: Sequence[np.ndarray]) -> Iterator[str]:
    """Labels of a loss that are no class, where an input has them as they are."""
    for each, array in zip(expected, inputs, strict=True):
        if each.labels is None:
            continue
        outside = (array < 0) | (array >= each.labels.classes)
        if each.labels.ignored is not None:
            outside &= array != each.labels.ignored
        for place in np.argwhere(outside)[:1]:
            at = f"sample {place[0]}" if len(place) == 1 else f"place {place.tolist()}"
            label = array[tuple(place)]
            yield f"label {label} is outside 0..{each.labels.classes - 1} ({at} of input '{each.name}')."
