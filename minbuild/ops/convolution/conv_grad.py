"""The gradients of Conv, by its kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from minbuild.ir import Call, TensorType
from minbuild.ir.dims import Dim, product
from minbuild.ops.convolution.conv import LAYER_KERNELS, call_layer
from minbuild.ops.convolution.conv_cases import VARIANTS, large_cases
from minbuild.ops.convolution.conv_channels import channels_of_gradients
from minbuild.ops.convolution.conv_layer import Layer
from minbuild.ops.convolution.conv_params import INPUT_GRADIENT, WEIGHT_GRADIENT
from minbuild.ops.convolution.conv_reference import filters_of, grouped, receptive_fields
from minbuild.ops.convolution.sliding_window import axes, unpadded
from minbuild.ops.core.definition import KernelCall, Op, OpContext, TestCase
from minbuild.ops.core.graph_builder import MICROSOFT, GradientBuilder
from minbuild.ops.core.value import Results, Value
from minbuild.ops.reduction.reduce import reduce_kernel, reduce_over


def _lower_grad(ctx: OpContext) -> Sequence[KernelCall]:
    return tuple(_grad_calls(ctx, Layer.of(ctx, ctx.shape(1), ctx.shape(2))))


def _grad_calls(ctx: OpContext, layer: Layer) -> Iterator[KernelCall]:
    """dW and dB are computed first, so that dX may overwrite X."""
    (dy, x, w), shape = ctx.names[:3], ctx.shape()
    dx, dw, db = (ctx.result(i) if i < len(ctx.result_names) else "" for i in range(3))
    if dw:
        yield call_layer(layer, WEIGHT_GRADIENT, (dw, x, dy), accumulate=int(1 in ctx.accumulates))
    if db:
        others = (0, *range(2, len(shape)))
        tensor = TensorType(ctx.element(), shape)
        yield reduce_over(db, dy, tensor, others, accumulate=int(2 in ctx.accumulates))
    if dx:
        yield call_layer(layer, INPUT_GRADIENT, (dx, dy, w))


def _grad_work(ctx: OpContext) -> Dim:
    return product(ctx.shape()) * product(ctx.shape(2)[1:]) * 2


def _grad_samples(ctx: OpContext) -> Iterable[int]:
    """Inputs dy and x are batched. Weight gradients add image after image; the bias gradient sums in another order."""
    return (0, 1)


def _grad_apart(call: Call, ctx: OpContext) -> Sequence[Call]:
    """Sums are computed first, so that dx may overwrite dy."""
    dx, dw, db = (*call.outputs, "", "")[:3]
    calls = []
    if db:
        attributes = {"axes": (0, *range(2, ctx.rank())), "keepdims": 0}
        adds = frozenset({0} if 2 in call.accumulate else ())
        calls.append(
            Call(
                ":ReduceSum",
                11,
                call.node,
                inputs=call.inputs[:1],
                outputs=(db,),
                attributes=attributes,
                accumulate=adds,
            )
        )
    if dw:
        calls.append(replace(call, outputs=("", dw), accumulate=call.accumulate & {1}))
    if dx:
        calls.append(replace(call, outputs=(dx,), accumulate=frozenset()))
    return calls


def _grad_infer(ctx: OpContext) -> Sequence[TensorType]:
    element, w = ctx.element(), ctx.shape(2)
    return tuple(TensorType(element, shape) for shape in (ctx.shape(1), w, w[:1]))


def _grad_reference(
    attributes: Mapping[str, Any], dy: np.ndarray, x: np.ndarray, w: np.ndarray
) -> tuple[np.ndarray, ...]:
    groups = attributes.get("group", 1)
    gradient = grouped(dy, groups)
    pads, views = receptive_fields(attributes, x, w.shape[2:])
    padded = np.pad(x, pads)
    dx, dw = np.zeros_like(padded), np.zeros_like(w)
    for tap, field in views:
        part = padded[field]
        dw[tap] = np.einsum("ngms,ngcs->gmc", gradient, grouped(part, groups)).reshape(w.shape[:2])
        back = np.einsum("gmc,ngms->ngcs", filters_of(w, tap, groups), gradient)
        dx[field] += back.reshape(part.shape)
    return dx[unpadded(x.shape, pads)], dw, dy.sum((0, *range(2, dy.ndim)))


def _second_gradient(b: GradientBuilder) -> Results:
    """The gradient through dX enters the convolution as a second input, that through dW as a second set of weights:
    every output of ConvGrad is linear in dY and in its other operand."""
    dy, x, w = b.x
    attributes = b.ctx.attributes
    of_dx, of_dw, of_db = (*b.dy, None, None, None)[:3]

    def conv_grad(output: int, *inputs: Value) -> Value:
        return b.many(3, "ConvGrad", *inputs, domain=MICROSOFT, **attributes)[output]

    flows = [b.add("Conv", of_dx, w, **attributes)] if of_dx else []
    flows += [b.add("Conv", x, of_dw, **attributes)] if of_dw else []
    if of_db:
        column = b.integers((-1, *(1,) * (b.ctx.rank() - 2)))
        flows.append(b.add("Reshape", of_db, column).expand_like(dy))
    to_x = conv_grad(0, dy, x, of_dw) if of_dw else None
    to_w = conv_grad(1, dy, of_dx, w) if of_dx else None
    return (reduce(lambda left, right: left + right, flows), to_x, to_w)


def _grad_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for index, (x, w, given) in enumerate(VARIANTS):
        attributes = {"kernel_shape": w[2:], **given}
        sizes = (a.outputs for a in axes(given, x[2:], w[2:]))
        dy = random.standard_normal((x[0], w[0], *map(int, sizes)))  # type: ignore[arg-type]
        inputs = (dy, random.standard_normal(x), random.standard_normal(w))
        name = f"{list(x)} {list(w)} {dict(given)}"
        yield TestCase(name, inputs, attributes, outputs=3, ulps=32)
        absent = ({0}, {1, 2}, {0, 1}, {0, 2})[index % 4]
        yield TestCase(
            f"{name} without {absent}", inputs, attributes, outputs=3, absent=frozenset(absent), ulps=32
        )
    yield from large_cases(random, gradient=True)


conv_grad = Op(
    "ConvGrad",
    domain="com.microsoft",
    infer=_grad_infer,
    reference=_grad_reference,
    lower=_lower_grad,
    kernels=(*LAYER_KERNELS, reduce_kernel),
    accumulates=frozenset({1, 2}),
    flops=_grad_work,
    batched_inputs=_grad_samples,
    batch_sums=frozenset({1}),
    channels=channels_of_gradients,
    split=_grad_apart,
    cases=_grad_cases,
    gradient=_second_gradient,
    differentiable=frozenset({0, 1, 2}),
)

OPS = (conv_grad,)
