"""Dequantize: weights that stay in 4, 8 or 16 bits, and the kernels that compute with them.

DequantizeLinear of weights, MatMulNBits and MatMulBnb4 decompose into it. It is never folded to real numbers: products,
convolutions and gathers read the codes in place (dequantize_product.py, dequantize_conv.py, dequantize_gather.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

import numpy as np

from minbuild.ir import ElementType, TensorType
from minbuild.ir.dims import product
from minbuild.ops.core.definition import (
    FLOAT,
    FLOATS,
    INDICES,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    UnsupportedUse,
    View,
    itself,
)
from minbuild.ops.core.graph_builder import GraphBuilder
from minbuild.ops.core.value import Value

OWN = "minbuild"
DEQUANTIZE = "minbuild:Dequantize"
FORMAT_PARAMS = ("format:int", "columns:int", "stride:int", "row_block:int", "column_block:int")
FORMAT_FEATURES = {
    "four_bits": "weights in four bits",
    "eight_bits": "weights in eight bits",
    "sixteen_bits": "weights in sixteen bits",
    "offsets": "weights in 8 or 16 bits that are unsigned or have a zero point",
    "table": "four-bit weights that number the values of a table",
    "byte_table": "eight-bit weights that number the values of a table, such as those in float8",
    "zero_points": "a zero point for each block",
    "column_scales": "a scale for each column",
    "column_blocks": "a scale for some columns of a row",
}
_TYPES = {"T": FLOATS}
TRANSPOSED, PACKED = 1, 2  # bits of how a product goes
CODES = ("q:uint8", "scale:float", "zero_point:uint8?", "table:float?")

dequantize_kernel = KernelFunction("dequantize", ("y:T=", *CODES), FORMAT_PARAMS, _TYPES, FORMAT_FEATURES)
gather_kernel = KernelFunction(
    "dequantize_gather",
    ("y:T=", *CODES, "indices:I"),
    ("rows:int", *FORMAT_PARAMS),
    {**_TYPES, "I": INDICES},
    FORMAT_FEATURES,
)
product_kernel = KernelFunction(
    "dequantize_product",
    ("y:T=", "a:T", *CODES, "bias:T?", "rows:scratch"),
    ("trans_a:int", "trans_w:int", "alpha:float", "bias_after:int", "rows:int", *FORMAT_PARAMS),
    _TYPES,
    {
        **FORMAT_FEATURES,
        "bias": "adds a third operand",
        "packed": "at sizes where packing pays",
        "transposed": "products with the transpose of such weights",
    },
    share=lambda params, first: first if params[1] & PACKED else 0,
    work=lambda params, shapes: product(shapes[0]) * (params[6] if params[1] & TRANSPOSED else params[4]),
)


@dataclass(frozen=True)
class Format:
    """The storage of a matrix of weights: `bits` of an element; whether the first of two is in the high half of a byte;
    whether the codes are signed; elements from one row to the next (`stride`); rows and columns that share a scale; and
    the zero point, as the codes have it, where all blocks have the same."""

    bits: int
    rows: int
    columns: int
    stride: int
    row_block: int
    column_block: int
    signed: int = 0
    high_first: int = 0
    zero: int = 0

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> Format:
        """The format that an operator's attributes describe."""
        return cls(**{name: int(attributes[name]) for name in cls.__dataclass_fields__})

    @classmethod
    def of_array(
        cls, rows: int, columns: int, blocks: tuple[int, int], dtype: np.dtype[Any], points: np.ndarray | None
    ) -> tuple[Format, bool]:
        """The format of an array of `dtype`, whole numbers of 8 or 16 bits, with `blocks` of rows and columns that
        share a scale; and whether one zero point serves all, which then is part of it. `points` are None where only
        the device knows them. `rows` and `columns` are those of the matrix."""
        same = points is not None and np.unique(points).size == 1
        zero = int(points.ravel()[0]) if points is not None and same else 0
        bits, signed = 8 * dtype.itemsize, int(dtype.kind == "i")
        stored = cls(bits, rows, columns, columns, *blocks, signed=signed, zero=zero)
        return stored, same

    @property
    def attributes(self) -> dict[str, int]:
        return asdict(self)

    @property
    def with_one_scale(self) -> Format:
        """The format where one scale is for all blocks."""
        return replace(self, row_block=max(self.rows, self.row_block), column_block=self.columns)

    @property
    def flip(self) -> int:
        """The bits that make a signed code a number from zero on."""
        return 1 << self.bits - 1 if self.signed else 0

    def params(self) -> tuple[int, ...]:
        zero = (self.zero & (1 << self.bits) - 1) ^ self.flip
        wide = self.bits == 16
        word = int(self.bits == 4) | self.high_first << 1 | wide << 2 | self.flip >> 8 * wide << 8
        word |= (zero << 16) - (zero >> 15 << 32)  # in 32 bits with a sign
        return word, self.columns, self.stride, self.row_block, self.column_block

    def features(self, zeros: bool, table: bool) -> tuple[str, ...]:
        asked = {
            "four_bits": self.bits == 4,
            "eight_bits": self.bits == 8,
            "sixteen_bits": self.bits == 16,
            "offsets": self.bits >= 8 and (zeros or not self.signed or self.zero != 0),
            "table": table and self.bits == 4,
            "byte_table": table and self.bits == 8,
            "zero_points": zeros,
            "column_scales": self.column_block == 1,
            "column_blocks": 1 < self.column_block < self.columns,
        }
        return tuple(name for name, wanted in asked.items() if wanted)

    def values(
        self,
        codes: np.ndarray,
        scale: np.ndarray,
        zero: np.ndarray | None = None,
        table: np.ndarray | None = None,
    ) -> np.ndarray:
        """The matrix in numpy. `codes` are as stored; `scale`, `zero` and `table` as the format has them."""
        unsigned: np.dtype[Any] = np.dtype(np.uint16 if self.bits == 16 else np.uint8)
        raw = np.ascontiguousarray(codes).ravel().view(unsigned)
        if self.bits == 4:
            halves = (raw >> 4, raw & 15) if self.high_first else (raw & 15, raw >> 4)
            raw = np.stack(halves, 1).ravel()
        whole = np.zeros(self.rows * self.stride, unsigned)
        count = min(whole.size, raw.size)
        whole[:count] = raw[:count]
        matrix = whole.reshape(self.rows, self.stride)[:, : self.columns] ^ self.flip
        rows, columns = np.arange(self.rows) // self.row_block, np.arange(self.columns) // self.column_block
        block = np.ix_(rows, columns)
        blocks = rows[-1] + 1, columns[-1] + 1
        numbers = matrix.astype(np.float64) if table is None else np.asarray(table)[matrix]
        if zero is None:
            numbers = numbers - ((self.zero & (1 << self.bits) - 1) ^ self.flip)
        else:
            points = np.ascontiguousarray(zero).view(unsigned) ^ self.flip
            numbers = numbers - points.reshape(blocks)[block].astype(np.float64)
        return np.asarray(numbers * np.asarray(scale).reshape(blocks)[block])


def dequantized(
    b: GraphBuilder,
    layout: Format,
    shape: Sequence[int],
    inputs: tuple[Value, Value, Value | None, Value | None],
    to: ElementType = FLOAT,
) -> Value:
    """A node for weights of `shape` by codes, scales, zero points and table. `b` is the graph, `layout` the format,
    `inputs` are these values, None where absent, `to` is the type of the result."""
    return b.add("Dequantize", *inputs, domain=OWN, shape=tuple(shape), to=int(to), **layout.attributes)


def operands(ctx: OpContext, first: int = 0) -> tuple[str, str, str, str]:
    """The names of codes, scales, zero points and table, which are inputs from `first` on; those of 16-bit numbers as
    the bytes that kernels read."""
    codes, scale, zeros, table = (ctx.name(first + i) for i in range(4))
    return _bytes(ctx, first, codes), scale, _bytes(ctx, first + 2, zeros), table


def _bytes(ctx: OpContext, i: int, name: str) -> str:
    size = ctx.element(i).size if name else 1
    return View(name, TensorType(ElementType.UINT8, (product(ctx.shape(i)) * size,))) if size > 1 else name


def format_at(ctx: OpContext) -> Format:
    """The format of an application of Dequantize. One scale is for all blocks, whatever attributes say."""
    layout = Format.of(ctx.attributes)
    return layout.with_one_scale if ctx.shape(1) in ((), (1,)) else layout


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    layout, shape = format_at(ctx), tuple(int(d) for d in ctx.attributes["shape"])
    if prod(shape) != layout.rows * layout.columns:
        raise UnsupportedUse(f"{layout.rows} x {layout.columns} weights are not of shape {list(shape)}")
    return (TensorType(ElementType(ctx.attribute("to", int(FLOAT))), shape),)


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    layout, result = format_at(ctx), ctx.results[0]
    assert result is not None
    names = operands(ctx)
    call = dequantize_kernel.call(
        ctx.result(),
        *names,
        types=(result.element,),
        params=layout.params(),
        features=layout.features(bool(names[2]), bool(names[3])),
    )
    return (call,)


def _reference(
    attributes: Mapping[str, Any],
    codes: np.ndarray,
    scale: np.ndarray,
    zero: np.ndarray | None = None,
    table: np.ndarray | None = None,
) -> np.ndarray:
    layout = Format.of(attributes)
    if scale.size == 1:
        layout = layout.with_one_scale
    values = layout.values(codes, scale, zero, table)
    return values.reshape(attributes["shape"])


def formats(
    random: np.random.Generator, rows: int, columns: int
) -> Iterable[tuple[str, Format, tuple[Any, ...]]]:
    """Formats of a matrix of that size, each with a name, codes, scales, zero points and table. `random` draws the
    numbers; `rows` and `columns` are that size."""
    blocks = {
        "one scale": (rows, columns),
        "a scale a row": (1, columns),
        "a scale a column": (rows, 1),
        "blocks of columns": (1, 16),
        "blocks of rows": (4, 1),
    }
    for bits in (16, 8, 4):
        for index, (name, (row_block, column_block)) in enumerate(blocks.items()):
            count = -(-rows // row_block) * -(-columns // column_block)
            scale = np.exp2(random.integers(-4, 1, count)).astype(np.float32)
            padded = columns if index != 3 else -(-columns // 16) * 16
            size = (rows * padded + 1) // 2 if bits == 4 else rows * padded
            unsigned = np.uint16 if bits == 16 else np.uint8
            codes = random.integers(0, np.iinfo(unsigned).max, size, unsigned, True)
            zeros = random.integers(0, 1 << bits, count).astype(unsigned)
            signed, high = index % 2, int(index == 4 and bits == 4)
            layout = Format(
                bits,
                rows,
                columns,
                padded,
                row_block=row_block,
                column_block=column_block,
                signed=signed,
                high_first=high,
                zero=3,
            )
            yield f"{bits} bits, {name}", layout, (codes, scale, None, None)
            if index > 1:
                yield f"{bits} bits, {name}, zero points", layout, (codes, scale, zeros, None)
            if bits == 4 and index in (0, 3):
                table = random.standard_normal(16).astype(np.float32)
                layout = replace(layout, signed=0, zero=0)
                yield f"{bits} bits, {name}, table", layout, (codes, scale, None, table)
            if bits == 8 and index in (0, 1, 2):
                table = random.standard_normal(256).astype(np.float32)
                layout = replace(layout, signed=0, zero=0)
                yield f"{bits} bits, {name}, table", layout, (codes, scale, None, table)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for rows, columns in ((1, 1), (3, 7), (9, 80)):
        for name, layout, inputs in formats(random, rows, columns):
            attributes = {**layout.attributes, "shape": (rows, columns)}
            yield TestCase(
                f"{rows} x {columns}, {name}", inputs, attributes, frozenset(range(4)), ulps=1, smooth=False
            )


dequantize = Op(
    "Dequantize",
    domain=OWN,
    infer=_infer,
    reference=_reference,
    folds=False,
    lower=_lower,
    kernels=(dequantize_kernel,),
    rematerialize=itself,
    cases=_cases,
)

KERNELS = (dequantize_kernel, gather_kernel, product_kernel)
OPS = (dequantize,)
