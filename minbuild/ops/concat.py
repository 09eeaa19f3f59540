"""Concat and Split, also as ORT's gradients use them: one copy for every piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from minbuild.dims import Dim, ceil_div, product
from minbuild.model import ElementType, Shape, TensorType
from minbuild.ops.definition import FLOATS, INDICES, INT64, Case, KernelFunction, Launch, Op, Site, Unknown
from minbuild.ops.shape import dims_array

piece_kernel = KernelFunction(
    "copy_piece",
    ("y:T=", "x:T", "place:extent"),
    params=("out",),
    types={"T": (*FLOATS, *INDICES, ElementType.BOOL)},
)


def _pieces(sizes: Sequence[Dim], shape: Shape, axis: int) -> Iterator[TensorType]:
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
    places = _pieces(_sizes(site), site.result_shape(), site.axis(1))
    return [
        piece_kernel.launch(site.result(), name, place, types=(site.element(),), params=(0,))
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
    for dtype in (np.int64, np.int32, np.bool_):
        yield Case(f"of {np.dtype(dtype)}", tuple(n.astype(dtype) for n in numbers), {"axis": 1}, ulps=0)


def _resized(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    at = axis % len(shape)
    return shape[:at] + (size,) + shape[at + 1 :]


concat = Op(
    "Concat",
    since=(4, 11, 13),
    infer=_concat_infer,
    reference=_concat_reference,
    select=_concat_select,
    cases=_concat_cases,
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
)

# ---------------------------------------- splitting


def _split_sizes(site: Site) -> tuple[Dim, ...]:
    """The sizes asked for: input 1, an attribute, or equal shares of which the last may be smaller."""
    if site.has(1):
        return site.dims(1)
    if site.attribute("split") is not None:
        return tuple(site.attribute("split"))
    whole, count = site.shape()[site.axis(0)], int(site.attribute("num_outputs", 0))
    if not count:
        raise Unknown("the number of equal parts is not given; name the sizes in input 'split'")
    share = ceil_div(whole, count)
    return (share,) * (count - 1) + (whole - share * (count - 1),)


def _split_infer(site: Site) -> Sequence[TensorType]:
    axis, shape = site.axis(0), site.shape()
    return [TensorType(site.element(), shape[:axis] + (s,) + shape[axis + 1 :]) for s in _split_sizes(site)]


def _split_reference(attributes: Mapping[str, Any], x: np.ndarray, split: np.ndarray | None = None) -> Any:
    axis = attributes.get("axis", 0)
    sizes = attributes.get("split") if split is None else split.tolist()
    if sizes is None:
        count = attributes["num_outputs"]
        share = -(-x.shape[axis] // count)
        sizes = (share,) * count
    return tuple(np.split(x, np.cumsum(sizes)[:-1], axis))


def _split_select(site: Site) -> Sequence[Launch]:
    places = _pieces(_split_sizes(site), site.shape(), site.axis(0))
    return [
        piece_kernel.launch(name, site.name(0), place, types=(site.element(),), params=(1,))
        for name, place in zip(site.result_names, places, strict=False)
        if name
    ]


def _split_cases(random: np.random.Generator) -> Iterable[Case]:
    for shape, axis, sizes in (
        ((6,), 0, (2, 4)),
        ((3, 9), 1, (4, 5)),
        ((5, 3, 2), -3, (1, 3, 1)),
        ((2, 7, 3), 1, (7,)),
        ((2, 3), -1, (0, 3)),
    ):
        inputs = (random.standard_normal(shape), np.array(sizes, np.int64))
        name, count = f"{list(shape)} axis {axis}, {list(sizes)}", len(sizes)
        yield Case(name, inputs, {"axis": axis}, frozenset({1}), outputs=count, ulps=0)
        if count > 1:
            dropped = frozenset({0})
            yield Case(
                name + ", not the first", inputs, {"axis": axis}, frozenset({1}), count, dropped, ulps=0
            )


def _equal_cases(random: np.random.Generator) -> Iterable[Case]:
    yield from _split_cases(random)
    x = random.standard_normal((3, 10))
    yield Case("equal parts", (x,), {"axis": 1, "num_outputs": 2}, outputs=2, ulps=0)
    yield Case("a smaller last part", (x,), {"axis": 1, "num_outputs": 4}, outputs=4, ulps=0)
    yield Case("attribute", (x,), {"axis": 0, "split": (1, 2)}, outputs=2, ulps=0)


split = Op(
    "Split",
    since=(2, 11, 13, 18),
    infer=_split_infer,
    reference=_split_reference,
    select=_split_select,
    cases=_equal_cases,
)
split_training = Op(
    "SplitTraining",
    domain="com.microsoft",
    infer=_split_infer,
    reference=_split_reference,
    select=_split_select,
    cases=_split_cases,
)
