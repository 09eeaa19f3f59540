"""Dropout and BitmaskDropout with their gradients: a random mask, and what it does to the data.

In training, elements are zero with the probability `ratio` and divided by `1 - ratio` else. ONNX Runtime draws
nothing for a ratio of 0, so neither is anything drawn here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType, TensorType
from minbuild.ir.dims import ceil_div, product
from minbuild.ops.core.definition import (
    BOOL,
    FLOAT,
    FLOATS,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    UnsupportedUse,
    same_as,
)
from minbuild.ops.core.graph_builder import MICROSOFT, GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value

_FIRST_WITH_BOOL_MASK = 10
_WORD = 32  # mask elements in a number of a bit mask

masked_scale_kernel = KernelFunction(
    "masked_scale", ("y:T=", "x:T", "mask:bool", "ratio:R"), types={"T": FLOATS, "R": FLOATS}
)
pack_bits_kernel = KernelFunction("pack_bits", ("y:uint32=", "mask:bool"))
unpack_bits_kernel = KernelFunction("unpack_bits", ("mask:bool=", "x:uint32"))


def _trains(b: GraphBuilder, i: int) -> bool:
    """The value of input `i`, which is False where it is absent."""
    if not b.has(i):
        return False
    content = b.ctx.content(i)
    if content is None or content.size != 1:
        raise UnsupportedUse(f"whether it trains (input {i}) must be known when the trainer is built")
    return bool(content.item())


def _ratio(b: GraphBuilder, i: int) -> Value:
    """Input `i` or its default, in a type that kernels read."""
    if not b.has(i):
        return b.constant(0.5, FLOAT)
    return b.x[i] if b.ctx.element(i) in FLOATS else b.x[i].cast(FLOAT)


def _drops(b: GraphBuilder, ratio: int, trains: int) -> bool:
    """True if any element can become zero."""
    known = b.ctx.content(ratio)
    return _trains(b, trains) and not (known is not None and known.size == 1 and known.item() == 0)


def _masked(b: GraphBuilder, kept: ElementType = BOOL) -> tuple[Value, Value]:
    """The result, and the mask: ones of type `kept` where nothing is dropped."""
    if not _drops(b, 1, 2):
        return b.x[0], b.constant(1, kept).expand_like(b.x[0])
    seed = {"seed": b.ctx.attributes["seed"]} if "seed" in b.ctx.attributes else {}
    ratio = _ratio(b, 1)
    mask = b.add("RandomMask", b.x[0], ratio, domain="minbuild", **seed)
    return b.add("MaskedScale", b.x[0], mask, ratio, domain="minbuild"), mask


def _body(b: GraphBuilder) -> Results:
    """Before the mask became bool it had the type of the data."""
    return _masked(b, b.ctx.element() if b.ctx.version < _FIRST_WITH_BOOL_MASK else BOOL)


def _bitmask_body(b: GraphBuilder) -> Results:
    y, mask = _masked(b)
    return y, b.add("PackBits", mask, domain="minbuild")


def _grad_body(b: GraphBuilder) -> Results:
    """Of dy, mask, ratio, whether it trains."""
    if not _drops(b, 2, 3):
        return b.x[0]
    return b.add("MaskedScale", b.x[0], b.x[1], _ratio(b, 2), domain="minbuild")


def _bitmask_grad_body(b: GraphBuilder) -> Results:
    if not _drops(b, 2, 3):
        return b.x[0]
    mask = b.add("UnpackBits", b.x[1], b.x[0], domain="minbuild")
    return b.add("MaskedScale", b.x[0], mask, _ratio(b, 2), domain="minbuild")


def _gradient(op: str) -> Any:
    def gradient(b: GradientBuilder) -> Results:
        if not b.has(2):  # not in training, as in all versions without this input
            return b.dy[0]
        return b.microsoft(op, b.dy[0], b.save(1), *b.x[1:])

    return gradient


dropout = Op("Dropout", since=(7, 10, 12, 13, 22), decompose=_body, gradient=_gradient("DropoutGrad"))
dropout_grad = Op("DropoutGrad", domain=MICROSOFT, decompose=_grad_body)
bitmask_dropout = Op(
    "BitmaskDropout", domain=MICROSOFT, decompose=_bitmask_body, gradient=_gradient("BitmaskDropoutGrad")
)
bitmask_dropout_grad = Op("BitmaskDropoutGrad", domain=MICROSOFT, decompose=_bitmask_grad_body)


# --------------------------------------------------------------------------------------- what they are made of


def _scale_reference(
    attributes: Mapping[str, Any], x: np.ndarray, mask: np.ndarray, ratio: np.ndarray
) -> np.ndarray:
    return np.asarray(np.where(mask, x / (1 - ratio.item()), 0))


def _lower_scale(ctx: OpContext) -> Sequence[KernelCall]:
    names = (ctx.name(i) for i in range(3))
    return (masked_scale_kernel.call(ctx.result(), *names, types=(ctx.element(0), ctx.element(2))),)


def _scale_gradient(b: GradientBuilder) -> Results:
    return b.add("MaskedScale", b.dy[0], b.x[1], b.x[2], domain="minbuild")


def _scale_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in ((), (7,), (3, 5), (2, 3, 4, 5)):
        for ratio in (0.0, 0.25, 0.75):
            inputs = random.standard_normal(shape), random.random(shape) >= ratio, np.array([ratio])
            yield TestCase(f"shape {list(shape)}, ratio {ratio}", inputs, constant=frozenset({2}), ulps=2)


masked_scale = Op(
    "MaskedScale",
    domain="minbuild",
    infer=same_as(0),
    reference=_scale_reference,
    lower=_lower_scale,
    kernels=(masked_scale_kernel,),
    in_place=((0, 0),),
    cases=_scale_cases,
    gradient=_scale_gradient,
)


def _packed(ctx: OpContext) -> Sequence[TensorType]:
    return (TensorType(ElementType.UINT32, (ceil_div(product(ctx.shape()), _WORD),)),)


def _pack_reference(attributes: Mapping[str, Any], mask: np.ndarray) -> np.ndarray:
    rows = np.concatenate([mask.ravel(), np.zeros(-mask.size % _WORD, bool)]).reshape(-1, _WORD)
    return (rows.astype(np.uint64) << np.arange(_WORD, dtype=np.uint64)).sum(axis=1).astype(np.uint32)


def _lower_pack(ctx: OpContext) -> Sequence[KernelCall]:
    return (pack_bits_kernel.call(ctx.result(), ctx.name(0)),)


def _masks(random: np.random.Generator) -> Iterable[np.ndarray]:
    for shape in ((), (1,), (31,), (32,), (33,), (4, 5, 7)):
        yield np.asarray(random.random(shape) >= 0.5)


def _pack_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for mask in _masks(random):
        yield TestCase(f"shape {list(mask.shape)}", (mask,))


pack_bits = Op(
    "PackBits",
    domain="minbuild",
    infer=_packed,
    reference=_pack_reference,
    lower=_lower_pack,
    kernels=(pack_bits_kernel,),
    cases=_pack_cases,
)


def _unpacked(ctx: OpContext) -> Sequence[TensorType]:
    return (TensorType(BOOL, ctx.shape(1)),)


def _unpack_reference(attributes: Mapping[str, Any], words: np.ndarray, like: np.ndarray) -> np.ndarray:
    bits = words[:, None] >> np.arange(_WORD, dtype=np.uint32) & 1
    return bits.ravel()[: like.size].reshape(like.shape).astype(bool)


def _lower_unpack(ctx: OpContext) -> Sequence[KernelCall]:
    return (unpack_bits_kernel.call(ctx.result(), ctx.name(0)),)


def _unpack_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for mask in _masks(random):
        yield TestCase(f"shape {list(mask.shape)}", (_pack_reference({}, mask), np.zeros(mask.shape)))


unpack_bits = Op(
    "UnpackBits",
    domain="minbuild",
    infer=_unpacked,
    reference=_unpack_reference,
    lower=_lower_unpack,
    kernels=(unpack_bits_kernel,),
    cases=_unpack_cases,
)

KERNELS = (masked_scale_kernel, pack_bits_kernel, unpack_bits_kernel)
OPS = (dropout, dropout_grad, bitmask_dropout, bitmask_dropout_grad, masked_scale, pack_bits, unpack_bits)
