"""BatchNormalization for training and for inference, and its gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minbuild.ir import Call, TensorType
from minbuild.ir.dims import product
from minbuild.ops.core.channel_slices import PER_CHANNEL, PER_IMAGE, ChannelSlices, channels_of
from minbuild.ops.core.definition import (
    FLOATS,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    UnsupportedUse,
    first_input,
    require_equal,
    same_as,
)
from minbuild.ops.normalization import batch_statistics as _statistics
from minbuild.ops.normalization.batch_norm_cases import (
    decomposed_cases,
    grad_cases,
    inference_cases,
    per_channel,
    recompute_cases,
    reduced_axes,
    train_cases,
)
from minbuild.ops.normalization.batch_statistics import momentum_of as _momentum
from minbuild.ops.normalization.layer_normalization import epsilon_of as _epsilon

_TYPES = {"T": FLOATS}
_STATISTICS = dict.fromkeys((1, 2, 3, 4), PER_CHANNEL)  # inputs with an element per channel
train_kernel = KernelFunction(
    "batch_norm_train",
    ("y:T=", "running_mean:T=?", "running_var:T=?", "saved_mean:T=?", "saved_inv_std:T=?")
    + ("x:T", "scale:T", "bias:T"),
    params=("epsilon:float", "momentum:float"),
    types=_TYPES,
)
infer_kernel = KernelFunction(
    "batch_norm",
    ("y:T=", "x:T", "scale:T", "bias:T", "mean:T", "var:T"),
    params=("epsilon:float", "saved:int"),
    types=_TYPES,
    features={"saved": "normalises a second time in a training step instead of keeping the result"},
)
grad_kernel = KernelFunction(
    "batch_norm_grad",
    ("dx:T=?", "d_scale:T=?", "d_bias:T=?", "dy:T", "x:T", "scale:T", "saved_mean:T", "saved_inv_std:T"),
    types=_TYPES,
)


# ---------------------------------------- training


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    x, scale = ctx.shape(0), ctx.shape(1)
    if len(x) < 2:
        raise UnsupportedUse(f"its input {list(x)} has no axis of channels")
    require_equal(x[1], product(scale), f"channels of {list(x)} do not fit a scale {list(scale)}")
    return (TensorType(ctx.element(), x),)


def _train_infer(ctx: OpContext) -> Sequence[TensorType]:
    channels = TensorType(ctx.element(), ctx.shape(1))
    return (*_infer(ctx), *(channels,) * 4)


def _train_reference(
    attributes: Mapping[str, Any],
    x: np.ndarray,
    scale: np.ndarray,
    bias: np.ndarray,
    mean: np.ndarray,
    var: np.ndarray,
) -> tuple[np.ndarray, ...]:
    """ORT's BatchNormInternal: the running variance takes the biased variance of the batch."""
    keep = _momentum(attributes)
    batch_mean, batch_var = x.mean(reduced_axes(x)), x.var(reduced_axes(x))
    inv_std = 1 / np.sqrt(batch_var + _epsilon(attributes))
    y = (x - per_channel(x, batch_mean)) * per_channel(x, scale * inv_std) + per_channel(x, bias)
    new_mean, new_var = keep * mean + (1 - keep) * batch_mean, keep * var + (1 - keep) * batch_var
    return y, new_mean, new_var, batch_mean, inv_std


def _lower_train(ctx: OpContext) -> Sequence[KernelCall]:
    running = []
    for source, output in ((3, 1), (4, 2)):
        if ctx.result(output) and ctx.content(source) is not None:
            raise UnsupportedUse(
                "running statistics that are constants cannot be updated; make them parameters"
            )
        # The output shares the input's bytes; the kernel works in place.
        running.append(ctx.result(output) and ctx.name(source))
    call = train_kernel.call(
        ctx.result(0) or TensorType(ctx.element(), ctx.shape()),
        *running,
        ctx.result(3),
        ctx.result(4),
        *ctx.names[:3],
        types=(ctx.element(),),
        params=(_epsilon(ctx.attributes), _momentum(ctx.attributes)),
    )
    return (call,)


def _recomputed(call: Call, ctx: OpContext) -> Call | None:
    """The call that normalises again with the statistics that the first one saved."""
    if len(call.outputs) < 5 or not call.outputs[3] or not call.outputs[4]:
        return None
    inputs = (*call.inputs[:3], *call.outputs[3:5])
    return replace(call, op="minbuild:BatchNormRecompute", inputs=inputs, outputs=call.outputs[:1])


def _normalized_channels(ctx: OpContext) -> ChannelSlices | None:
    """Statistics of a channel are over all images, and over no other channel."""
    channels = channels_of(ctx)
    if channels is None:
        return None
    return ChannelSlices(channels, {0: PER_IMAGE, **_STATISTICS}, {0: PER_IMAGE, **_STATISTICS})


batch_norm_internal = Op(
    "BatchNormInternal",
    domain="com.microsoft",
    infer=_train_infer,
    reference=_train_reference,
    lower=_lower_train,
    kernels=(train_kernel,),
    in_place=((0, 0),),
    mutates={3: 1, 4: 2},
    rematerialize=_recomputed,
    channels=_normalized_channels,
    decompose=_statistics.internal_body,
    cases=train_cases,
    gradient=_statistics.internal_gradient,
)


batch_norm_decomposed = Op(
    "BatchNormDecomposed",
    domain="minbuild",
    reference=_train_reference,
    decompose=_statistics.decomposed,
    decomposes_to=("Add", "Mul", "Reciprocal", "Sub", "com.microsoft:BatchNormInternal"),
    cases=decomposed_cases,
)

# ---------------------------------------- inference


def _reference(attributes: Mapping[str, Any], *inputs: np.ndarray) -> Any:
    if attributes.get("training_mode", 0):
        return _train_reference(attributes, *inputs)[:3]
    x, scale, bias, mean, var = inputs
    factor = scale / np.sqrt(var + _epsilon(attributes))
    return (x - per_channel(x, mean)) * per_channel(x, factor) + per_channel(x, bias)


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    call = infer_kernel.call(
        ctx.result(), *ctx.names[:5], types=(ctx.element(),), params=(_epsilon(ctx.attributes), 0)
    )
    return (call,)


def _samples(ctx: OpContext) -> Iterable[int]:
    """Of training, every sample depends on all."""
    return () if ctx.attribute("training_mode", 0) else (0,)


def _given_channels(ctx: OpContext) -> ChannelSlices | None:
    """By statistics that are given."""
    channels = channels_of(ctx)
    return ChannelSlices(channels, {0: PER_IMAGE, **_STATISTICS}) if channels else None


batch_normalization = Op(
    "BatchNormalization",
    since=(7, 9, 14, 15),
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(infer_kernel,),
    in_place=((0, 0),),
    batched_inputs=_samples,
    channels=_given_channels,
    decompose=_statistics.body,
    decomposes_to=("Add", "Mul", "Reciprocal", "Sub", "com.microsoft:BatchNormInternal"),
    cases=inference_cases,
    gradient=_statistics.gradient,
)

# ---------------------------------------- a second time in a training step


def _recompute_reference(
    attributes: Mapping[str, Any],
    x: np.ndarray,
    scale: np.ndarray,
    bias: np.ndarray,
    mean: np.ndarray,
    inv_std: np.ndarray,
) -> np.ndarray:
    return (x - per_channel(x, mean)) * per_channel(x, scale * inv_std) + per_channel(x, bias)


def _lower_recompute(ctx: OpContext) -> Sequence[KernelCall]:
    call = infer_kernel.call(
        ctx.result(), *ctx.names[:5], types=(ctx.element(),), params=(0.0, 1), features=("saved",)
    )
    return (call,)


batch_norm_recompute = Op(
    "BatchNormRecompute",
    domain="minbuild",
    infer=same_as(0),
    reference=_recompute_reference,
    lower=_lower_recompute,
    kernels=(infer_kernel,),
    in_place=((0, 0),),
    batched_inputs=first_input,
    channels=_given_channels,
    cases=recompute_cases,
)

# ---------------------------------------- gradient


def _grad_infer(ctx: OpContext) -> Sequence[TensorType]:
    channels = TensorType(ctx.element(2), ctx.shape(2))
    return TensorType(ctx.element(1), ctx.shape(1)), channels, channels


def _grad_reference(
    attributes: Mapping[str, Any],
    dy: np.ndarray,
    x: np.ndarray,
    scale: np.ndarray,
    mean: np.ndarray,
    inv_std: np.ndarray,
) -> tuple[np.ndarray, ...]:
    normal = (x - per_channel(x, mean)) * per_channel(x, inv_std)
    d_bias, d_scale = dy.sum(reduced_axes(x)), (dy * normal).sum(reduced_axes(x))
    count = x.size / x.shape[1]
    dx = per_channel(x, scale * inv_std) * (
        dy - per_channel(x, d_bias / count) - normal * per_channel(x, d_scale / count)
    )
    return dx, d_scale, d_bias


def _lower_grad(ctx: OpContext) -> Sequence[KernelCall]:
    call = grad_kernel.call(
        ctx.result(0),
        ctx.result(1),
        ctx.result(2),
        *ctx.names[:5],
        types=(ctx.element(1),),
        accumulate=ctx.accumulate,
    )
    return (call,)


def _grad_channels(ctx: OpContext) -> ChannelSlices | None:
    channels = channels_of(ctx)
    if channels is None:
        return None
    outputs = {0: PER_IMAGE, 1: PER_CHANNEL, 2: PER_CHANNEL}
    return ChannelSlices(channels, {0: PER_IMAGE, **_STATISTICS, 1: PER_IMAGE}, outputs)


batch_normalization_grad = Op(
    "BatchNormalizationGrad",
    domain="com.microsoft",
    infer=_grad_infer,
    reference=_grad_reference,
    lower=_lower_grad,
    kernels=(grad_kernel,),
    in_place=((0, 0), (0, 1)),
    accumulates=frozenset({1, 2}),
    channels=_grad_channels,
    cases=grad_cases,
    decompose_for_grad=_statistics.grad_parts,
)

KERNELS = (train_kernel, infer_kernel, grad_kernel)
OPS = (
    batch_norm_internal,
    batch_norm_decomposed,
    batch_normalization,
    batch_norm_recompute,
    batch_normalization_grad,
)
