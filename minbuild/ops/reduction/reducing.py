"""What all reductions share: which axes, which shape, and how an input is laid out for a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from minbuild.ir import Shape, TensorType
from minbuild.ir.dims import Dim, product
from minbuild.ops.core.definition import Case, Site, Unknown, normalized_axes
from minbuild.ops.core.graph_builder import Backward, Body


def axes_of(site: Site) -> tuple[int, ...]:
    """The axes an operator reduces: an attribute in older opsets, an input in newer ones. None given means all of
    them, or with `noop_with_empty_axes` none."""
    given = tuple(site.dims(1)) if site.has(1) else tuple(site.attribute("axes") or ())
    if not given:
        return () if site.attribute("noop_with_empty_axes", 0) else tuple(range(site.rank()))
    return normalized_axes((int(a) for a in given), site.rank())  # type: ignore[arg-type]


def keeps(site: Site) -> bool:
    """Whether reduced axes stay, with size 1."""
    return bool(site.attribute("keepdims", 1))


def reduced(shape: Shape, axes: Iterable[int], keep: bool) -> Shape:
    """The shape that remains."""
    gone = set(axes)
    return tuple(1 if i in gone else d for i, d in enumerate(shape) if keep or i not in gone)


def infer(site: Site) -> Sequence[TensorType]:
    return (TensorType(site.element(), reduced(site.shape(), axes_of(site), keeps(site))),)


def _folded(shape: Shape, axes: Iterable[int]) -> list[tuple[bool, tuple[int, ...]]]:
    """Neighbouring axes of one kind (reduced or not) together; axes of size 1 left out."""
    chosen = set(axes)
    wide = [i for i, d in enumerate(shape) if d != 1]
    return [(kind, tuple(run)) for kind, run in groupby(wide, key=lambda i: i in chosen)]


def groups_of(shape: Shape, axes: Iterable[int]) -> tuple[Dim, ...]:
    """The input as [reduced, kept, reduced, kept, reduced]: as much as possible at the end, where sums run over
    contiguous elements. Raises Unknown where reduced and kept axes alternate more often; `in_steps` avoids that."""
    runs = _folded(shape, axes)
    groups: list[Dim] = []
    for kind in (True, False, True, False, True):
        fits = runs and runs[-1][0] == kind
        groups.insert(0, product([shape[i] for i in runs.pop()[1]]) if fits else 1)
    if runs:
        raise Unknown(f"reduces axes {sorted(axes)} of {list(shape)}, which alternate too often")
    return tuple(groups)


def in_steps(op_type: str) -> Callable[[Body], Sequence[str] | None]:
    """The body of a reduction whose axes alternate too often for the kernel: the last of them first."""

    def body(b: Body) -> Sequence[str] | None:
        shape, axes = b.site.shape(), axes_of(b.site)
        runs = _folded(shape, axes)
        if len(runs) < 5 or (len(runs) == 5 and runs[0][0]):
            return None
        last = next(run for kind, run in reversed(runs) if kind)
        return (b.reduce(op_type, b.reduce(op_type, b.x[0], last), axes, keeps(b.site)),)

    return body


def reference(
    function: Callable[..., Any], finish: Callable[[Any], Any] = lambda y: y
) -> Callable[..., np.ndarray]:
    """`finish(function(x, axis=, keepdims=))`. Over no axes `function` still sees every element, as ONNX wants it."""

    def reference(attributes: Mapping[str, Any], x: np.ndarray, axes: np.ndarray | None = None) -> np.ndarray:
        if x.dtype == object:
            raise TypeError("no reduction of dimensions")
        given = tuple(axes.tolist()) if axes is not None else tuple(attributes.get("axes") or ())
        if not given and not attributes.get("noop_with_empty_axes", 0):
            given = tuple(range(x.ndim))
        with np.errstate(all="ignore"):
            y = finish(function(x, axis=given, keepdims=bool(attributes.get("keepdims", 1))))
        return np.asarray(y)

    return reference


Numbers = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def normal(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(random.standard_normal(shape))


def positive(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(random.uniform(0.5, 2, shape))


def apart(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of both signs of which none is near another, or near 0."""
    count = int(np.prod(shape))
    steps = random.permutation(count) - count / 2 + 0.25
    return np.asarray((steps / 8).reshape(shape))


def cases(numbers: Numbers = normal, ulps: float = 16) -> Callable[..., Iterable[Case]]:
    """Every way in which axes can lie, with axes as a constant input."""

    def made(random: np.random.Generator) -> Iterable[Case]:
        for shape, axes in _LAYOUTS:
            for keep in (0, 1):
                inputs = (numbers(random, shape), np.array(axes, np.int64))
                name = f"{list(shape)} over {axes}, keepdims {keep}"
                yield Case(name, inputs, {"keepdims": keep}, frozenset({1}), ulps=ulps)
        yield Case("all axes", (numbers(random, (6, 5)),), {"keepdims": 0}, ulps=2 * ulps)
        yield Case("scalar", (numbers(random, ()),), ulps=ulps)
        for noop in (0, 1):
            inputs = (numbers(random, (3, 4)), np.zeros(0, np.int64))
            yield Case(f"no axes, {noop}", inputs, {"noop_with_empty_axes": noop}, frozenset({1}), ulps=ulps)

    return made


_LAYOUTS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((5,), (0,)),
    ((3, 7), (0,)),
    ((3, 7), (1,)),
    ((2, 3, 5, 7), (0, 2, 3)),
    ((2, 3, 4, 5), (1, 3)),
    ((2, 3, 4, 5), (0, 2)),
    ((2, 3, 4, 5, 2), (1, 3)),
    ((2, 3, 2, 3, 2, 3), (0, 2, 4)),
    ((4, 33), (-2, -1)),
    ((1, 6, 1), (0, 2)),
)


def spread(b: Backward, value: str) -> str:
    """A value with the shape of the result, with the reduced axes back in place, so that it broadcasts."""
    if keeps(b.site):
        return value
    return b.unsqueeze(value, axes_of(b.site))


def expanded(b: Backward, value: str) -> str:
    """`spread`, and as large as the input."""
    return b.add("Expand", spread(b, value), b.shape_of(b.x[0]))
