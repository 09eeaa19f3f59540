"""Shared by all reductions: which axes, which shape, and how an input is laid out for a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from minbuild.ir import Shape, TensorType
from minbuild.ir.dims import Dim, product
from minbuild.ops.core.definition import OpContext, TestCase, UnsupportedUse, normalized_axes
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value


def axes_of(ctx: OpContext) -> tuple[int, ...]:
    """The axes an operator reduces: an attribute in older opsets, an input in newer ones. None given means all of
    them, or with `noop_with_empty_axes` none."""
    given = tuple(ctx.dims(1)) if ctx.has(1) else tuple(ctx.attribute("axes") or ())
    if not given:
        return () if ctx.attribute("noop_with_empty_axes", 0) else tuple(range(ctx.rank()))
    return normalized_axes((int(a) for a in given), ctx.rank())  # type: ignore[arg-type]


def keeps(ctx: OpContext) -> bool:
    """True if reduced axes stay, with size 1."""
    return bool(ctx.attribute("keepdims", 1))


def reduced(shape: Shape, axes: Iterable[int], keep: bool) -> Shape:
    """`shape` without `axes`, or with one element along them where `keep`."""
    gone = set(axes)
    return tuple(1 if i in gone else d for i, d in enumerate(shape) if keep or i not in gone)


def infer(ctx: OpContext) -> Sequence[TensorType]:
    return (TensorType(ctx.element(), reduced(ctx.shape(), axes_of(ctx), keeps(ctx))),)


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
        raise UnsupportedUse(f"reduces axes {sorted(axes)} of {list(shape)}, which alternate too often")
    return tuple(groups)


def in_steps(op_type: str) -> Callable[[GraphBuilder], Results]:
    """The body of a reduction whose axes alternate too often for the kernel: the last of them first."""

    def body(b: GraphBuilder) -> Results:
        shape, axes = b.ctx.shape(), axes_of(b.ctx)
        runs = _folded(shape, axes)
        if len(runs) < 5 or (len(runs) == 5 and runs[0][0]):
            return None
        last = next(run for kind, run in reversed(runs) if kind)
        return b.reduce(op_type, b.reduce(op_type, b.x[0], last), axes, keeps(b.ctx))

    return body


def reference(
    function: Callable[..., Any], finish: Callable[[Any], Any] = lambda y: y
) -> Callable[..., np.ndarray]:
    """`finish(function(x, axis=, keepdims=))`. Over no axes `function` still sees every element, as ONNX requires
    it."""

    def reference(attributes: Mapping[str, Any], x: np.ndarray, axes: np.ndarray | None = None) -> np.ndarray:
        if x.dtype == object and function not in (np.prod, np.sum):
            raise TypeError("no such reduction of dimensions")
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


def distinct(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of both signs, none near another or near 0."""
    count = int(np.prod(shape))
    steps = random.permutation(count) - count / 2 + 0.25
    return np.asarray((steps / 8).reshape(shape))


def cases(numbers: Numbers = normal, ulps: float = 16) -> Callable[..., Iterable[TestCase]]:
    """Every way in which axes can lie, with axes as a constant input."""

    def made(random: np.random.Generator) -> Iterable[TestCase]:
        for shape, axes in _LAYOUTS:
            for keep in (0, 1):
                inputs = (numbers(random, shape), np.array(axes, np.int64))
                name = f"{list(shape)} over {axes}, keepdims {keep}"
                yield TestCase(name, inputs, {"keepdims": keep}, frozenset({1}), ulps=ulps)
        yield TestCase("all axes", (numbers(random, (6, 5)),), {"keepdims": 0}, ulps=2 * ulps)
        yield TestCase("scalar", (numbers(random, ()),), ulps=ulps)
        for noop in (0, 1):
            inputs = (numbers(random, (3, 4)), np.zeros(0, np.int64))
            yield TestCase(
                f"no axes, {noop}", inputs, {"noop_with_empty_axes": noop}, frozenset({1}), ulps=ulps
            )

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


def spread(b: GradientBuilder, value: Value) -> Value:
    """A value with the shape of the result, with the reduced axes back in place, so that it broadcasts."""
    if keeps(b.ctx):
        return value
    return value.unsqueeze(axes_of(b.ctx))


def expanded(b: GradientBuilder, value: Value) -> Value:
    """`spread`, and as large as the input."""
    return spread(b, value).expand_like(b.x[0])


OPS: tuple[()] = ()
