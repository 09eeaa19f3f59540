"""DequantizeConv: a convolution, or its input gradient, whose weights stay in 4, 8 or 16 bits.

Its kernel is that of Conv; it dequantizes some weights at a time onto the stack, so that no float copy is in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minbuild.ir import Call, ElementType, TensorType
from minbuild.ir.dims import Dim, product
from minbuild.ops.convolution.conv import (
    conv,
    dequantizing_kernel,
    dequantizing_packed_kernel,
)
from minbuild.ops.convolution.conv_layer import Layer
from minbuild.ops.convolution.conv_params import INPUT_GRADIENT, OUTPUT
from minbuild.ops.core.definition import FLOAT, KernelCall, Op, OpContext, TestCase, first_input
from minbuild.ops.quantization.dequantize import OWN, Format, operands

DEQUANTIZE_CONV = "minbuild:DequantizeConv"


def _format(attributes: Mapping[str, Any]) -> Format:
    prefix = "quantized_"
    return Format.of({n.removeprefix(prefix): v for n, v in attributes.items() if n.startswith(prefix)})


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    weights = TensorType(ctx.element(), tuple(ctx.attributes["weights"]))
    assert conv.infer is not None and ctx.attributes["propagation"] == OUTPUT
    return conv.infer(replace(ctx, inputs=(ctx.inputs[0], weights)))


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    stored, propagation = _format(ctx.attributes), int(ctx.attributes["propagation"])
    weights = tuple(int(d) for d in ctx.attributes["weights"])
    layer = Layer.of(ctx, ctx.shape(0) if propagation == OUTPUT else ctx.result_shape(), weights)
    layer = replace(layer, function=dequantizing_kernel.function)
    names, bias, element = operands(ctx, 1), ctx.name(5), ctx.element()
    # Of images of one element products are dot products, of whole rows of weights.
    row = layer.channels if propagation == OUTPUT else layer.filters
    outputs = product([a.outputs for a in layer.axes])
    dots = layer.pointwise and not layer.packs and not (isinstance(outputs, int) and outputs > 1)
    packs = layer.packs
    kernel = dequantizing_packed_kernel if packs else dequantizing_kernel
    transposed, exchanged = propagation == INPUT_GRADIENT, packs and layer.exchanges(propagation)
    own = {"dequantize": True, "dequantize_transposed": transposed, "exchanged": exchanged}
    features = layer.features(bias=bool(bias), **own)
    scratch = layer.packed_scratch(propagation, quantized=True) if packs else layer.scratch()
    call = kernel.call(
        *(ctx.result(), ctx.name(0), TensorType(FLOAT, weights), bias, scratch, *names),
        TensorType(ElementType.UINT8, (row * element.size if dots else 0,)),
        types=(element,),
        params=(propagation, *layer.params(), *stored.params()),
        features=(*features, *stored.features(bool(names[2]), bool(names[3]))),
    )
    return (call,)


def _reference(
    attributes: Mapping[str, Any],
    x: np.ndarray,
    codes: np.ndarray,
    scale: np.ndarray,
    zero: np.ndarray | None = None,
    table: np.ndarray | None = None,
    bias: np.ndarray | None = None,
) -> np.ndarray:
    w = _format(attributes).values(codes, scale, zero, table).reshape(attributes["weights"])
    assert conv.reference is not None
    return np.asarray(conv.reference(attributes, x, w, bias))


def _work(ctx: OpContext) -> Dim:
    """As with real weights; the gradient reads as many numbers as the convolution makes."""
    made = ctx.result_shape() if ctx.attributes["propagation"] == OUTPUT else ctx.shape()
    return product(made) * product([int(d) for d in ctx.attributes["weights"][1:]])


def _again(call: Call, ctx: OpContext) -> Call | None:
    assert conv.rematerialize is not None
    return conv.rematerialize(call, ctx) if ctx.attributes["propagation"] == OUTPUT else None


_LAYERS: tuple[tuple[tuple[int, ...], tuple[int, ...], Mapping[str, Any]], ...] = (
    ((2, 3, 8, 8), (6, 3, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((2, 4, 9, 7), (6, 2, 3, 3), {"group": 2, "strides": (2, 2)}),
    ((3, 5, 6, 6), (9, 5, 1, 1), {}),
    ((2, 6, 7, 7), (6, 1, 3, 3), {"group": 6}),
    ((1, 48, 14, 14), (96, 48, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((2, 3, 20), (4, 3, 5), {}),
    ((3, 70, 1, 1), (9, 70, 1, 1), {}),
)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for index, (x, w, flags) in enumerate(_LAYERS):
        columns = int(np.prod(w[1:]))
        for bits in (8, 4):
            stored = Format(
                bits, w[0], columns, columns, row_block=1, column_block=columns, signed=index % 2, zero=index
            )
            scale = np.exp2(random.integers(-5, 0, w[0])).astype(np.float32)
            size = w[0] * columns if bits == 8 else (w[0] * columns + 1) // 2
            codes = random.integers(0, 256, size).astype(np.uint8)
            bias = random.standard_normal(w[0]) if index % 2 else None
            own = {f"quantized_{name}": value for name, value in stored.attributes.items()}
            attributes = {**flags, **own, "propagation": OUTPUT, "weights": w}
            inputs = (random.standard_normal(x), codes, scale, None, None, bias)
            yield TestCase(
                f"{list(x)} {list(w)}, {bits} bits",
                inputs,
                attributes,
                frozenset({1, 2}),
                ulps=max(16, columns // 8),
            )


dequantize_conv = Op(
    "DequantizeConv",
    domain=OWN,
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(dequantizing_kernel, dequantizing_packed_kernel),
    rematerialize=_again,
    flops=_work,
    batched_inputs=first_input,
    cases=_cases,
)

OPS = (dequantize_conv,)
