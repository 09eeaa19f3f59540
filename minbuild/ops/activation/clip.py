"""Clip and its gradient. ORT writes the gradient as comparisons, a Cast and a Mul; here it is one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType, Shape
from minbuild.ops.core.channel_slices import elementwise_channels
from minbuild.ops.core.definition import (
    ELEMENTS,
    FLOATS,
    EqualLowering,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    UnsupportedUse,
    every_input,
    first_input,
    itself,
    same_as,
)
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.pattern import Match, Replacement, Rewrite, RewritingOp
from minbuild.ops.core.value import Results

_PARAMS = ("low_0:int", "low_1:int", "high_0:int", "high_1:int")  # two words each: the bits of one element
clip_kernel = KernelFunction("clip", ("y:T=", "x:T"), params=_PARAMS, types={"T": FLOATS}, cut=ELEMENTS)
clip_grad_kernel = KernelFunction(
    "clip_grad", ("dx:T=", "dy:T", "x:T"), params=_PARAMS, types={"T": FLOATS}, cut=ELEMENTS
)


def _words(bounds: tuple[float, float], element: ElementType) -> tuple[int, ...]:
    words = [np.array(bound, element.dtype).reshape(1).view(np.int32).tolist() for bound in bounds]
    return tuple(word for pair in words for word in (pair + [0])[:2])


def _bound(ctx: OpContext, i: int, attribute: str, default: float) -> float | None:
    """A bound is an attribute up to opset 6, then an input; None where only the device knows it."""
    if not ctx.has(i):
        return float(ctx.attribute(attribute, default))
    content = ctx.content(i)
    return (
        float(content.item())
        if content is not None and content.size == 1 and content.dtype != object
        else None
    )


def _bounds(ctx: OpContext) -> tuple[float | None, float | None]:
    return _bound(ctx, 1, "min", -np.inf), _bound(ctx, 2, "max", np.inf)


def _body(b: GraphBuilder) -> Results:
    """Integers, and bounds that only the device knows, take Max and Min. The upper bound has the last word."""
    if b.ctx.element().is_real and None not in _bounds(b.ctx):
        return None
    y = b.x[0]
    for i, op_type in ((1, "Max"), (2, "Min")):
        if b.has(i):
            axes = tuple(range(b.ctx.rank(i)))
            y = b.add(op_type, y, b.x[i].squeeze(axes))
    return y


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    low, high = _bounds(ctx)
    if low is None or high is None or ctx.element() not in FLOATS:
        raise UnsupportedUse(f"no kernel for {ctx.element().label}; has float, double")
    return (call_clip(ctx, low, high),)


def call_clip(ctx: OpContext, low: float, high: float) -> KernelCall:
    """The result of `ctx` as its first operand, `low` at least and `high` at most."""
    words = _words((low, high), ctx.element())
    return clip_kernel.call(ctx.result(), ctx.name(0), types=(ctx.element(),), params=words)


def _relu(call: KernelCall, shape: Callable[[str], Shape]) -> Sequence[KernelCall] | None:
    """max(0, x), and of that and infinity the smaller one, in the order in which NaN stays."""
    (element,) = call.types
    if element not in FLOATS:
        return None
    return (clip_kernel.call(*call.args, types=call.types, params=_words((0.0, np.inf), element)),)


def _reference(
    attributes: Mapping[str, Any],
    x: np.ndarray,
    low: np.ndarray | None = None,
    high: np.ndarray | None = None,
) -> np.ndarray:
    at_least, at_most = (
        attributes.get(name) if bound is None else bound.reshape(())
        for name, bound in (("min", low), ("max", high))
    )
    y = x if at_least is None else np.maximum(x, at_least)
    return np.asarray(y if at_most is None else np.minimum(y, at_most))


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in ((), (1,), (9,), (3, 5), (2, 3, 4, 5)):
        x = random.standard_normal(shape)
        for low, high in ((-0.5, 0.75), (None, 0.5), (-0.5, None), (None, None), (1.0, -1.0)):
            bounds = tuple(None if b is None else np.array(b) for b in (low, high))
            yield TestCase(f"{list(shape)} {low} to {high}", (x, *bounds), constant=frozenset({1, 2}), ulps=0)
            yield TestCase(f"{list(shape)} {low} to {high}, not constant", (x, *bounds), ulps=0, smooth=False)
    for dtype in (np.int8, np.uint8, np.int32, np.int64, np.uint64):
        x = random.integers(0, 99, (3, 5)).astype(dtype)
        for low, high in ((9, 60), (None, 60), (9, None), (None, None), (60, 9)):
            bounds = tuple(None if b is None else np.array(b, dtype) for b in (low, high))
            yield TestCase(f"{x.dtype} {low} to {high}", (x, *bounds))
    yield TestCase("attributes", (random.standard_normal(9),), {"min": -0.25, "max": 0.5}, ulps=0)
    yield TestCase(
        "special values", (np.array([np.nan, np.inf, -np.inf, 6.0]),), {"min": 0.0, "max": 6.0}, ulps=0
    )


def _gradient(b: GradientBuilder) -> Results:
    """As ORT writes it, dY where x lies between the bounds: one ClipGrad where they are constants. As
    there, bounds have no gradients."""
    ctx, dy, x = b.ctx, b.dy[0], b.x[0]
    low, high = (
        b.x[i] if b.has(i) else b.constant(ctx.attribute(name)) if ctx.attribute(name) is not None else None
        for i, name in ((1, "min"), (2, "max"))
    )
    masks = [x >= low] if low else []
    masks += [x <= high] if high else []
    if not masks:
        return dy
    inside = masks[0] & masks[1] if len(masks) == 2 else masks[0]
    return dy * inside.cast(ctx.element())


clip = Op(
    "Clip",
    since=(6, 11, 12, 13),
    infer=same_as(0),
    reference=_reference,
    lower=_lower,
    kernels=(clip_kernel,),
    in_place=((0, 0),),
    rematerialize=itself,
    batched_inputs=first_input,
    channels=elementwise_channels,
    decompose=_body,
    decomposes_to=("Max", "Min"),
    cases=_cases,
    gradient=_gradient,
)


def _lower_grad(ctx: OpContext) -> Sequence[KernelCall]:
    if ctx.element() not in FLOATS:
        raise UnsupportedUse(f"no kernel for {ctx.element().label}; has float, double")
    words = _words((ctx.attribute("min", -np.inf), ctx.attribute("max", np.inf)), ctx.element())
    call = clip_grad_kernel.call(ctx.result(), ctx.name(0), ctx.name(1), types=(ctx.element(),), params=words)
    return (call,)


def _grad_reference(attributes: Mapping[str, Any], dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    low, high = attributes.get("min", -np.inf), attributes.get("max", np.inf)
    return np.where((x >= low) & (x <= high), dy, 0)


def _grad_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in ((), (1,), (9,), (2, 3, 5, 5)):
        dy, x = random.standard_normal(shape), np.round(random.standard_normal(shape) * 4) / 4
        for bounds in ({"min": -0.5, "max": 0.75}, {"min": 0.0}, {"max": 0.5}):
            yield TestCase(f"{list(shape)} {bounds}", (dy, x), bounds, ulps=0, smooth=False)
            yield TestCase(f"{list(shape)} {bounds}, off the bounds", (dy, x + 0.1), bounds, ulps=0)


def _grad_gradient(b: GradientBuilder) -> Results:
    """Linear in dy."""
    return b.add("ClipGrad", b.dy[0], b.x[1], domain="minbuild", **b.ctx.attributes)


def _fused(match: Match) -> Replacement | None:
    """dy * Cast(low <= x and x <= high), all of one shape and type, the bounds constant."""
    names = {"min": "low", "max": "high"}
    bounds = {bound: match.number(name) for bound, name in names.items() if name in match.names}
    same = match.types["dy"] == match.types["x"] == match.result
    if not same or any(b is None for b in bounds.values()) or match.result.element not in FLOATS:
        return None
    return Replacement("minbuild:ClipGrad", ("dy", "x"), bounds)


_LOW, _HIGH = ("GreaterOrEqual", "x", "low"), ("LessOrEqual", "x", "high")
clip_grad = RewritingOp(
    "ClipGrad",
    domain="minbuild",
    infer=same_as(0),
    reference=_grad_reference,
    lower=_lower_grad,
    kernels=(clip_grad_kernel,),
    in_place=((0, 0), (0, 1)),
    batched_inputs=every_input,
    channels=elementwise_channels,
    cases=_grad_cases,
    gradient=_grad_gradient,
    rewrites=tuple(
        Rewrite(("Mul", "dy", ("Cast", mask)), _fused) for mask in (("And", _LOW, _HIGH), _LOW, _HIGH)
    ),
)

KERNELS = (clip_kernel, clip_grad_kernel)
OPS = (clip, clip_grad)
EQUALS = (
    EqualLowering("relu-by-clip", "Relu by Clip", {"relu": _relu}, (clip_kernel,), needs=frozenset({"clip"})),
)
