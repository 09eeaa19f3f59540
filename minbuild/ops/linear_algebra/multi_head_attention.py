"""Attention of ONNX Runtime's own domain, as its optimizers fuse it: MultiHeadAttention, Attention, which projects its
input first, and RotaryEmbedding. Each becomes the operator that ONNX has since opset 23."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from minbuild.ir import ElementType
from minbuild.ops.core.definition import Op, UnsupportedUse
from minbuild.ops.core.graph_builder import MICROSOFT, GraphBuilder
from minbuild.ops.core.value import Results, Value

_SINCE = 23
_MASKED = -10000.0  # added to the scores of keys that a mask hides
_CACHE = "keys and values of earlier calls are for generating text. Export the model with use_cache=False"


def _standard(b: GraphBuilder, name: str, *inputs: Value | None, **attributes: Any) -> Value:
    result = b.add(name, *inputs, **attributes)
    b.nodes[-1] = replace(b.nodes[-1], version=_SINCE)
    return result


def _number(b: GraphBuilder, value: int) -> Value:
    return b.constant(value, ElementType.INT64)


def _parts(b: GraphBuilder, x: Value, axis: int, sizes: Sequence[int]) -> list[Value]:
    """Neighbouring parts of `x` along `axis`."""
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [
        b.add("Slice", x, b.integers([end - size]), b.integers([end]), b.integers([axis]))
        for end, size in zip(ends, sizes, strict=True)
    ]


def _static(b: GraphBuilder, i: int, axis: int) -> int:
    size = b.ctx.shape(i)[axis]
    if not isinstance(size, int):
        raise UnsupportedUse(f"its input {i} has the size {size} along axis {axis}, which must be a number")
    return size


def _without_cache(b: GraphBuilder, inputs: Sequence[int]) -> None:
    if any(b.has(i) for i in inputs) or any(b.y[1:]):
        raise UnsupportedUse(_CACHE)


def _attended(
    b: GraphBuilder, operands: Sequence[Value], heads: int, keys: tuple[int, int], masks: tuple[int, int]
) -> Value:
    """Attention of the `operands` query, key and value. `keys` are the input and the axis whose size is the number of
    keys; `masks` are the inputs of integers that say which keys are there, and of what is added to the scores. `heads`
    is 0 where operands are split into heads already."""
    mask = b.x[masks[1]] if b.has(masks[1]) else None
    if b.has(masks[0]):
        hidden = _hidden(b, masks[0], keys)
        mask = hidden if mask is None else mask + hidden
    attributes: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": heads} if heads else {}
    if scale := float(b.ctx.attribute("scale", 0.0)):
        attributes["scale"] = scale
    causal = int(b.ctx.attribute("unidirectional", 0))
    if causal and b.ctx.shape(keys[0])[keys[1]] != b.ctx.shape(0)[1]:
        raise UnsupportedUse("its attribute unidirectional is supported for as many keys as queries only")
    return _standard(b, "Attention", *operands, mask, is_causal=causal, **attributes)


def _hidden(b: GraphBuilder, i: int, keys: tuple[int, int]) -> Value:
    """The addend to the scores, [batch, 1, 1 or queries, keys], for mask input `i`: 1 where a key is there, of shape
    [batch, keys] or [batch, queries, keys], or the number of keys, of shape [batch]."""
    mask, shape = b.x[i], b.ctx.shape(i)
    if len(shape) == 1 and shape[0] == b.ctx.shape(0)[0]:
        count = b.add("Gather", b.x[keys[0]].shape(), _number(b, keys[1]))
        places = b.add("Range", _number(b, 0), count, _number(b, 1)).cast(b.ctx.element(i))
        there = (places < mask.unsqueeze((1,))).unsqueeze((1, 2))
    elif len(shape) in (2, 3):
        there = (mask > 0).unsqueeze((1, 2) if len(shape) == 2 else (1,))
    else:
        raise UnsupportedUse(
            f"a mask of shape {list(shape)} is not supported; give one of shape [batch, keys] or [batch, queries, keys]"
        )
    filler = float(b.ctx.attribute("mask_filter_value", _MASKED))
    return b.where(there, b.constant(0.0), b.constant(filler))


def _multi_head_body(b: GraphBuilder) -> Results:
    """Query [batch, queries, width] with key and value likewise, or of shape [batch, heads, keys, width of a head]; or
    key and value in one, [batch, keys, heads, 2, width of a head], or all three, [..., 3, ...]."""
    _without_cache(b, range(6, len(b.x)))
    heads = int(b.ctx.attribute("num_heads", 0))
    whole = len(b.ctx.shape(0)) == 5
    if b.has(2) and len(b.ctx.shape(1)) == 4:
        return _split_attended(b, heads)
    source = 0 if whole else 1
    operands = list(b.x[:3])
    if whole or not b.has(2):  # operands side by side, on axis 3
        parts = [b.add("Gather", b.x[source], _number(b, i), axis=3) for i in range(3 - source)]
        operands = [*b.x[:source], *(x.reshape((0, 0, -1)) for x in parts)]
    if b.has(3):
        first = _static(b, 0, -1) * (heads if whole else 1)
        biases = _parts(b, b.x[3], 0, (first, first, _static(b, 3, 0) - 2 * first))
        operands = [x + bias for x, bias in zip(operands, biases, strict=True)]
    return _attended(b, operands, heads, (source, 1), (4, 5))


def _split_attended(b: GraphBuilder, heads: int) -> Value:
    """Attention of a query [batch, queries, width] and of keys and values that are split into heads."""
    if b.has(3):
        raise UnsupportedUse("a bias beside keys that are split into heads is not supported. Leave it out")
    query = b.x[0].reshape((0, 0, heads, -1)).transpose((0, 2, 1, 3))
    result = _attended(b, (query, *b.x[1:3]), 0, (1, 2), (4, 5))
    return result.transpose((0, 2, 1, 3)).reshape((0, 0, -1))


def _attention_body(b: GraphBuilder) -> Results:
    """Input [batch, length, width], weights and bias of queries, keys and values side by side."""
    _without_cache(b, (4, 6))
    if int(b.ctx.attribute("do_rotary", 0)):
        raise UnsupportedUse("do_rotary is not supported; RotaryEmbedding before it is")
    sizes = tuple(b.ctx.attribute("qkv_hidden_sizes", ())) or (_static(b, 1, 1) // 3,) * 3
    projected = b.x[0] @ b.x[1]
    projected = projected + b.x[2] if b.has(2) else projected
    operands = _parts(b, projected, 2, sizes)
    return _attended(b, operands, int(b.ctx.attribute("num_heads")), (0, 1), (3, 5))


def _rotary_body(b: GraphBuilder) -> Results:
    """Positions are those of all elements, [batch, length], or the first one, [1], which the others follow."""
    x, positions, cos, sin = b.x
    shape = b.ctx.shape()
    if int(b.ctx.attribute("is_packed_batching", 0)):
        raise UnsupportedUse("its attribute is_packed_batching is not supported. Leave it out")
    if len(b.ctx.shape(1)) == 1:
        length = b.add("Gather", x.shape(), _number(b, 1 if len(shape) == 3 else 2))
        places = b.add("Range", _number(b, 0), length, _number(b, 1)) + positions
        batch = b.add("Slice", x.shape(), b.integers([0]), b.integers([1]))
        positions = b.add("Expand", places, b.add("Concat", batch, length.unsqueeze((0,)), axis=0))
    attributes = {n: int(b.ctx.attribute(n, 0)) for n in ("interleaved", "num_heads", "rotary_embedding_dim")}
    if len(shape) == 3 and not attributes["num_heads"]:
        attributes["num_heads"] = _static(b, 0, 2) // (2 * _static(b, 2, 1))
    return _standard(b, "RotaryEmbedding", *(x, cos, sin, positions), **attributes)


def _op(name: str, body: Any, *made_of: str) -> Op:
    return Op(name, domain=MICROSOFT, decompose=body, decomposes_to=made_of, differentiable=frozenset({0}))


OPS = (
    _op("Attention", _attention_body, *("Add", "Attention", "MatMul", "Slice")),
    _op("MultiHeadAttention", _multi_head_body, "Add", "Attention", "Slice"),
    _op("RotaryEmbedding", _rotary_body, "RotaryEmbedding"),
)
