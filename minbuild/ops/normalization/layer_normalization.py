"""LayerNormalization and its relatives without a mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType, Shape, TensorType
from minbuild.ir.dims import Dim, product
from minbuild.ops.core.definition import (
    FLOATS,
    HALVES,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    UnsupportedUse,
    broadcast_shapes,
)
from minbuild.ops.core.graph_builder import MICROSOFT, GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value

_FEATURES = {
    "simple": "root-mean-square normalization",
    "runs": "instance and group normalization",
    "together": "several long rows at once",
}
_HINTS = frozenset({"together"})
_LONG = 128  # elements of a row from which on that pays for its bytes
norm_kernel = KernelFunction(
    "layer_norm",
    ("y:T=?", "mean:T=?", "inv_std:T=?", "x:T", "scale:T", "bias:T?", "rows:extent"),
    params=("epsilon:float", "simple:int", "own_entries:int"),
    types={"T": FLOATS},
    features=_FEATURES,
    hints=_HINTS,
)
norm_grad_kernel = KernelFunction(
    "layer_norm_grad",
    ("dx:T=?", "d_scale:T=?", "d_bias:T=?", "dy:T", "x:T", "scale:T", "mean:T?", "inv_std:T", "rows:extent"),
    params=("own_entries:int",),
    types={"T": FLOATS},
    features=_FEATURES,
    hints=_HINTS,
)


def epsilon_of(attributes: Mapping[str, Any]) -> float:
    """The number added to variances, with the default of all normalizations."""
    return float(attributes.get("epsilon", np.float32(1e-5)))


def statistic(ctx: OpContext, i: int = 0) -> ElementType:
    """The type of means and inverse standard deviations of input `i`."""
    if ctx.element(i) not in HALVES:
        return ctx.element(i)
    return (
        ElementType.BFLOAT16 if ctx.attribute("stash_type", 1) == ElementType.BFLOAT16 else ElementType.FLOAT
    )


def call_norm(
    ctx: OpContext,
    names: Sequence[str],
    outputs: Sequence[str],
    rows: tuple[Dim, ...],
    *,
    simple: bool,
    own: bool,
) -> KernelCall:
    """The kernel call that normalises `rows` [R,N,M] (see the kernel). `names` are x, scale and bias, `outputs` y,
    mean and inv_std, `ctx` is the operator's; `simple` leaves the mean out, `own` is True where every element of a
    row has a scale of its own."""
    together = own and isinstance(rows[2], int) and rows[2] >= _LONG
    return norm_kernel.call(
        *outputs,
        *names,
        TensorType(ctx.element(), rows),
        types=(ctx.element(),),
        params=(epsilon_of(ctx.attributes), int(simple), int(own)),
        features=("simple",) * simple + ("runs",) * (not own) + ("together",) * together,
    )


def call_norm_grad(ctx: OpContext, names: Sequence[str], rows: tuple[Dim, ...], *, own: bool) -> KernelCall:
    """The kernel call of the gradients, of `rows` [R,N,M]; `names` are dy, x, scale, mean and inv_std, `ctx` is the
    operator's, `own` is True where every element of a row has a scale of its own."""
    return norm_grad_kernel.call(
        *(ctx.result(i) for i in range(3)),
        *names,
        TensorType(ctx.element(), rows),
        types=(ctx.element(),),
        params=(int(own),),
        features=("runs",) * (not own),
        accumulate=ctx.accumulate,
    )


def rows_of(ctx: OpContext, x: int = 0) -> tuple[Dim, ...]:
    axis = ctx.axis(-1, x)
    return product(ctx.shape(x)[:axis]), 1, product(ctx.shape(x)[axis:])


def _infer(simple: bool, statistics: bool = True) -> Callable[[OpContext], Sequence[TensorType]]:
    def infer(ctx: OpContext) -> Sequence[TensorType]:
        axis = ctx.axis(-1)
        kept = ctx.shape()[:axis] + (1,) * (ctx.rank() - axis)
        each = TensorType(statistic(ctx), kept)
        return (TensorType(ctx.element(), ctx.shape()), *(each,) * (2 - simple) * statistics)

    return infer


def _lower(simple: bool) -> Callable[[OpContext], Sequence[KernelCall]]:
    def lower(ctx: OpContext) -> Sequence[KernelCall]:
        outputs = (ctx.result(0), "", ctx.result(1)) if simple else tuple(ctx.result(i) for i in range(3))
        names = (ctx.name(0), ctx.name(1), ctx.name(2))
        return (call_norm(ctx, names, outputs, rows_of(ctx), simple=simple, own=True),)

    return lower


# ------------------------------------------------------------------- scales that are not one number per element


def _bare(shape: Shape) -> Shape:
    """Without leading axes of size 1, which change nothing."""
    first = next((i for i, d in enumerate(shape) if d != 1), len(shape))
    return shape[first:]


def _own_entries(ctx: OpContext, i: int) -> bool:
    """True if input `i`, scale or bias, has a number for each element that is normalised together."""
    return not ctx.has(i) or _bare(ctx.shape(i)) == _bare(ctx.shape()[ctx.axis(-1) :])


def _ones(b: GraphBuilder) -> Value:
    """A scale that does nothing."""
    rest = b.ctx.shape()[b.ctx.axis(-1) :]
    if not all(isinstance(d, int) for d in rest):
        raise UnsupportedUse(
            "free dimensions are normalised with a scale that is broadcast; give them a size"
        )
    return b.add("Expand", b.constant(1), b.integers(rest))


def _body(op_type: str, outputs: int) -> Callable[[GraphBuilder], Results]:
    """ONNX lets scale and bias broadcast in every way. What the kernel does not take is done behind it."""

    def body(b: GraphBuilder) -> Results:
        broadcast_shapes(b.ctx.shape(), *(b.ctx.shape(i) for i in (1, 2) if b.has(i)))
        if _own_entries(b.ctx, 1) and _own_entries(b.ctx, 2):
            return None
        y, *statistics = b.many(outputs, op_type, b.x[0], _ones(b), **b.ctx.attributes)
        y = y * b.x[1]
        return (y + b.x[2] if b.has(2) else y, *statistics)

    return body


# ---------------------------------------------------------------------------------------------------- gradient


def _gradient(simple: bool) -> Callable[[GradientBuilder], Results]:
    def gradient(b: GradientBuilder) -> Results:
        saved = tuple(b.save(i) for i in range(1, 3 - simple))
        by = [b.dy[i] if i < len(b.dy) else None for i in range(1, 3 - simple)]
        by_y: Sequence[Value | None] = _through_y(b, saved, simple) if b.dy[0] else (None,)
        through = [g for g in (by_y[0], *through_statistics(b, b.x[0], saved, by)) if g]
        return (b.add("Sum", *through) if len(through) > 1 else through[0], *by_y[1:])

    return gradient


def _through_y(b: GradientBuilder, saved: Sequence[Value], simple: bool) -> Sequence[Value | None]:
    """The gradients of x, scale and bias by that of the first output."""
    axis = b.ctx.axis(-1)
    if _own_entries(b.ctx, 1) and _own_entries(b.ctx, 2):
        return _fused(b, b.dy[0], scale=b.x[1], saved=saved, axis=axis, simple=simple)
    x = b.x[0] if simple else b.x[0] - saved[0]
    normal = x * saved[-1]
    dx = _fused(b, b.dy[0] * b.x[1], scale=_ones(b), saved=saved, axis=axis, simple=simple)[0]
    shape = b.ctx.shape()
    d_scale = b.summed_to(b.dy[0] * normal, shape, 1) if 1 in b.requires_grad else None
    d_bias = b.summed_to(b.dy[0], shape, 2) if 2 in b.requires_grad else None
    return dx, d_scale, d_bias


def through_statistics(
    b: GradientBuilder, x: Value, saved: Sequence[Value], by: Sequence[Value | None]
) -> Iterator[Value]:
    """The gradients of `x` by those of what is `saved`, mean and inverse standard deviation s or that alone: dmean /
    N and -ds s^3 (x - mean) / N. `by` holds theirs, None where there is none. `b` is the graph."""
    if not any(by):
        return
    sizes = b.ctx.shape()[b.ctx.axis(-1) :]
    fixed = [d for d in sizes if isinstance(d, int)]
    if statistic(b.ctx) is not b.ctx.element() or len(fixed) < len(sizes):
        raise UnsupportedUse(
            "a gradient flows through its statistics, which works on floats and fixed sizes only"
        )
    count = b.constant(float(np.prod(fixed)))
    if len(by) > 1 and by[0]:
        yield (by[0] / count).expand_like(b.x[0])
    if by[-1]:
        away = x - saved[0] if len(saved) > 1 else x
        cube = saved[-1] * saved[-1] * saved[-1]
        yield -(by[-1] * cube / count) * away


def _fused(
    b: GradientBuilder, dy: Value, scale: Value, saved: Sequence[Value], axis: int, simple: bool
) -> tuple[Value, ...]:
    name = "SimplifiedLayerNormalizationGrad" if simple else "LayerNormalizationGrad"
    return b.many(3 - simple, name, dy, b.x[0], scale, *saved, domain=MICROSOFT, axis=axis)


def _root_mean_square_gradient(b: GradientBuilder) -> Results:
    b.replace_forward("SimplifiedLayerNormalization", "")
    return _gradient(simple=True)(b)


# ----------------------------------------------------------------------------------------- reference and cases


def normalized(
    x: np.ndarray, axes: tuple[int, ...], epsilon: float, simple: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`x` normalised over `axes`, without scale and bias, its mean (0 where `simple`) and its inverse standard
    deviation; `epsilon` is added to the variance."""
    mean = np.zeros_like(x.mean(axes, keepdims=True)) if simple else x.mean(axes, keepdims=True)
    inverse = 1 / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + epsilon)
    return (x - mean) * inverse, mean, inverse


def axes_of(attributes: Mapping[str, Any], x: np.ndarray) -> tuple[int, ...]:
    return tuple(range(int(attributes.get("axis", -1)) % x.ndim, x.ndim))


def _reference(simple: bool, statistics: bool = True) -> Callable[..., tuple[np.ndarray, ...]]:
    def reference(
        attributes: Mapping[str, Any], x: np.ndarray, scale: np.ndarray, bias: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        y, mean, inverse = normalized(x, axes_of(attributes, x), epsilon_of(attributes), simple)
        y = y * scale + (0 if bias is None else bias)
        return (y, *((inverse,) if simple else (mean, inverse))) if statistics else (y,)

    return reference


SHAPES: tuple[tuple[tuple[int, ...], int], ...] = (
    ((1, 4), -1),
    ((4, 3), -1),
    ((3, 33), 1),
    ((2, 5, 16), -1),
    ((2, 3, 7), 1),
    ((2, 3, 5), 0),
    ((2, 3, 4, 5), -2),
    ((9,), 0),
)
EPSILON = float(np.float32(1e-3))


def _cases(simple: bool, outputs: int, biased: bool) -> Callable[..., Iterable[TestCase]]:
    def cases(random: np.random.Generator) -> Iterable[TestCase]:
        for shape, axis in SHAPES:
            x, attributes = random.standard_normal(shape) + 0.5, {"axis": axis, "epsilon": EPSILON}
            scale, bias = random.standard_normal((2, *shape[axis:]))
            inputs = (x, scale, bias) if biased else (x, scale)
            for count in {1, outputs}:
                yield TestCase(
                    f"{list(shape)} axis {axis}, {count}", inputs, attributes, outputs=count, ulps=32
                )
            yield TestCase(f"{list(shape)} axis {axis}, no bias", inputs[:2], attributes, ulps=32)
        x = random.standard_normal((2, 3, 4))
        for wide in ((1,), (3, 1), (2, 1, 4), (1, 1, 4)):
            scale, bias = random.standard_normal((2, *wide))
            inputs = (x, scale, bias) if biased else (x, scale)
            yield TestCase(f"scale {list(wide)}", inputs, {"axis": 1}, outputs=outputs, ulps=32)
        x, (scale, bias) = random.standard_normal((4, 24)) + 1000, random.standard_normal((2, 24))
        inputs = (x, scale, bias) if biased else (x, scale)
        yield TestCase("far from zero", inputs, outputs=outputs, ulps=4000 if not simple else 32)

    return cases


def _op(name: str, simple: bool, outputs: int, biased: bool, since: tuple[int, ...] = (1, 17)) -> Op:
    return Op(
        name,
        since=since,
        infer=_infer(simple, outputs > 1),
        reference=_reference(simple, outputs > 1),
        lower=_lower(simple),
        kernels=(norm_kernel,),
        in_place=((0, 0),),
        inexpensive=True,
        decompose=_body(name, outputs),
        decomposes_to=("Add", "Expand", "Mul") if biased else ("Expand", "Mul"),
        cases=_cases(simple, outputs, biased),
        gradient=_root_mean_square_gradient if outputs == 1 else _gradient(simple),
        differentiable=frozenset(range(outputs)),
    )


layer_normalization = _op("LayerNormalization", False, 3, True)
simplified_layer_normalization = _op("SimplifiedLayerNormalization", True, 2, False, (1,))
rms_normalization = _op("RMSNormalization", True, 1, False, (23,))

KERNELS = (norm_kernel, norm_grad_kernel)
OPS = (
    layer_normalization,
    simplified_layer_normalization,
    rms_normalization,
)
