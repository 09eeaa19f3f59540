"""AveragePool over one to three spatial axes, sums over the same windows, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import Shape, TensorType
from minbuild.ir.dims import Dim
from minbuild.ops.convolution.sliding_window import (
    WINDOW_PARAMS,
    Axis,
    as_volumes,
    axes,
    explicit_pads,
    padding_of,
    pool_axes,
    pooled_shape,
    taps_of,
    unpadded,
    window_params,
)
from minbuild.ops.core.definition import (
    FLOATS,
    EqualLowering,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    UnsupportedUse,
)
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.value import Results
from minbuild.ops.movement.expand import call_expanded, expand_kernel
from minbuild.ops.reduction.reduce import reduce_kernel

_PARAMS = (*WINDOW_PARAMS, "after_d:int", "after_h:int", "after_w:int", "divides:int")
_FEATURES = {"volumes": "three spatial axes"}
_EXTENTS = ("in:extent", "out:extent")  # what is pooled and the result, as [planes,D,H,W]
pool_kernel = KernelFunction(
    "average_pool", ("y:T=", "x:T", *_EXTENTS), _PARAMS, {"T": FLOATS}, _FEATURES, cut=("y", "x", "in", "out")
)
grad_kernel = KernelFunction(
    "average_pool_grad",
    ("dx:T=", "dy:T", *_EXTENTS),
    _PARAMS,
    {"T": FLOATS},
    _FEATURES,
    cut=("dx", "dy", "in", "out"),
)


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    return (TensorType(ctx.element(), pooled_shape(ctx)),)


def _call(ctx: OpContext, kernel: KernelFunction, sizes: Shape, pooled: Shape, divides: bool) -> KernelCall:
    """`after` is the end of the padding that counts in the mean; -1 where none does."""
    window = pool_axes(ctx, sizes)
    counts = divides and bool(ctx.attribute("count_include_pad", 0))
    after = [0] * (3 - len(window)) + [int(a.after) if counts else -1 for a in window]  # type: ignore[arg-type]
    return kernel.call(
        ctx.result(0),
        ctx.name(0),
        as_volumes(sizes),
        as_volumes(pooled),
        types=(ctx.element(0),),
        params=[*window_params(window), *after, int(divides)],
        features=("volumes",) * (len(window) == 3),
    )


def _lower(divides: bool) -> Callable[[OpContext], Sequence[KernelCall]]:
    return lambda ctx: (_call(ctx, pool_kernel, ctx.shape(0), ctx.result_shape(0), divides),)


def _lower_grad(divides: bool) -> Callable[[OpContext], Sequence[KernelCall]]:
    return lambda ctx: (_call(ctx, grad_kernel, ctx.result_shape(0), ctx.shape(0), divides),)


_SEQUENTIAL_BYTES = 32  # rows below this are summed from left to right by lib/loops/blas1.h, as windows are


def _whole_extent(call: KernelCall) -> tuple[Dim, int, int, bool] | None:
    """The planes, rows and columns of a call whose only window is all of each plane, and whether it divides; None where
    windows are several, reach over an edge, or have rows that a reduction sums in another order."""
    sizes, pooled = (arg.shape or () for arg in call.args[2:4] if isinstance(arg, TensorType))
    planes, *extent = sizes
    taps, pads = list(call.params[0:12:4]), (*call.params[2:12:4], *(max(0, p) for p in call.params[12:15]))
    if extent != taps or any(pads) or any(d != 1 for d in pooled[1:]):
        return None
    if taps[2] * call.types[0].size >= _SEQUENTIAL_BYTES:
        return None
    return planes, taps[0] * taps[1], taps[2], bool(call.params[15])


def _reduced(call: KernelCall, shape: Callable[[str], Shape]) -> Sequence[KernelCall] | None:
    """Rows are summed one by one, as windows do it."""
    whole = _whole_extent(call)
    if whole is None:
        return None
    planes, rows, columns, mean = whole
    groups = TensorType(call.types[0], (1, planes, rows, 1, columns))
    asked = {"mean": mean, "rows": columns != 1, "columns": columns == 1}
    return (
        reduce_kernel.call(
            *(*call.args[:2], groups),
            types=call.types,
            params=(int(mean),),
            features=tuple(name for name, used in asked.items() if used),
        ),
    )


def _expanded(call: KernelCall, shape: Callable[[str], Shape]) -> Sequence[KernelCall] | None:
    """Every element of a plane has the same share."""
    whole = _whole_extent(call)
    if whole is None:
        return None
    planes, rows, columns, mean = whole
    one = call.types[0].dtype.type(1)
    share = one / one.dtype.type(rows * columns) if mean else one
    dx, dy = call.args[:2]
    return (call_expanded(dx, dy, planes, rows * columns, element=call.types[0], factor=share),)


def _divisors(attributes: Mapping[str, Any], shape: Sequence[int]) -> np.ndarray:
    """By what each window's sum is divided: how many elements it sees, of the input or of the padded input."""
    window = axes(attributes, tuple(shape[2:]), tuple(attributes["kernel_shape"]))
    pads = padding_of(window)
    counted = np.ones((1, 1, *shape[2:]))
    if attributes.get("count_include_pad", 0):
        own = [(0, 0), (0, 0)] + [(a.before, int(a.after)) for a in window]  # type: ignore[arg-type]
        counted = np.pad(counted, own, constant_values=1)
        pads = [(0, whole - after) for (_, whole), (_, after) in zip(pads, own, strict=True)]
    padded = np.pad(counted, pads)
    return np.maximum(1, sum(padded[field] for _, field in taps_of(window)))


def _sum_reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    window = axes(attributes, x.shape[2:], tuple(attributes["kernel_shape"]))
    padded = np.pad(x, padding_of(window))
    return np.sum([padded[field] for _, field in taps_of(window)], 0)


def _reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    return _sum_reference(attributes, x) / _divisors(attributes, x.shape)


# Shape, attributes.
VARIANTS: tuple[tuple[tuple[int, ...], Mapping[str, Any]], ...] = (
    ((1, 1, 2, 2), {"kernel_shape": (2, 2)}),
    ((2, 3, 8, 10), {"kernel_shape": (2, 2), "strides": (2, 2)}),
    ((1, 2, 7, 9), {"kernel_shape": (3, 2), "strides": (2, 2)}),
    ((2, 2, 9, 7), {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}),
    ((2, 2, 6, 7), {"kernel_shape": (3, 2), "strides": (2, 3), "pads": (0, 1, 1, 0), "ceil_mode": 1}),
    ((1, 2, 6, 6), {"kernel_shape": (3, 3), "strides": (2, 2), "ceil_mode": 1}),
    ((1, 1, 2, 2), {"kernel_shape": (1, 1), "strides": (3, 3), "pads": (1, 1, 1, 1), "ceil_mode": 1}),
    ((1, 2, 9, 9), {"kernel_shape": (3, 3), "dilations": (2, 2), "pads": (2, 2, 1, 1)}),
    ((1, 1, 5, 6), {"kernel_shape": (3, 3), "strides": (2, 2), "auto_pad": "SAME_UPPER"}),
    ((1, 1, 5, 6), {"kernel_shape": (2, 3), "strides": (1, 2), "auto_pad": "SAME_LOWER"}),
    ((1, 1, 5, 6), {"kernel_shape": (2, 3), "strides": (1, 2), "auto_pad": "VALID"}),
    ((2, 3, 25, 5), {"kernel_shape": (25, 5), "strides": (25, 5)}),
    ((2, 3, 11), {"kernel_shape": (3,), "strides": (2,)}),
    ((2, 3, 10), {"kernel_shape": (4,), "strides": (3,), "pads": (1, 2), "ceil_mode": 1}),
    ((1, 2, 4, 6, 5), {"kernel_shape": (2, 3, 2), "strides": (2, 1, 2)}),
    ((1, 2, 5, 6, 5), {"kernel_shape": (3, 3, 2), "strides": (2, 2, 1), "pads": (1, 1, 0, 1, 1, 1), "ceil_mode": 1}),
)  # fmt: skip


def _variants() -> Iterator[tuple[tuple[int, ...], Mapping[str, Any]]]:
    for shape, attributes in VARIANTS:
        yield shape, attributes
        if "pads" in attributes or "auto_pad" in attributes:
            yield shape, {**attributes, "count_include_pad": 1}


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, attributes in _variants():
        yield TestCase(
            f"{list(shape)} {dict(attributes)}", (random.standard_normal(shape),), attributes, ulps=32
        )
    yield TestCase("no images", (np.zeros((0, 3, 5, 5)),), {"kernel_shape": (2, 2)})


def _gradient(b: GradientBuilder) -> Results:
    attributes = explicit_pads(b.ctx.attributes, pool_axes(b.ctx, b.ctx.shape()))
    return b.add("AveragePoolGrad", b.dy[0], **attributes)


average_pool = Op(
    "AveragePool",
    since=(1, 7, 10, 11, 19, 22),
    infer=_infer,
    reference=_reference,
    lower=_lower(divides=True),
    kernels=(pool_kernel,),
    cases=_cases,
    gradient=_gradient,
)


# ------------------------------------------------------------------------------------------------- gradients


def _pooled_by(ctx: OpContext) -> Iterator[tuple[OpContext, tuple[Axis, ...]]]:
    """Earlier AveragePools that this may be the gradient of: with the same windows, and results of this shape."""
    for made in ctx.earlier.values():
        if made.op != ":AveragePool" or len(made.attributes["kernel_shape"]) != ctx.rank() - 2:
            continue
        window = pool_axes(made, made.shape())
        same = pool_axes(ctx, made.shape()) == window and pooled_shape(made) == ctx.shape()
        if same and made.attribute("count_include_pad", 0) == ctx.attribute("count_include_pad", 0):
            yield made, window


def _grad_infer(ctx: OpContext) -> Sequence[TensorType]:
    """ORT's AveragePoolGrad is not given what was pooled, whose size its windows do not determine. In ORT's training
    graphs the gradient of a value is called like the value, with `_grad` behind."""
    found = [made for made, _ in _pooled_by(ctx)]
    named = [made for made in found if ctx.result() == f"{made.name(0)}_grad"]
    shapes = {made.shape() for made in named or found}
    if len(shapes) != 1:
        what = "several AveragePools fit" if shapes else "no AveragePool before it fits"
        raise UnsupportedUse(f"{what}, so the shape of its result cannot be told")
    return (TensorType(ctx.element(0), shapes.pop()),)


def _sum_grad_reference(attributes: Mapping[str, Any], dy: np.ndarray, shape: np.ndarray) -> np.ndarray:
    sizes = tuple(int(d) for d in shape)
    window = axes(attributes, sizes[2:], tuple(attributes["kernel_shape"]))
    pads = padding_of(window)
    dx = np.pad(np.zeros(sizes), pads)
    for _, field in taps_of(window):
        dx[field] += dy
    return dx[unpadded(sizes, pads)]


def _grad_reference(attributes: Mapping[str, Any], dy: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """`shape` of what was pooled comes with the gradient, which no input of the node has."""
    return _sum_grad_reference(attributes, dy / _divisors(attributes, tuple(shape.tolist())), shape)


average_pool_grad = Op(
    "AveragePoolGrad",
    since=(9,),
    infer=_grad_infer,
    reference=_grad_reference,
    lower=_lower_grad(divides=True),
    kernels=(grad_kernel,),
    # Linear in dy: what it spreads, the forward operator gathers.
    gradient=lambda b: b.add("AveragePool", b.dy[0], **b.ctx.attributes),
)


def _sum_gradient(b: GradientBuilder) -> Results:
    window = pool_axes(b.ctx, b.ctx.shape())
    attributes = explicit_pads(b.ctx.attributes, window)
    return b.add("SumPoolGrad", b.dy[0], b.x[0].shape(), domain="minbuild", **attributes)


sum_pool = Op(
    "SumPool",
    domain="minbuild",
    infer=_infer,
    reference=_sum_reference,
    lower=_lower(divides=False),
    kernels=(pool_kernel,),
    cases=_cases,
    gradient=_sum_gradient,
)


def _sum_grad_infer(ctx: OpContext) -> Sequence[TensorType]:
    return (TensorType(ctx.element(0), ctx.dims(1)),)


def _sum_grad_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, attributes in VARIANTS:
        dy = random.standard_normal(_sum_reference(attributes, np.zeros(shape)).shape)
        sizes = np.array(shape, np.int64)
        yield TestCase(f"{list(shape)} {dict(attributes)}", (dy, sizes), attributes, frozenset({1}), ulps=32)


sum_pool_grad = Op(
    "SumPoolGrad",
    domain="minbuild",
    infer=_sum_grad_infer,
    reference=_sum_grad_reference,
    lower=_lower_grad(divides=False),
    kernels=(grad_kernel,),
    cases=_sum_grad_cases,
    gradient=lambda b: b.add("SumPool", b.dy[0], domain="minbuild", **b.ctx.attributes),
)

KERNELS = (pool_kernel, grad_kernel)
OPS = (average_pool, average_pool_grad, sum_pool, sum_pool_grad)
EQUALS = (
    EqualLowering(
        "average-pool-by-reduction",
        "AveragePool over whole planes by ReduceMean and Expand",
        {"average_pool": _reduced, "average_pool_grad": _expanded},
        (reduce_kernel, expand_kernel),
        needs=frozenset({"reduce"}),
    ),
)
