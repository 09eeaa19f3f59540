"""FakeQuant, which rounds to the numbers a quantised type can hold, and its straight-through gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ir.dims import product
from minbuild.ops.core.definition import (
    BOOL,
    FLOATS,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    UnsupportedUse,
)
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results

_LARGEST = 1 << 21  # of quantised numbers: the kernel rounds up to twice that
fake_quant_kernel = KernelFunction(
    "fake_quant",
    ("y:T=?", "inside:bool=?", "x:T", "scale:T", "zero_point:T"),
    params=("quant_min:float", "quant_max:float"),
    types={"T": FLOATS},
)


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    if product(ctx.shape(1)) != 1 or product(ctx.shape(2)) != 1:
        raise UnsupportedUse("its scale and zero point must be single numbers")
    return TensorType(ctx.element(), ctx.shape()), TensorType(BOOL, ctx.shape())


def _range(attributes: Mapping[str, Any]) -> tuple[int, int]:
    return int(attributes.get("quant_min", 0)), int(attributes.get("quant_max", 255))


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    low, high = _range(ctx.attributes)
    if not -_LARGEST <= low <= high <= _LARGEST:
        raise UnsupportedUse(f"quantised numbers from {low} to {high} are beyond {_LARGEST}")
    names = ctx.result(0), ctx.result(1), *ctx.names[:3]
    return (fake_quant_kernel.call(*names, types=(ctx.element(),), params=(float(low), float(high))),)


def _reference(
    attributes: Mapping[str, Any], x: np.ndarray, scale: np.ndarray, zero_point: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """To the nearest, ties to even. The mask tells where nothing was cut off."""
    low, high = _range(attributes)
    zero = zero_point.reshape(())
    quantised = np.rint(x / scale.reshape(())) + zero
    y = (np.minimum(np.maximum(quantised, low), high) - zero) * scale.reshape(())
    return np.asarray(y), np.asarray((quantised >= low) & (quantised <= high))


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


def _gradient(b: GradientBuilder) -> Results:
    return b.microsoft("FakeQuantGrad", b.dy[0], b.save(1))


fake_quant = Op(
    "FakeQuant",
    domain="com.microsoft",
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(fake_quant_kernel,),
    in_place=((0, 0),),
    cases=_cases,
    gradient=_gradient,
)


def _grad_body(b: GraphBuilder) -> Results:
    return b.where(b.x[1], b.x[0], 0)


def _grad_reference(attributes: Mapping[str, Any], dy: np.ndarray, inside: np.ndarray) -> np.ndarray:
    return np.where(inside, dy, 0)


def _grad_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in ((), (9,), (2, 3)):
        inputs = (random.standard_normal(shape), np.asarray(random.standard_normal(shape) > 0))
        yield TestCase(f"{list(shape)}", inputs, ulps=0)


def _grad_gradient(b: GradientBuilder) -> Results:
    return b.microsoft("FakeQuantGrad", b.dy[0], b.x[1])


fake_quant_grad = Op(
    "FakeQuantGrad",
    domain="com.microsoft",
    reference=_grad_reference,
    decompose=_grad_body,
    decomposes_to=("Where",),
    cases=_grad_cases,
    gradient=_grad_gradient,
)

KERNELS = (fake_quant_kernel,)
OPS = (fake_quant, fake_quant_grad)
