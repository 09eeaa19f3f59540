"""FakeQuant, which rounds to the numbers a quantised type can hold, and its straight-through gradient.

ONNX Runtime has one scale for a tensor; attributes `axis` and `block_size`, as QuantizeLinear has them, are ours."""

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
    itself,
)
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value

_LARGEST = 1 << 21  # of quantised numbers: the kernel rounds up to twice that
_WIDE = 1 << 20  # beyond every quantised type that is cut off elsewhere
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


def _per_axis(b: GraphBuilder) -> Results:
    """With one scale for each index of `axis`, or for each `block_size` of them: x / scale rounded with the scale 1,
    times scale. Zero points that differ move what is cut off instead of what is rounded, as ties go to even."""
    if "axis" not in b.ctx.attributes:
        return None
    x, scale = b.x[0], _beside(b, 1)
    split = _split(b)
    ratio = (x.reshape(split) if split else x) / scale
    low, high = _range(b.ctx.attributes)
    point = b.ctx.content(2)
    one = b.constant(1)
    if point is not None and np.unique(point).size == 1:
        bounds = {"quant_min": low, "quant_max": high}
        zero = b.constant(point.ravel()[0])
        whole, inside = b.many(2, "FakeQuant", ratio, one, zero, domain="com.microsoft", **bounds)
    else:
        bounds = {"quant_min": -_WIDE, "quant_max": _WIDE}
        rounded = b.microsoft("FakeQuant", ratio, one, b.constant(0), **bounds)
        zero = _beside(b, 2)
        lowest, highest = low - zero, high - zero
        whole = b.where(rounded < lowest, lowest, b.where(rounded > highest, highest, rounded))
        inside = (rounded >= lowest) & (rounded <= highest)
    results = whole * scale, inside
    return tuple(r.reshape_like(x) for r in results[: len(b.y)]) if split else results[: len(b.y)]


def _split(b: GraphBuilder) -> list[int]:
    """The shape of x with its axis as blocks and elements of them; empty where there are no blocks."""
    block, axis = int(b.ctx.attribute("block_size", 0)), b.ctx.axis(1)
    if not block:
        return []
    sizes = [d for d in b.ctx.shape() if isinstance(d, int)]
    if len(sizes) < b.ctx.rank() or sizes[axis] % block:
        raise UnsupportedUse(f"blocks of {block} need fixed sizes, and one of axis {axis} that they divide")
    return [*sizes[:axis], sizes[axis] // block, block, *sizes[axis + 1 :]]


def _beside(b: GraphBuilder, i: int) -> Value:
    """Input `i`, a scale or zero point, so that it broadcasts to x."""
    axis, rank = b.ctx.axis(1), b.ctx.rank()
    if b.ctx.attribute("block_size", 0):
        return b.x[i].unsqueeze([axis + 1])
    return b.x[i].unsqueeze([a for a in range(rank) if a != axis])


def _range(attributes: Mapping[str, Any]) -> tuple[int, int]:
    return int(attributes.get("quant_min", 0)), int(attributes.get("quant_max", 255))


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    low, high = _range(ctx.attributes)
    if not -_LARGEST <= low <= high <= _LARGEST:
        raise UnsupportedUse(f"quantised numbers from {low} to {high} are beyond {_LARGEST}")
    names = ctx.result(0), ctx.result(1), *ctx.names[:3]
    return (fake_quant_kernel.call(*names, types=(ctx.element(),), params=(float(low), float(high))),)


def _batched_inputs(ctx: OpContext) -> Iterable[int]:
    """The numbers, where one scale serves all of them; scales along an axis may differ from sample to sample."""
    return () if "axis" in ctx.attributes else (0,)


def _reference(
    attributes: Mapping[str, Any], x: np.ndarray, scale: np.ndarray, zero_point: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """To the nearest, ties to even. The mask is true where nothing was clipped."""
    low, high = _range(attributes)
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
    rematerialize=itself,
    batched_inputs=_batched_inputs,
    in_place=((0, 0),),
    cases=_cases,
    gradient=_gradient,
    decompose=_per_axis,
    decompose_for_grad=_per_axis,
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
