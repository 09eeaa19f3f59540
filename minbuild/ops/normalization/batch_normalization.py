"""BatchNormalization for training and for inference, and its gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minbuild.ir import Call, TensorType
from minbuild.ir.dims import product
from minbuild.ops.core.definition import (
    FLOATS,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    UnsupportedUse,
    first_input,
    require_equal,
    same_as,
)
from minbuild.ops.normalization import batch_statistics as _statistics
from minbuild.ops.normalization.batch_statistics import momentum_of as _momentum
from minbuild.ops.normalization.layer_normalization import epsilon_of as _epsilon

_TYPES = {"T": FLOATS}
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
    params=("epsilon:float", "again:int"),
    types=_TYPES,
    features={"again": "normalises a second time in a training step instead of keeping the result"},
)
grad_kernel = KernelFunction(
    "batch_norm_grad",
    ("dx:T=?", "d_scale:T=?", "d_bias:T=?", "dy:T", "x:T", "scale:T", "saved_mean:T", "saved_inv_std:T"),
    types=_TYPES,
)


def _like(x: np.ndarray, channel: np.ndarray) -> np.ndarray:
    """[C] as it broadcasts against [N,C,...]."""
    return channel.reshape((-1,) + (1,) * (x.ndim - 2))


def _over(x: np.ndarray) -> tuple[int, ...]:
    return tuple(a for a in range(x.ndim) if a != 1)


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
    batch_mean, batch_var = x.mean(_over(x)), x.var(_over(x))
    inv_std = 1 / np.sqrt(batch_var + _epsilon(attributes))
    y = (x - _like(x, batch_mean)) * _like(x, scale * inv_std) + _like(x, bias)
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


_SHAPES = (
    (1, 1, 1, 1),
    (4, 3),
    (33, 17),
    (2, 5, 7),
    (3, 4, 5, 5),
    (1, 3, 9, 9),
    (8, 6, 7, 7),
    (3, 2, 2, 3, 6),
)
_EPSILON = float(np.float32(1e-3))


def _channel_inputs(random: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """x with another offset in each channel, scale, bias, mean, var."""
    channels = shape[1]
    x = random.standard_normal(shape)
    x = x * _like(x, random.uniform(0.5, 2, channels)) + _like(x, random.uniform(-3, 3, channels))
    scale, bias, mean = random.standard_normal((3, channels))
    return x, scale, bias, mean, random.uniform(0.5, 2, channels)


def _train_cases(random: np.random.Generator) -> Iterable[TestCase]:
    attributes = {"epsilon": _EPSILON, "momentum": 0.75, "training_mode": 1}
    for shape in _SHAPES:
        inputs = _channel_inputs(random, shape)
        yield TestCase(f"{list(shape)}", inputs, attributes, outputs=5, ulps=32)
        constant = frozenset({3, 4})
        yield TestCase(
            f"{list(shape)} frozen", inputs, attributes, constant, absent=frozenset({1, 2}), ulps=32
        )
    x, *others = _channel_inputs(random, (4, 3, 8, 8))
    yield TestCase("far from zero", (x + 1000, *others), attributes, outputs=5, ulps=1000)
    x[0] += 1000  # a first row that says nothing about the others
    yield TestCase("one row far off", (x, *others), attributes, outputs=5, ulps=64)


def _once_more(call: Call, ctx: OpContext) -> Call | None:
    """The call that normalises again with the statistics that the first one saved."""
    if len(call.outputs) < 5 or not call.outputs[3] or not call.outputs[4]:
        return None
    inputs = (*call.inputs[:3], *call.outputs[3:5])
    return replace(call, op="minbuild:NormalizeAgain", inputs=inputs, outputs=call.outputs[:1])


batch_norm_internal = Op(
    "BatchNormInternal",
    domain="com.microsoft",
    infer=_train_infer,
    reference=_train_reference,
    lower=_lower_train,
    kernels=(train_kernel,),
    in_place=((0, 0),),
    mutates={3: 1, 4: 2},
    rematerialize=_once_more,
    decompose=_statistics.internal_body,
    cases=_train_cases,
    gradient=_statistics.internal_gradient,
)


def _apart_cases(random: np.random.Generator) -> Iterable[TestCase]:
    attributes = {"epsilon": _EPSILON, "momentum": 0.75, "training_mode": 1}
    for shape in _SHAPES[1:]:
        yield TestCase(f"{list(shape)}", _channel_inputs(random, shape), attributes, outputs=5, ulps=64)


batch_norm_apart = Op(
    "BatchNormApart",
    domain="minbuild",
    reference=_train_reference,
    decompose=_statistics.apart,
    decomposes_to=("Add", "Mul", "Reciprocal", "Sub", "com.microsoft:BatchNormInternal"),
    cases=_apart_cases,
)

# ---------------------------------------- inference


def _reference(attributes: Mapping[str, Any], *inputs: np.ndarray) -> Any:
    if attributes.get("training_mode", 0):
        return _train_reference(attributes, *inputs)[:3]
    x, scale, bias, mean, var = inputs
    factor = scale / np.sqrt(var + _epsilon(attributes))
    return (x - _like(x, mean)) * _like(x, factor) + _like(x, bias)


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    call = infer_kernel.call(
        ctx.result(), *ctx.names[:5], types=(ctx.element(),), params=(_epsilon(ctx.attributes), 0)
    )
    return (call,)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in _SHAPES:
        inputs = _channel_inputs(random, shape)
        yield TestCase(f"{list(shape)}", inputs, {"epsilon": _EPSILON}, ulps=8)
        attributes = {"epsilon": _EPSILON, "momentum": 0.75, "training_mode": 1}
        for outputs in (1, 3):
            smooth = outputs == 1  # running statistics that are inputs cannot be updated in place
            name = f"{list(shape)} in training, {outputs} outputs"
            yield TestCase(name, inputs, attributes, outputs=outputs, ulps=64, smooth=smooth)


def _samples(ctx: OpContext) -> Iterable[int]:
    """Of training, every sample depends on all."""
    return () if ctx.attribute("training_mode", 0) else (0,)


batch_normalization = Op(
    "BatchNormalization",
    since=(7, 9, 14, 15),
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(infer_kernel,),
    in_place=((0, 0),),
    batched_inputs=_samples,
    decompose=_statistics.body,
    decomposes_to=("Add", "Mul", "Reciprocal", "Sub", "com.microsoft:BatchNormInternal"),
    cases=_cases,
    gradient=_statistics.gradient,
)

# ---------------------------------------- once more in a training step


def _again_reference(
    attributes: Mapping[str, Any],
    x: np.ndarray,
    scale: np.ndarray,
    bias: np.ndarray,
    mean: np.ndarray,
    inv_std: np.ndarray,
) -> np.ndarray:
    return (x - _like(x, mean)) * _like(x, scale * inv_std) + _like(x, bias)


def _lower_again(ctx: OpContext) -> Sequence[KernelCall]:
    call = infer_kernel.call(
        ctx.result(), *ctx.names[:5], types=(ctx.element(),), params=(0.0, 1), features=("again",)
    )
    return (call,)


def _again_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in _SHAPES:
        yield TestCase(f"{list(shape)}", _channel_inputs(random, shape), ulps=8)


normalize_again = Op(
    "NormalizeAgain",
    domain="minbuild",
    infer=same_as(0),
    reference=_again_reference,
    lower=_lower_again,
    kernels=(infer_kernel,),
    in_place=((0, 0),),
    batched_inputs=first_input,
    cases=_again_cases,
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
    normal = (x - _like(x, mean)) * _like(x, inv_std)
    d_bias, d_scale = dy.sum(_over(x)), (dy * normal).sum(_over(x))
    count = x.size / x.shape[1]
    dx = _like(x, scale * inv_std) * (dy - _like(x, d_bias / count) - normal * _like(x, d_scale / count))
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


def _grad_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in _SHAPES:
        x, scale, _, _, _ = _channel_inputs(random, shape)
        mean, inv_std = x.mean(_over(x)), 1 / np.sqrt(x.var(_over(x)) + _EPSILON)
        inputs = (random.standard_normal(shape), x, scale, mean, inv_std)
        yield TestCase(f"{list(shape)}", inputs, {"epsilon": _EPSILON}, outputs=3, ulps=32)


batch_normalization_grad = Op(
    "BatchNormalizationGrad",
    domain="com.microsoft",
    infer=_grad_infer,
    reference=_grad_reference,
    lower=_lower_grad,
    kernels=(grad_kernel,),
    in_place=((0, 0), (0, 1)),
    accumulates=frozenset({1, 2}),
    cases=_grad_cases,
    decompose_for_grad=_statistics.grad_parts,
)

KERNELS = (train_kernel, infer_kernel, grad_kernel)
OPS = (batch_norm_internal, batch_norm_apart, batch_normalization, normalize_again, batch_normalization_grad)
