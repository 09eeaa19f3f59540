"""ConvTranspose over one to three spatial axes, and its gradients: Conv's kernel, inputs and outputs swapped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import Shape, TensorType
from minbuild.ir.dims import Dim
from minbuild.ops.convolution.conv import LAYER_KERNELS, call_layer
from minbuild.ops.convolution.conv_layer import Layer
from minbuild.ops.convolution.conv_params import INPUT_GRADIENT, OUTPUT, WEIGHT_GRADIENT
from minbuild.ops.convolution.sliding_window import Axis, padding_of, split_padding, taps_of, unpadded
from minbuild.ops.core.definition import KernelCall, Op, OpContext, TestCase, UnsupportedUse, require_equal
from minbuild.ops.core.graph_builder import MICROSOFT, GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results
from minbuild.ops.reduction.reduce import reduce_kernel, reduce_over


def window_of(attributes: Mapping[str, Any], x: Shape, w: Shape) -> tuple[Axis, ...]:
    """The axes of the convolution whose gradient this is: from the sizes of the result to those of the input.
    `attributes` are the operator's, `x` and `w` the shapes of its input and weights."""
    count = len(x) - 2
    if len(w) != len(x) or not 1 <= count <= 3:
        raise UnsupportedUse(
            f"convolves {list(x)} with {list(w)}; only one to three spatial axes are supported"
        )
    taps = [d for d in w[2:] if isinstance(d, int)]
    if len(taps) != count or not isinstance(w[0], int) or not isinstance(w[1], int):
        raise UnsupportedUse(f"the shape of its weights, {list(w)}, must be known when the trainer is built")

    def each(name: str, default: int) -> tuple[int, ...]:
        return tuple(attributes.get(name, ())) or (default,) * count

    mode = attributes.get("auto_pad", "NOTSET")
    pads = tuple(attributes.get("pads", ())) if mode == "NOTSET" else ()
    pads = pads or (0,) * (2 * count)
    requested = tuple(attributes.get("output_shape", ()))[-count:] or (None,) * count
    strides, dilations, more = each("strides", 1), each("dilations", 1), each("output_padding", 0)
    window = []
    for i, size in enumerate(x[2:]):
        span = dilations[i] * (taps[i] - 1)
        whole = (size - 1) * strides[i] + span + 1 + more[i]
        size_out, before = _extent(size * strides[i], whole, requested[i], (pads[i], pads[count + i]), mode)
        # Padding at the end with which the convolution gives exactly the input's size.
        after = (size - 1) * strides[i] + span + 1 - size_out - before
        window.append(
            Axis(size_out, taps=taps[i], stride=strides[i], before=before, after=after, dilation=dilations[i])
        )
    return tuple(window)


def _extent(
    same: Dim, whole: Dim, requested: int | None, pads: tuple[int, int], mode: str
) -> tuple[Dim, int]:
    """The size of the result along an axis, and how much of its `whole` is cut off in front."""
    if requested is None and mode not in ("SAME_UPPER", "SAME_LOWER"):
        return whole - pads[0] - pads[1], pads[0]
    size = same if requested is None else requested
    total = whole - size
    if not isinstance(total, int):
        raise UnsupportedUse("output_shape needs spatial sizes that are known when the trainer is built")
    # Where the result is larger than the whole, the excess is at its end.
    return size, split_padding(max(0, total), mode)[0]


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    x, w = ctx.shape(0), ctx.shape(1)
    spatial = tuple(a.size for a in window_of(ctx.attributes, x, w))
    require_equal(x[1], w[0], f"channels of {list(x)} do not fit weights {list(w)}")
    return (TensorType(ctx.element(), (x[0], w[1] * int(ctx.attribute("group", 1)), *spatial)),)


def _body(b: GraphBuilder) -> Results:
    """The kernel adds no bias, since Conv's gradient has none."""
    if not b.has(2):
        return None
    y = b.add("ConvTranspose", *b.x[:2], **b.ctx.attributes)
    column = (-1, *(1,) * (b.ctx.rank() - 2))
    return y + b.x[2].reshape(column)


def _layer(ctx: OpContext, x: Shape, w: Shape) -> Layer:
    return Layer.over(ctx, w, window_of(ctx.attributes, x, w))


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    names = (ctx.result(0), ctx.name(0), ctx.name(1))
    return (call_layer(_layer(ctx, ctx.shape(0), ctx.shape(1)), INPUT_GRADIENT, names),)


def _reference(
    attributes: Mapping[str, Any], x: np.ndarray, w: np.ndarray, bias: np.ndarray | None = None
) -> np.ndarray:
    window, groups = window_of(attributes, x.shape, w.shape), attributes.get("group", 1)
    channels = w.shape[1] * groups
    sizes = (len(x), channels, *(int(a.size) for a in window))  # type: ignore[arg-type]
    pads = padding_of(window)
    y = np.pad(np.zeros(sizes), pads)
    grouped = x.reshape(len(x), groups, x.shape[1] // groups, int(np.prod(x.shape[2:])))
    for tap, field in taps_of(window):
        part = np.einsum("gmc,ngms->ngcs", w[tap].reshape(groups, -1, w.shape[1]), grouped)
        y[field] += part.reshape(y[field].shape)
    y = y[unpadded(sizes, pads)]
    return y if bias is None else y + bias.reshape((-1,) + (1,) * (x.ndim - 2))


# Shape of x, of w, attributes.
VARIANTS: tuple[tuple[tuple[int, ...], tuple[int, ...], Mapping[str, Any]], ...] = (
    ((2, 3, 4, 5), (3, 2, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1), "output_padding": (1, 1)}),
    ((1, 1, 3, 3), (1, 2, 3, 3), {}),
    ((2, 4, 5, 4), (4, 3, 2, 2), {"strides": (2, 2)}),
    ((1, 2, 3, 4), (2, 3, 4, 4), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
    ((1, 2, 3, 4), (2, 3, 1, 1), {}),
    ((1, 2, 3, 4), (2, 3, 1, 1), {"strides": (2, 3), "output_padding": (1, 2)}),
    ((1, 1, 3, 3), (1, 2, 3, 3), {"strides": (3, 2), "output_shape": (10, 8), "output_padding": (1, 1)}),
    ((1, 1, 3, 3), (1, 2, 3, 3), {"strides": (3, 2), "output_shape": (12, 8)}),
    ((1, 2, 3, 3), (2, 2, 3, 3), {"strides": (2, 2), "output_shape": (5, 6), "auto_pad": "SAME_LOWER"}),
    ((1, 1, 3, 3), (1, 2, 3, 3), {"strides": (2, 2), "auto_pad": "SAME_UPPER"}),
    ((1, 1, 3, 4), (1, 2, 4, 3), {"strides": (2, 1), "auto_pad": "SAME_LOWER"}),
    ((2, 1, 3, 4), (1, 2, 2, 3), {"auto_pad": "VALID", "strides": (1, 2)}),
    ((1, 1, 3, 3), (1, 1, 2, 2), {"dilations": (2, 2)}),
    ((1, 2, 4, 3), (2, 2, 3, 2), {"dilations": (2, 3), "strides": (2, 1), "pads": (1, 0, 2, 1)}),
    ((1, 2, 3, 3), (2, 1, 2, 2), {"dilations": (3, 3), "output_padding": (2, 1)}),
    ((2, 4, 3, 3), (4, 1, 3, 3), {"group": 2}),
    ((1, 5, 4, 3), (5, 1, 3, 3), {"group": 5, "strides": (2, 2), "pads": (1, 1, 0, 1)}),
    ((1, 6, 4, 3), (6, 3, 2, 2), {"group": 3, "strides": (2, 1)}),
    ((2, 3, 6), (3, 2, 4), {"strides": (3,), "pads": (1, 2)}),
    ((1, 2, 3, 2, 4), (2, 3, 2, 3, 2), {"strides": (2, 1, 2), "pads": (1, 1, 0, 0, 1, 1)}),
    ((2, 8, 7, 7), (8, 16, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1), "output_padding": (1, 1)}),
)  # fmt: skip


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for x, w, attributes in VARIANTS:
        inputs = random.standard_normal(x), random.standard_normal(w)
        name = f"{list(x)} {list(w)} {dict(attributes)}"
        yield TestCase(name, inputs, attributes, ulps=16)
        bias = random.standard_normal(w[1] * attributes.get("group", 1))
        yield TestCase(f"{name} bias", (*inputs, bias), attributes, ulps=16)
    weights = random.standard_normal((3, 4, 3, 3))
    yield TestCase("no images", (np.zeros((0, 3, 5, 5)), weights), {"strides": (2, 2)})


def _gradient(b: GradientBuilder) -> Results:
    found = b.many(3, "ConvTransposeGrad", b.dy[0], *b.x[:2], domain=MICROSOFT, **b.ctx.attributes)
    return tuple(found[: len(b.x)])


conv_transpose = Op(
    "ConvTranspose",
    since=(1, 11, 22),
    infer=_infer,
    decompose=_body,
    decomposes_to=("Add",),
    reference=_reference,
    lower=_lower,
    kernels=LAYER_KERNELS,
    cases=_cases,
    gradient=_gradient,
)


# ------------------------------------------------------------------------------------------------- gradients


def _grad_infer(ctx: OpContext) -> Sequence[TensorType]:
    element, w = ctx.element(), ctx.shape(2)
    return tuple(TensorType(element, shape) for shape in (ctx.shape(1), w, ctx.shape(0)[1:2]))


def _lower_grad(ctx: OpContext) -> Sequence[KernelCall]:
    return tuple(_grad_calls(ctx))


def _grad_calls(ctx: OpContext) -> Iterator[KernelCall]:
    """dW and dB are computed first, so that dX may overwrite X."""
    layer, (dy, x, w) = _layer(ctx, ctx.shape(1), ctx.shape(2)), ctx.names[:3]
    dx, dw, db = (ctx.result(i) if i < len(ctx.result_names) else "" for i in range(3))
    if dw:
        yield call_layer(layer, WEIGHT_GRADIENT, (dw, dy, x), accumulate=int(1 in ctx.accumulates))
    if db:
        tensor = TensorType(ctx.element(), ctx.shape(0))
        others = (0, *range(2, ctx.rank()))
        yield reduce_over(db, dy, tensor, others, accumulate=int(2 in ctx.accumulates))
    if dx:
        yield call_layer(layer, OUTPUT, (dx, dy, w))


def _grad_reference(
    attributes: Mapping[str, Any], dy: np.ndarray, x: np.ndarray, w: np.ndarray
) -> tuple[np.ndarray, ...]:
    window, groups = window_of(attributes, x.shape, w.shape), attributes.get("group", 1)
    padded = np.pad(dy, padding_of(window))
    grouped = x.reshape(len(x), groups, x.shape[1] // groups, int(np.prod(x.shape[2:])))
    dx, dw = np.zeros_like(grouped), np.zeros_like(w)
    for tap, field in taps_of(window):
        part = padded[field].reshape(len(x), groups, w.shape[1], -1)
        dx += np.einsum("gmc,ngcs->ngms", w[tap].reshape(groups, -1, w.shape[1]), part)
        dw[tap] = np.einsum("ngms,ngcs->gmc", grouped, part).reshape(w.shape[:2])
    return dx.reshape(x.shape), dw, dy.sum((0, *range(2, dy.ndim)))


def _grad_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for index, (x, w, attributes) in enumerate(VARIANTS):
        inputs = random.standard_normal(x), random.standard_normal(w)
        dy = random.standard_normal(_reference(attributes, *inputs).shape)
        name = f"{list(x)} {list(w)} {dict(attributes)}"
        yield TestCase(name, (dy, *inputs), attributes, outputs=3, ulps=32)
        absent = frozenset(({0}, {1, 2}, {0, 1}, {0, 2})[index % 4])
        yield TestCase(
            f"{name} without {set(absent)}", (dy, *inputs), attributes, outputs=3, absent=absent, ulps=32
        )


_SHARED = ("kernel_shape", "strides", "pads", "dilations", "group")  # attributes that mean the same to Conv


def _grad_parts(b: GraphBuilder) -> Results:
    """The convolution whose transpose this is, with the same weights: dx = Conv(dy, w), and dw is its weight gradient
    for input dy and output gradient x."""
    if b.ctx.attribute("auto_pad", "NOTSET") != "NOTSET" or b.ctx.attribute("output_shape"):
        raise UnsupportedUse(
            "a gradient flows through it, which needs attribute pads in place of auto_pad and output_shape"
        )
    (dy, x, w), given = b.x[:3], {n: v for n, v in b.ctx.attributes.items() if n in _SHARED}
    dw = b.many(2, "ConvGrad", x, dy, w, domain=MICROSOFT, **given)[1]
    others = (0, *range(2, b.ctx.rank()))
    return b.add("Conv", dy, w, **given), dw, dy.sum(others, False)


conv_transpose_grad = Op(
    "ConvTransposeGrad",
    domain=MICROSOFT,
    infer=_grad_infer,
    reference=_grad_reference,
    lower=_lower_grad,
    kernels=(*LAYER_KERNELS, reduce_kernel),
    accumulates=frozenset({1, 2}),
    cases=_grad_cases,
    decompose_for_grad=_grad_parts,
)

OPS = (conv_transpose, conv_transpose_grad)
