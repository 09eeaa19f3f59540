"""Concat, also as ORT's gradients use it: one copy for every piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from minbuild.ir import ElementType, Shape, TensorType
from minbuild.ir.dims import Dim, product
from minbuild.ops.core.definition import INT64, STORED, Case, KernelFunction, Launch, Op, Site, stored
from minbuild.ops.core.graph_builder import Backward
from minbuild.ops.core.pattern import Match, Replacement, Rewrite, RewritingOp
from minbuild.ops.shape.shape import dims_array

piece_kernel = KernelFunction(
    "copy_piece",
    ("y:T=", "x:T", "place:extent"),
    params=("out",),
    types={"T": STORED},
)


def launch_piece(y: str, x: str, place: TensorType, element: ElementType, out: bool) -> Launch:
    """A copy of piece `x` into `y`, or where `out`, of piece `y` out of `x`."""
    return piece_kernel.launch(y, x, place, types=(stored(element),), params=(out,))


def pieces(sizes: Sequence[Dim], shape: Shape, axis: int) -> Iterator[TensorType]:
    """Where each piece stands in a tensor of `shape`: [rows, first column]."""
    rows, inner = product(shape[:axis]), product(shape[axis + 1 :])
    for start in accumulate(sizes, initial=0):
        yield TensorType(ElementType.UINT8, (rows, start * inner))


# ---------------------------------------- concatenation


def _sizes(site: Site) -> list[Dim]:
    """The inputs' sizes along the axis."""
    axis = site.axis(1)
    return [site.shape(i)[axis] for i in range(len(site.inputs))]


def _concat_infer(site: Site) -> Sequence[TensorType]:
    axis, shape = site.axis(1), site.shape()
    total: Dim = sum(_sizes(site), 0)
    return (TensorType(site.element(), shape[:axis] + (total,) + shape[axis + 1 :]),)


def _concat_reference(attributes: Mapping[str, Any], *inputs: np.ndarray) -> np.ndarray:
    return np.concatenate(inputs, attributes.get("axis", 1))


def _concat_select(site: Site) -> Sequence[Launch]:
    places = pieces(_sizes(site), site.result_shape(), site.axis(1))
    return [
        launch_piece(site.result(), name, place, site.element(), out=False)
        for i, (name, place) in enumerate(zip(site.names, places, strict=False))
        if product(site.shape(i)) != 0
    ]


def _concat_cases(random: np.random.Generator) -> Iterable[Case]:
    for shape, axis, sizes in (
        ((5,), 0, (1, 3)),
        ((2, 3), 1, (4, 1, 7)),
        ((2, 3, 4), -3, (2, 1)),
        ((2, 3, 4, 5), 1, (3, 3)),
        ((3, 2, 1), -1, (1, 2, 1, 5)),
        ((2, 3), 0, (3,)),
        ((2, 3), 1, (0, 2)),
    ):
        inputs = [random.standard_normal(_resized(shape, axis, size)) for size in sizes]
        name, empty = f"{list(shape)} axis {axis}, {list(sizes)}", {i for i, s in enumerate(sizes) if s == 0}
        yield Case(name, tuple(inputs), {"axis": axis}, frozenset(empty), ulps=0)
    numbers = tuple(random.integers(0, 2, (3, size)) for size in (2, 5))
    for dtype in (np.int64, np.int32, np.bool_, np.float16):
        yield Case(f"of {np.dtype(dtype)}", tuple(n.astype(dtype) for n in numbers), {"axis": 1}, ulps=0)


def _resized(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    at = axis % len(shape)
    return shape[:at] + (size,) + shape[at + 1 :]


def _gradient(b: Backward) -> Sequence[str]:
    """The pieces, cut apart again. Sizes that inputs choose are an output of ConcatTraining."""
    axis, sizes = b.site.axis(1), _sizes(b.site)
    if all(isinstance(size, int) for size in sizes):
        if b.opset >= 13:
            return b.each(*b.many(len(sizes), "Split", b.dy[0], b.integers(sizes), axis=axis))
        return b.each(*b.many(len(sizes), "Split", b.dy[0], axis=axis, split=tuple(sizes)))
    b.become("ConcatTraining")
    return _training_gradient(b)


def _training_gradient(b: Backward) -> Sequence[str]:
    inputs = b.dy[0], b.save(1)
    axis = b.site.axis(1)
    return b.each(*b.many(len(b.x), "SplitTraining", *inputs, domain="com.microsoft", axis=axis))


def _alone(match: Match) -> Replacement | None:
    return Replacement(":Identity", ("x",), {})


concat = RewritingOp(
    "Concat",
    since=(1, 4, 11, 13),
    infer=_concat_infer,
    reference=_concat_reference,
    select=_concat_select,
    cases=_concat_cases,
    gradient=_gradient,
    rewrites=(Rewrite(("Concat", "x"), _alone),),
)


def _training_infer(site: Site) -> Sequence[TensorType]:
    return (*_concat_infer(site), TensorType(INT64, (len(site.inputs),)))


def _training_known(site: Site) -> Sequence[np.ndarray | None]:
    return None, dims_array(_sizes(site))


def _training_reference(attributes: Mapping[str, Any], *inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    axis = attributes.get("axis", 1)
    return np.concatenate(inputs, axis), np.array([x.shape[axis] for x in inputs], np.int64)


def _training_cases(random: np.random.Generator) -> Iterable[Case]:
    for case in _concat_cases(random):
        yield Case(case.name, case.inputs, case.attributes, case.constant, outputs=2, ulps=0)


concat_training = Op(
    "ConcatTraining",
    domain="com.microsoft",
    infer=_training_infer,
    known=_training_known,
    reference=_training_reference,
    select=_concat_select,
    cases=_training_cases,
    gradient=_training_gradient,
)
