"""Operators that select elements by data that must be known when the trainer is built, and operators that decompose
into others of this family."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType, TensorType
from minbuild.ir.dims import Dim, product
from minbuild.ops.core.definition import INT64, KernelCall, Op, OpContext, TestCase, UnsupportedUse
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value
from minbuild.ops.movement import trilu as _trilu
from minbuild.ops.shape import fill as _fill

# -------------------------------------------------------------------------- Compress, NonZero, Unique


def _kept(ctx: OpContext) -> np.ndarray:
    """The positions at which the condition of Compress holds."""
    condition = ctx.content(1)
    if condition is None or condition.dtype == object:
        raise UnsupportedUse(
            "its condition decides the size of the result: it must be a constant. Keep all elements, and multiply by "
            "the condition, or choose between the two with Where; or make the artifacts here from the forward model"
        )
    return np.flatnonzero(condition)


def _compress_body(b: GraphBuilder) -> Results:
    axis = b.ctx.attribute("axis")
    x = b.x[0] if axis is not None else b.x[0].reshape([-1])
    return b.add("Gather", x, b.integers(_kept(b.ctx).tolist()), axis=int(axis or 0))


def _compress_reference(attributes: Mapping[str, Any], x: np.ndarray, condition: np.ndarray) -> np.ndarray:
    return np.compress(condition, x, attributes.get("axis"))


def _compress_gradient(b: GradientBuilder) -> Results:
    """The gradient of the selected elements; the others get zeros."""
    axis, kept = b.ctx.attribute("axis"), b.integers(_kept(b.ctx).tolist())
    if axis is not None:
        return b.microsoft("GatherGrad", b.x[0].shape(), kept, b.dy[0], axis=int(axis))
    size = b.x[0].size().reshape([1])
    flat = b.microsoft("GatherGrad", size, kept, b.dy[0], axis=0)
    return flat.reshape_like(b.x[0])


def _compress_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, axis, condition in (
        ((4,), None, (1, 0, 1, 1)),
        ((3, 4), None, (0, 1, 1, 0, 1)),
        ((3, 4), 1, (0, 1, 0, 1)),
        ((3, 4), 0, (1, 0, 1)),
        ((2, 3, 4), -2, (0, 1)),
    ):
        x, chosen = random.standard_normal(shape), np.array(condition, bool)
        attributes = {} if axis is None else {"axis": axis}
        yield TestCase(f"{list(shape)} {attributes}", (x, chosen), attributes, frozenset({1}), ulps=0)


compress = Op(
    "Compress",
    since=(9, 11, 28),
    reference=_compress_reference,
    decompose=_compress_body,
    decomposes_to=("Gather",),
    cases=_compress_cases,
    gradient=_compress_gradient,
)


def _known_numbers(ctx: OpContext) -> np.ndarray:
    content = ctx.content(0)
    if content is None or content.dtype == object:
        raise UnsupportedUse(
            "its result's size depends on data: the input must be a constant. Keep all elements, with a mask that "
            "has a fixed size; or make the artifacts here from the forward model, where what a mask selects may be used"
        )
    return content


def _non_zero_reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    if x.ndim == 0:
        return np.zeros((0, int(x != 0)), np.int64)
    return np.array(np.nonzero(x), np.int64)


def _non_zero_infer(ctx: OpContext) -> Sequence[TensorType]:
    return (TensorType(INT64, _non_zero_reference({}, _known_numbers(ctx)).shape),)


non_zero = Op("NonZero", since=(9, 13), infer=_non_zero_infer, reference=_non_zero_reference)


def _unique_reference(attributes: Mapping[str, Any], x: np.ndarray) -> tuple[np.ndarray, ...]:
    axis = attributes.get("axis")
    y, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not attributes.get("sorted", 1):
        order = np.argsort(first)
        y, first, counts = np.take(y, order, axis or 0), first[order], counts[order]
        inverse = np.argsort(order)[inverse]
    return y, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


def _unique_infer(ctx: OpContext) -> Sequence[TensorType]:
    y, *others = _unique_reference(ctx.attributes, _known_numbers(ctx))
    return TensorType(ctx.element(), y.shape), *(TensorType(INT64, other.shape) for other in others)


unique = Op("Unique", since=(11, 28), infer=_unique_infer, reference=_unique_reference)


# ------------------------------------------------------------------------------------------------- EyeLike


def _eye_infer(ctx: OpContext) -> Sequence[TensorType]:
    shape = ctx.shape()
    if len(shape) not in (1, 2):
        raise UnsupportedUse(f"it makes matrices, and its input is {list(shape)}")
    requested = ctx.attribute("dtype")
    element = ctx.element() if requested is None else ElementType(int(requested))
    return (TensorType(element, shape if len(shape) == 2 else (shape[0], shape[0])),)


def _eye_known(ctx: OpContext) -> Sequence[np.ndarray | None]:
    tensor = _eye_infer(ctx)[0]
    count = product(tensor.shape or ())
    if not isinstance(count, int) or count > _fill.SMALL:
        return (None,)
    rows, columns = tensor.shape or ()
    return (np.eye(int(rows), int(columns), int(ctx.attribute("k", 0)), dtype=tensor.element.dtype),)  # type: ignore[arg-type]


def _eye_reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    rows, columns = x.shape if x.ndim == 2 else (x.size, x.size)
    dtype = ElementType(int(attributes["dtype"])).dtype if "dtype" in attributes else x.dtype
    return np.eye(rows, columns, attributes.get("k", 0), dtype=dtype)


def _lower_eye(ctx: OpContext) -> Sequence[KernelCall]:
    """Ones; two triangles keep a diagonal of them."""
    tensor, y, k = ctx.results[0], ctx.result(), int(ctx.attribute("k", 0))
    assert tensor is not None
    return (
        _fill.call_fill(y, tensor.element, 1),
        _trilu.call_triangle(y, y, tensor, k, upper=True),
        _trilu.call_triangle(y, y, tensor, k, upper=False),
    )


def _eye_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in ((70, 65), (65, 70)):
        for k in (0, 3, -2, 100):
            yield TestCase(f"{list(shape)} {k}", (random.standard_normal(shape),), {"k": k}, ulps=0)
        yield TestCase(f"{list(shape)} int32", (random.standard_normal(shape),), {"dtype": 6}, ulps=0)


eye_like = Op(
    "EyeLike",
    since=(9, 22),
    infer=_eye_infer,
    shape_value=_eye_known,
    reference=_eye_reference,
    lower=_lower_eye,
    kernels=(_fill.fill_kernel, _trilu.trilu_kernel),
    cases=_eye_cases,
)


# -------------------------------------------------------- operators made of Gather and ScatterElements


def _features_body(b: GraphBuilder) -> Results:
    chosen = b.add("Gather", b.x[0], b.x[1].reshape([-1]), axis=-1)
    return chosen if b.ctx.rank() > 1 else chosen.unsqueeze((0,))


def _features_reference(attributes: Mapping[str, Any], x: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    return np.atleast_2d(x[..., chosen.ravel().astype(np.int64)])


def _features_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, chosen in (((5,), [0, 3]), ((3, 4), [[2, 0, 2]]), ((2, 3, 4), [1])):
        yield TestCase(f"{list(shape)} {chosen}", (random.standard_normal(shape), np.array(chosen)), ulps=0)


array_feature_extractor = Op(
    "ArrayFeatureExtractor",
    domain="ai.onnx.ml",
    reference=_features_reference,
    decompose=_features_body,
    decomposes_to=("Gather",),
    cases=_features_cases,
)


def _cache_axis(attributes: Mapping[str, Any], rank: int) -> int:
    return int(attributes.get("axis", -2)) % rank


def _number(dim: Dim, what: str) -> int:
    if not isinstance(dim, int):
        raise UnsupportedUse(f"{what}, {dim}, must be known when the trainer is built")
    return dim


def _cache_places(b: GraphBuilder, axis: int) -> Value:
    """The index in the cache of each element of the update: `write index + place`. In a circular cache indices beyond
    the end wrap around to its beginning."""
    ctx, rank = b.ctx, b.ctx.rank()
    size, count = (_number(ctx.shape(i)[axis], "the size along its axis") for i in (0, 1))
    circular = ctx.attribute("mode", "linear") == "circular"
    places = np.arange(count).reshape([-1 if i == axis else 1 for i in range(rank)]) - size * circular
    at = b.constant(places, INT64)
    if b.has(2):
        at = at + b.x[2].unsqueeze(tuple(range(1, rank)))
    return at.expand_like(b.x[1])


def _cache_body(b: GraphBuilder) -> Results:
    axis = _cache_axis(b.ctx.attributes, b.ctx.rank())
    return b.add("ScatterElements", b.x[0], _cache_places(b, axis), b.x[1], axis=axis)


def _cache_reference(
    attributes: Mapping[str, Any], past: np.ndarray, update: np.ndarray, starts: np.ndarray | None = None
) -> np.ndarray:
    axis, y = _cache_axis(attributes, past.ndim), past.copy()
    for batch in range(past.shape[0]):
        first = 0 if starts is None else int(starts[batch])
        places = (first + np.arange(update.shape[axis])) % past.shape[axis]
        y[batch][(slice(None),) * (axis - 1) + (places,)] = update[batch]
    return y


def _cache_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, axis, count in (((2, 5, 3), -2, 2), ((2, 3, 4, 5), 2, 1), ((3, 6), 1, 6)):
        update = random.standard_normal([count if i == axis % len(shape) else d for i, d in enumerate(shape)])
        size = shape[axis]
        for mode in ("linear", "circular"):
            starts = random.integers(0, size if mode == "circular" else size - count + 1, shape[0])
            inputs = (random.standard_normal(shape), update, starts)
            yield TestCase(f"{list(shape)} {mode}", inputs, {"axis": axis, "mode": mode}, ulps=0)
    yield TestCase("from the start", (random.standard_normal(shape), update), {"axis": axis}, ulps=0)


def _cache_gradient(b: GradientBuilder) -> Results:
    """Overwritten elements have no gradient."""
    axis = _cache_axis(b.ctx.attributes, b.ctx.rank())
    at = _cache_places(b, axis)
    zeros = b.add("ConstantOfShape", b.x[1].shape(), value=np.zeros(1, b.ctx.element().dtype))
    kept = b.add("ScatterElements", b.dy[0], at, zeros, axis=axis)
    return (kept, b.add("GatherElements", b.dy[0], at, axis=axis))


tensor_scatter = Op(
    "TensorScatter",
    since=(24,),
    reference=_cache_reference,
    decompose=_cache_body,
    decomposes_to=("Add", "Expand", "ScatterElements"),
    cases=_cache_cases,
    gradient=_cache_gradient,
)

OPS = (compress, non_zero, unique, eye_like, array_feature_extractor, tensor_scatter)
