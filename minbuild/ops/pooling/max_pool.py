"""MaxPool over one to three spatial axes, and its gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType, Shape, TensorType
from minbuild.ir.dims import product
from minbuild.ops.convolution.sliding_window import (
    WINDOW_PARAMS,
    as_volumes,
    axes,
    padding_of,
    pool_axes,
    pooled_shape,
    taps_of,
    window_params,
)
from minbuild.ops.core.channel_slices import PER_IMAGE, ChannelSlices, channels_of
from minbuild.ops.core.definition import (
    FLOAT,
    FLOATS,
    INT64,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    UnsupportedUse,
)
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value

# Indices are a byte, the tap in the window, or as ONNX has them: the place in the whole input.
_TYPES = {"T": FLOATS, "I": (ElementType.UINT8, INT64)}
_FEATURES = {
    "volumes": "three spatial axes",
    "lines": "long lines of windows that move by one or two elements",
}
_HINTS = frozenset({"lines"})
_LONG = 32  # outputs of a line from which on vectors of them pay for their bytes
_EXTENTS = ("in:extent", "out:extent")  # what is pooled and the result, as [planes,D,H,W]
pool_kernel = KernelFunction(
    *("max_pool", ("y:T=", "indices:I=", "x:T", *_EXTENTS), WINDOW_PARAMS, _TYPES, _FEATURES), hints=_HINTS
)
grad_kernel = KernelFunction(
    *("max_pool_grad", ("dx:T=", "dy:T", "indices:I", *_EXTENTS), WINDOW_PARAMS, _TYPES, _FEATURES),
    hints=_HINTS,
)


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    pooled = pooled_shape(ctx)
    return TensorType(ctx.element(), pooled), TensorType(INT64, pooled)


def _call(
    ctx: OpContext, kernel: KernelFunction, args: Sequence[str | TensorType], sizes: Shape, pooled: Shape
) -> KernelCall:
    window = pool_axes(ctx, sizes)
    outputs, stride = window[-1].outputs, window[-1].stride
    long = isinstance(outputs, int) and outputs >= _LONG and stride <= 2
    narrow = _index_type(ctx) is ElementType.UINT8 and ctx.element(0) is ElementType.FLOAT
    return kernel.call(
        *args,
        as_volumes(sizes),
        as_volumes(pooled),
        types=(ctx.element(0), _index_type(ctx)),
        params=window_params(window),
        features=("volumes",) * (len(window) == 3) + ("lines",) * (long and narrow),
    )


def _index_type(ctx: OpContext) -> ElementType:
    """The type that the indices were narrowed to; MaxPool without any takes the kernel that other pools use."""
    marks = ctx.results[1] if len(ctx.results) > 1 else ctx.inputs[1] if ctx.has(1) else None
    return marks.element if marks else ElementType.UINT8


def _samples(ctx: OpContext) -> Iterable[int]:
    """Wide indices count through the whole batch."""
    return range(len(ctx.inputs)) if _index_type(ctx) is ElementType.UINT8 else ()


def _channels(ctx: OpContext) -> ChannelSlices | None:
    """Of a pool or its gradient. Wide indices count through all channels."""
    channels = channels_of(ctx) if _index_type(ctx) is ElementType.UINT8 else None
    if channels is None:
        return None
    return ChannelSlices(
        channels, dict.fromkeys(range(len(ctx.inputs)), PER_IMAGE), {0: PER_IMAGE, 1: PER_IMAGE}
    )


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    pooled = ctx.result_shape(0 if ctx.result(0) else 1)
    # What nobody reads needs a place all the same.
    maxima = ctx.result(0) or TensorType(ctx.element(), pooled)
    args = (maxima, ctx.result(1) or TensorType(_index_type(ctx), pooled), ctx.name(0))
    return (_call(ctx, pool_kernel, args, ctx.shape(0), pooled),)


def _reference(attributes: Mapping[str, Any], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    window = axes(attributes, x.shape[2:], tuple(attributes["kernel_shape"]))
    pads = padding_of(window)
    padded = np.pad(x.astype(np.float64), pads, constant_values=-np.inf)
    numbers = np.arange(x.size).reshape(x.shape)
    if attributes.get("storage_order", 0):
        numbers = np.arange(x.size).reshape(*x.shape[:2], *x.shape[:1:-1])
        numbers = numbers.transpose(0, 1, *range(x.ndim - 1, 1, -1))
    places = np.pad(numbers, pads)
    taps = [field for _, field in taps_of(window)]
    stacked = np.stack([padded[field] for field in taps])
    first = stacked.argmax(0)[None]
    indices = np.take_along_axis(np.stack([places[field] for field in taps]), first, 0)[0]
    return stacked.max(0).astype(x.dtype), indices


def _body(b: GraphBuilder) -> Results:
    """Bytes are pooled as floats, which hold them exactly. Column-major indices follow from row-major ones."""
    marks = len(b.y) > 1 and bool(b.y[1])
    element, attributes = b.ctx.element(), dict(b.ctx.attributes)
    columns = bool(attributes.pop("storage_order", 0)) and marks
    small = element in (ElementType.INT8, ElementType.UINT8)
    if not small and not columns:
        return None
    x = b.x[0].cast(FLOAT) if small else b.x[0]
    y, *indices = b.many(1 + marks, "MaxPool", x, **attributes)
    y = y.cast(element) if small else y
    return y, *(_by_columns(b, i) if columns else i for i in indices)


def _by_columns(b: GraphBuilder, index: Value) -> Value:
    """Places in [N,C,D,H,W] as places in [N,C,W,H,D]."""
    sizes = b.ctx.shape()[2:]
    if not all(isinstance(d, int) for d in sizes):
        raise UnsupportedUse(
            "indices in column-major order need spatial sizes that are known when the trainer is built"
        )
    place: Value | None = None
    stride = product(sizes)
    for size in reversed(sizes):
        rest = index / b.integers([size])
        digit = index - rest * b.integers([size])
        stride = stride // size
        part = digit * b.integers([stride])
        place, index = place + part if place else part, rest
    assert place is not None, "a pool has one spatial axis or more"
    return place + index * b.integers([product(sizes)])


def _gradient(b: GradientBuilder) -> Results:
    attributes = dict(b.ctx.attributes)
    columns = attributes.pop("storage_order", 0)
    indices = b.many(2, "MaxPool", b.x[0], **attributes)[1] if columns else b.save(1)
    return b.add("MaxPoolGrad", b.dy[0], indices, **attributes)


VARIANTS: tuple[tuple[tuple[int, ...], Mapping[str, Any]], ...] = (
    ((1, 1, 2, 2), {"kernel_shape": (2, 2)}),
    ((2, 3, 8, 10), {"kernel_shape": (2, 2), "strides": (2, 2)}),
    ((1, 2, 7, 9), {"kernel_shape": (2, 2), "strides": (2, 2)}),
    ((2, 2, 9, 7), {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}),
    ((2, 2, 6, 7), {"kernel_shape": (3, 2), "strides": (2, 3), "pads": (0, 1, 1, 0), "ceil_mode": 1}),
    ((1, 2, 9, 9), {"kernel_shape": (3, 3), "dilations": (2, 2)}),
    ((1, 1, 5, 6), {"kernel_shape": (3, 3), "strides": (2, 2), "auto_pad": "SAME_UPPER"}),
    ((1, 1, 5, 6), {"kernel_shape": (2, 3), "strides": (1, 2), "auto_pad": "SAME_LOWER"}),
    ((1, 3, 5, 5), {"kernel_shape": (5, 5)}),
    ((2, 2, 5, 63), {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}),
    ((1, 2, 4, 40), {"kernel_shape": (2, 3), "pads": (0, 1, 1, 1)}),
    ((1, 2, 5, 80), {"kernel_shape": (2, 3), "strides": (1, 2), "dilations": (1, 3), "pads": (0, 5, 0, 0)}),
    ((2, 3, 11), {"kernel_shape": (3,), "strides": (2,)}),
    ((2, 3, 10), {"kernel_shape": (3,), "strides": (3,), "pads": (1, 1)}),
    ((1, 2, 4, 6, 5), {"kernel_shape": (2, 3, 2), "strides": (2, 1, 2)}),
    ((1, 2, 4, 6, 5), {"kernel_shape": (3, 3, 3), "strides": (2, 2, 1), "pads": (1, 1, 1, 1, 1, 1)}),
)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, attributes in VARIANTS:
        # So far apart that no difference of a gradient's check changes which is the largest.
        x = random.permutation(np.prod(shape)).reshape(shape) / 16 - 20
        yield TestCase(f"{list(shape)} {dict(attributes)}", (x,), attributes, ulps=0)
        # Few different numbers, so that maxima tie.
        few = random.standard_normal(shape).round()
        yield TestCase(f"{list(shape)} ties", (few,), attributes, outputs=2, ulps=0, smooth=False)
        by_columns = {**attributes, "storage_order": 1}
        yield TestCase(f"{list(shape)} by columns", (x,), by_columns, outputs=2, ulps=0)
    yield TestCase("no images", (np.zeros((0, 3, 5, 5)),), {"kernel_shape": (2, 2)}, outputs=2)
    for dtype in (np.int8, np.uint8):
        x = random.integers(0, 127, (2, 3, 7, 6)).astype(dtype)
        yield TestCase(f"{np.dtype(dtype)}", (x,), {"kernel_shape": (3, 2), "pads": (1, 0, 1, 1)}, ulps=0)


max_pool = Op(
    "MaxPool",
    since=(1, 8, 10, 11, 12, 22),
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(pool_kernel,),
    batched_inputs=_samples,
    channels=_channels,
    decompose=_body,
    decomposes_to=("Add", "Cast", "Div", "Mul", "Sub"),
    gradient=_gradient,
    cases=_cases,
)


def _grad_infer(ctx: OpContext) -> Sequence[TensorType]:
    maker = ctx.maker(1)
    if maker is None or "kernel_shape" not in maker.attributes:
        raise UnsupportedUse(
            "its indices are not the output of a MaxPool, which alone knows the result's shape"
        )
    return (TensorType(ctx.element(0), maker.shape(0)),)


def _lower_grad(ctx: OpContext) -> Sequence[KernelCall]:
    args = (ctx.result(0), ctx.name(0), ctx.name(1))
    return (_call(ctx, grad_kernel, args, ctx.result_shape(0), ctx.shape(0)),)


def _grad_gradient(b: GradientBuilder) -> Results:
    """Every dy went to one place: its gradient is what is there."""
    return b.add("Gather", b.dy[0].reshape((-1,)), b.x[1])


max_pool_grad = Op(
    "MaxPoolGrad",
    since=(9,),
    infer=_grad_infer,
    lower=_lower_grad,
    kernels=(grad_kernel,),
    batched_inputs=_samples,
    channels=_channels,
    gradient=_grad_gradient,
)

KERNELS = (pool_kernel, grad_kernel)
OPS = (max_pool, max_pool_grad)
