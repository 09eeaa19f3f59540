"""FakeQuant, which rounds to the numbers a quantised type can hold, and its straight-through gradient.

ONNX Runtime has one scale for a tensor; attributes `axis` and `block_size`, as QuantizeLinear has them, are ours. On
the device the mask for the gradient takes a bit an element, and results that gradients read are kept as codes, the
quantised numbers themselves (passes/rewrite/quantized_activations.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minbuild.ir import Call, ElementType, Shape, TensorType
from minbuild.ir.dims import ceil_div, product
from minbuild.ops.core.definition import (
    BOOL,
    FLOATS,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    UnsupportedUse,
    every_input,
    first_input,
    same_as,
)
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.value import Results
from minbuild.ops.quantization.fake_quant_axes import per_axis, quantised_range

_LARGEST = 1 << 21  # of quantised numbers: the kernel rounds up to twice that
MASK_BITS = ElementType.UINT8  # eight elements
_MASKS = (MASK_BITS, BOOL)
_CODES = (ElementType.UINT8, ElementType.UINT16)
FAKE_QUANT, FAKE_QUANT_GRAD = "com.microsoft:FakeQuant", "com.microsoft:FakeQuantGrad"
DECODE = "minbuild:Decode"
fake_quant_kernel = KernelFunction(
    "fake_quant",
    ("y:T=?", "inside:M=?", "codes:C=?", "x:T", "scale:T", "zero_point:T"),
    params=("quant_min:float", "quant_max:float"),
    types={"T": FLOATS, "M": _MASKS, "C": _CODES},
    features={"inside": "masks for gradients", "codes": "results kept as quantised numbers"},
)
grad_kernel = KernelFunction(
    "fake_quant_grad", ("dx:T=", "dy:T", "inside:M"), types={"T": FLOATS, "M": _MASKS}
)
decode_kernel = KernelFunction(
    "decode",
    ("y:T=", "codes:C", "scale:T", "zero_point:T"),
    params=("quant_min:float",),
    types={"T": FLOATS, "C": _CODES},
)


def bits_shape(shape: Shape) -> Shape:
    """Bytes of a mask with a bit for each element of `shape`, in as many dimensions. A sample has its own bytes."""
    if len(shape) < 2:
        return shape
    return (shape[0], ceil_div(product(shape[1:]), 8), *(1,) * (len(shape) - 2))


def code_type(attributes: Mapping[str, Any]) -> ElementType | None:
    """The smallest type of numbers from 0 for all quantised ones; None where that is no smaller than a float."""
    low, high = quantised_range(attributes)
    return next((t for t in _CODES if high - low <= np.iinfo(t.dtype).max), None)


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    if product(ctx.shape(1)) != 1 or product(ctx.shape(2)) != 1:
        raise UnsupportedUse("its scale and zero point must be single numbers")
    return TensorType(ctx.element(), ctx.shape()), TensorType(BOOL, ctx.shape())


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    low, high = quantised_range(ctx.attributes)
    if not -_LARGEST <= low <= high <= _LARGEST:
        raise UnsupportedUse(f"quantised numbers from {low} to {high} are beyond {_LARGEST}")
    kept = {"inside": ctx.result(1), "codes": ctx.result(2)}
    likely = MASK_BITS, code_type(ctx.attributes) or _CODES[0]  # of what is absent: as other calls have it
    types = (
        kind.element if name and (kind := ctx.results[i]) else other
        for i, name, other in zip((1, 2), kept.values(), likely, strict=True)
    )
    call = fake_quant_kernel.call(
        ctx.result(0),
        *kept.values(),
        *ctx.names[:3],
        types=(ctx.element(), *types),
        params=(float(low), float(high)),
        features=(name for name, value in kept.items() if value),
    )
    return (call,)


def _remade(call: Call, ctx: OpContext) -> Call:
    """The result from its codes where these are kept, else from what was quantised."""
    if not ctx.result(2):
        return call
    low, _ = quantised_range(ctx.attributes)
    inputs, attributes = (call.outputs[2], *call.inputs[1:3]), {"quant_min": low}
    return replace(call, op=DECODE, inputs=inputs, outputs=call.outputs[:1], attributes=attributes)


def _batched_inputs(ctx: OpContext) -> Iterable[int]:
    """The numbers, where one scale serves all of them; scales along an axis may differ from sample to sample."""
    return () if "axis" in ctx.attributes else (0,)


def _reference(
    attributes: Mapping[str, Any], x: np.ndarray, scale: np.ndarray, zero_point: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """To the nearest, ties to even. The mask is true where nothing was clipped."""
    low, high = quantised_range(attributes)
    scale, zero = (_spread(attributes, a, x) for a in (scale, zero_point))
    quantised = np.rint(x / scale) + zero
    y = (np.minimum(np.maximum(quantised, low), high) - zero) * scale
    return np.asarray(y), np.asarray((quantised >= low) & (quantised <= high))


def _spread(attributes: Mapping[str, Any], given: np.ndarray, x: np.ndarray) -> np.ndarray:
    if "axis" not in attributes:
        return given.reshape(())
    axis, block = attributes["axis"] % x.ndim, attributes.get("block_size", 0)
    if block:
        return np.repeat(given, block, axis)
    return given.reshape([-1 if a == axis else 1 for a in range(x.ndim)])


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    scale, zero = np.array(0.25), np.array([3.0])
    for shape in ((), (1,), (9,), (2, 3, 7)):
        x = random.standard_normal(shape) * 4
        for bounds in ({}, {"quant_min": -8, "quant_max": 7}):
            for absent in (frozenset[int](), frozenset({1})):
                name = f"{list(shape)} {bounds} {len(absent)}"
                yield TestCase(name, (x, scale, zero), bounds, outputs=2, absent=absent, ulps=2, smooth=False)
    special = np.array([0.125, 0.375, -0.375, np.inf, -np.inf, np.nan, 1e30])
    yield TestCase("special values", (special, scale, zero), outputs=2, ulps=1)
    far = (np.array([-70.0, 300.0, -99.5]), scale, zero)
    yield TestCase("nothing passes", far, constant=frozenset({1, 2}), outputs=2, ulps=1)
    yield from _per_axis_cases(random)


def _per_axis_cases(random: np.random.Generator) -> Iterable[TestCase]:
    x = random.standard_normal((2, 6, 3)) * 40
    granularities = (("axis 1", (6,), {"axis": 1}), ("the last axis", (3,), {"axis": -1}))
    blocks = ("blocks", (2, 2, 3), {"axis": 1, "block_size": 3})
    for name, shape, attributes in (*granularities, blocks):
        scale = np.exp2(random.integers(-3, 1, shape)).astype(np.float64)
        points = (np.full(shape, 3.0), random.integers(0, 255, shape).astype(np.float64))
        for equal, zero in zip(("one zero point", "several"), points, strict=True):
            for absent in (frozenset[int](), frozenset({1})):
                bounds = {**attributes, "quant_min": 1, "quant_max": 254}
                title = f"{name}, {equal} {len(absent)}"
                constant = frozenset({1, 2})
                inputs = (x, scale, zero)
                yield TestCase(
                    title,
                    inputs=inputs,
                    attributes=bounds,
                    constant=constant,
                    outputs=2,
                    absent=absent,
                    ulps=2,
                    smooth=False,
                )


def _gradient(b: GradientBuilder) -> Results:
    return b.microsoft("FakeQuantGrad", b.dy[0], b.save(1))


fake_quant = Op(
    "FakeQuant",
    domain="com.microsoft",
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(fake_quant_kernel,),
    rematerialize=_remade,
    codes=2,
    batched_inputs=_batched_inputs,
    in_place=((0, 0),),
    cases=_cases,
    gradient=_gradient,
    decompose=per_axis,
    decompose_for_grad=per_axis,
    decomposes_to=(
        *(
            "Add",
            "And",
            "Div",
            "Greater",
            "GreaterOrEqual",
            "Less",
            "LessOrEqual",
            "Mul",
            "Reshape",
            "Sub",
            "Where",
        ),
        "com.microsoft:FakeQuant",
    ),
)


def _grad_reference(attributes: Mapping[str, Any], dy: np.ndarray, inside: np.ndarray) -> np.ndarray:
    return np.where(inside, dy, 0)


def _grad_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in ((), (9,), (2, 3)):
        inputs = (random.standard_normal(shape), np.asarray(random.standard_normal(shape) > 0))
        yield TestCase(f"{list(shape)}", inputs, ulps=0)


def _grad_gradient(b: GradientBuilder) -> Results:
    return b.microsoft("FakeQuantGrad", b.dy[0], b.x[1])


def _lower_grad(ctx: OpContext) -> Sequence[KernelCall]:
    return (grad_kernel.call(ctx.result(), *ctx.names[:2], types=(ctx.element(0), ctx.element(1))),)


fake_quant_grad = Op(
    "FakeQuantGrad",
    domain="com.microsoft",
    infer=same_as(0),
    reference=_grad_reference,
    lower=_lower_grad,
    kernels=(grad_kernel,),
    batched_inputs=every_input,
    in_place=((0, 0),),
    cases=_grad_cases,
    gradient=_grad_gradient,
)


def _decoded(ctx: OpContext) -> Sequence[TensorType]:
    return (TensorType(ctx.element(1), ctx.shape()),)


def _lower_decode(ctx: OpContext) -> Sequence[KernelCall]:
    types, low = (ctx.element(1), ctx.element(0)), float(ctx.attributes["quant_min"])
    return (decode_kernel.call(ctx.result(), *ctx.names[:3], types=types, params=(low,)),)


def _decode_reference(
    attributes: Mapping[str, Any], codes: np.ndarray, scale: np.ndarray, zero_point: np.ndarray
) -> np.ndarray:
    return np.asarray((codes.astype(np.float64) + attributes["quant_min"] - zero_point.item()) * scale.item())


def _decode_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for element in _CODES:
        for low, shape in ((0, ()), (-128, (9,)), (-7, (2, 3, 7))):
            codes = random.integers(0, 200, shape, element.dtype)
            inputs = codes, np.array(0.25), np.array([3.0])
            yield TestCase(f"{list(shape)} {element.label}", inputs, {"quant_min": low}, ulps=1, smooth=False)


decode = Op(
    "Decode",
    domain="minbuild",
    infer=_decoded,
    reference=_decode_reference,
    lower=_lower_decode,
    kernels=(decode_kernel,),
    batched_inputs=first_input,
    cases=_decode_cases,
)

KERNELS = (fake_quant_kernel, grad_kernel, decode_kernel)
OPS = (fake_quant, fake_quant_grad, decode)
