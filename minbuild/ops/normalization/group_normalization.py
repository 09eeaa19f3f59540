"""InstanceNormalization and GroupNormalization: rows of the kernels of layer_normalization.py.

Their gradients need the statistics, which ONNX's operators do not give: training runs operators of the same names
in the domain minbuild instead, which do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ir.dims import Dim, product
from minbuild.ops.core.definition import KernelCall, Op, OpContext, TestCase, UnsupportedUse, require_equal
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results
from minbuild.ops.normalization import layer_normalization as _layer
from minbuild.ops.normalization import layer_normalization_grad as _layer_grad

_DOMAIN = "minbuild"


def _groups(ctx: OpContext, x: int) -> int:
    """Into how many groups the channels are divided."""
    channels = ctx.shape(x)[1]
    groups = ctx.attribute("num_groups", channels)
    if not isinstance(channels, int) and "num_groups" not in ctx.attributes and ctx.has(1):
        require_equal(
            channels, product(ctx.shape(1)), "channels do not fit the scale"
        )  # of an InstanceNormalization
    if not isinstance(channels, int) or not isinstance(groups, int) or channels % groups:
        raise UnsupportedUse(f"{channels} channels cannot be divided into {groups} groups")
    return groups


def _rows(ctx: OpContext, x: int, scale: int) -> tuple[Dim, ...]:
    """Input `x` as [rows, runs, elements of a run]. There is an entry of scale for each channel, or, in opset 18, for
    each group."""
    shape, groups = ctx.shape(x), _groups(ctx, x)
    runs = product(ctx.shape(scale)) // groups  # type: ignore[operator]
    if runs * groups != product(ctx.shape(scale)) or runs == 0:
        raise UnsupportedUse(f"scale has {product(ctx.shape(scale))} entries for {groups} groups")
    inner = product(shape[1:]) // (groups * runs)  # type: ignore[operator]
    return shape[0] * groups, runs, inner


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    each = TensorType(_layer.statistic(ctx), (ctx.shape()[0], _groups(ctx, 0)))
    return TensorType(ctx.element(), ctx.shape()), each, each


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    outputs = tuple(ctx.result(i) for i in range(3))
    rows = _rows(ctx, 0, 1)
    return (_layer.call_norm(ctx, ctx.names[:3], outputs, rows, simple=False, own=False),)


def _gradient(name: str) -> Callable[[GradientBuilder], Results]:
    def gradient(b: GradientBuilder) -> Results:
        b.replace_forward(name, _DOMAIN)
        statistics = (b.save(1), b.save(2))
        groups = _groups(b.ctx, 0)
        inputs = (b.dy[0], *b.x[:2], *statistics)
        attributes = {"num_groups": groups, "epsilon": _layer.epsilon_of(b.ctx.attributes)}
        found = b.many(3, "GroupNormalizationGrad", *inputs, domain=_DOMAIN, **attributes)
        return tuple(found)

    return gradient


def _by_group(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    """[N, groups, the rest]"""
    return x.reshape(x.shape[0], int(attributes.get("num_groups", x.shape[1])), -1)


def _entries(scale: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Scale, for channels or groups, as it broadcasts against x."""
    each = np.repeat(scale, x.shape[1] // scale.size)
    return each.reshape((-1,) + (1,) * (x.ndim - 2))


def _reference(count: int) -> Callable[..., Any]:
    def reference(
        attributes: Mapping[str, Any], x: np.ndarray, scale: np.ndarray, bias: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        rows, epsilon = _by_group(attributes, x), _layer.epsilon_of(attributes)
        normal, mean, inverse = _layer.normalized(rows, (2,), epsilon)
        y = normal.reshape(x.shape) * _entries(scale, x) + _entries(bias, x)
        return (y, mean[..., 0], inverse[..., 0])[:count]

    return reference


_SHAPES: tuple[tuple[tuple[int, ...], int], ...] = (
    ((2, 4, 3), 2),
    ((3, 6, 5, 7), 3),
    ((1, 4, 2, 2, 2), 1),
    ((2, 3, 9), 3),
    ((2, 6, 33), 2),
)


def _cases(grouped: bool, count: int) -> Callable[..., Iterable[TestCase]]:
    def cases(random: np.random.Generator) -> Iterable[TestCase]:
        for shape, groups in _SHAPES:
            x = random.standard_normal(shape) + 0.5
            attributes: dict[str, Any] = {"epsilon": float(np.float32(1e-2))}
            for entries in {shape[1], groups} if grouped else {shape[1]}:
                attributes |= {"num_groups": groups} if grouped else {}
                scale, bias = random.standard_normal((2, entries))
                name = f"{list(shape)}, {attributes.get('num_groups')} groups, {entries} entries"
                yield TestCase(name, (x, scale, bias), attributes, outputs=count, ulps=32)

    return cases


def _op(name: str, domain: str, since: tuple[int, ...]) -> Op:
    grouped, count = name == "GroupNormalization", 3 if domain else 1
    return Op(
        name,
        domain=domain,
        since=since,
        infer=_infer if domain else lambda ctx: _infer(ctx)[:1],
        reference=_reference(count),
        lower=_lower,
        kernels=(_layer.norm_kernel,),
        in_place=((0, 0),),
        cases=_cases(grouped, count),
        gradient=_gradient(name),
    )


instance_normalization = _op("InstanceNormalization", "", (1, 6, 22))
group_normalization = _op("GroupNormalization", "", (18, 21))
instance_normalization_training = _op("InstanceNormalization", _DOMAIN, (1,))
group_normalization_training = _op("GroupNormalization", _DOMAIN, (1,))

# ---------------------------------------------------------------------------------------------------- gradient


def _grad_infer(ctx: OpContext) -> Sequence[TensorType]:
    entries = TensorType(ctx.element(2), ctx.shape(2))
    return TensorType(ctx.element(1), ctx.shape(1)), entries, entries


def _lower_grad(ctx: OpContext) -> Sequence[KernelCall]:
    return (_layer.call_norm_grad(ctx, ctx.names[:5], _rows(ctx, 1, 2), own=False),)


def _grad_parts(b: GraphBuilder) -> Results:
    """From x itself, whose statistics the saved ones are."""
    dy, x, scale = b.x[:3]
    shape, entries = b.ctx.shape(1), product(b.ctx.shape(2))
    if b.ctx.attribute("epsilon") is None or not isinstance(entries, int) or not isinstance(shape[1], int):
        raise UnsupportedUse(
            "a gradient flows through it, which needs attribute epsilon and channels of a known number"
        )
    rows, inner = (0, int(b.ctx.attribute("num_groups")), -1), (2,)
    normal, inverse = _layer_grad.normalized_parts(
        b, x.reshape(rows), inner, _layer.epsilon_of(b.ctx.attributes)
    )
    each = b.add("Expand", scale.reshape((entries, 1)), b.integers((entries, shape[1] // entries)))
    each = each.reshape((shape[1], *(1,) * (len(shape) - 2)))
    g = (dy * each).reshape(rows)
    dx = _layer_grad.gradient_parts(b, g, normal, inverse, inner).reshape_like(x)
    along = dy * normal.reshape_like(x)
    sums = [e.reshape((0, entries, -1)).sum((0, 2), False) for e in (along, dy)]
    return dx, *(e.reshape(b.ctx.shape(2)) for e in sums)


def _grad_reference(
    attributes: Mapping[str, Any],
    dy: np.ndarray,
    x: np.ndarray,
    scale: np.ndarray,
    mean: np.ndarray,
    inverse: np.ndarray,
) -> tuple[np.ndarray, ...]:
    mean, inverse = mean[..., None], inverse[..., None]
    normal = (_by_group(attributes, x) - mean) * inverse
    g = _by_group(attributes, dy * _entries(scale, x))
    dx = _layer_grad.norm_gradient(
        g, normal, scale=np.ones(1), inverse=inverse, axes=(2,), mean=True
    ).reshape(x.shape)
    per_entry = [
        each.reshape(x.shape[0], scale.size, -1).sum((0, 2)) for each in (dy * normal.reshape(x.shape), dy)
    ]
    return dx, *per_entry


def _grad_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, groups in _SHAPES:
        x, dy = random.standard_normal((2, *shape))
        attributes = {"num_groups": groups}
        _, mean, inverse = _layer.normalized(_by_group(attributes, x), (2,), 1e-3)
        for entries in {shape[1], groups}:
            inputs = (dy, x, random.standard_normal(entries), mean[..., 0], inverse[..., 0])
            name = f"{list(shape)}, {groups} groups, {entries} entries"
            yield TestCase(name, inputs, attributes, outputs=3, ulps=64)


group_normalization_grad = Op(
    "GroupNormalizationGrad",
    domain=_DOMAIN,
    infer=_grad_infer,
    reference=_grad_reference,
    lower=_lower_grad,
    kernels=(_layer.norm_grad_kernel,),
    in_place=((0, 0), (0, 1)),
    accumulates=frozenset({1, 2}),
    cases=_grad_cases,
    decompose_for_grad=_grad_parts,
)

OPS = (
    instance_normalization,
    group_normalization,
    instance_normalization_training,
    group_normalization_training,
    group_normalization_grad,
)
