"""QLinearConv, QGemm, QLinearAdd and their like as the float operators that they stand for.

ONNX Runtime's quantizer writes them by `QuantFormat.QOperator`. Here they become what `QuantFormat.QDQ` writes for the
same model: operands behind DequantizeLinear, results before QuantizeLinear, biases with the scale of the products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from minbuild.authoring.integer_operators.values import Quantization, QuantizedValues
from minbuild.frontend.onnx.quantization_pairs import MICROSOFT
from minbuild.ir import Node

_FLATTENS_BEFORE = 13  # older opsets take a Softmax over all axes from one on
_AXES_SINCE = 18  # the first opset whose ReduceMean reads its axes


@dataclass(frozen=True)
class _Form:
    """The inputs of an operator: quantised operands, each before its scale and zero point; the result's scale; a bias;
    and operands that are not quantised, before the others."""

    operands: tuple[int, ...]
    result: int
    bias: int = -1
    plain: int = 0


_FORMS = {
    "QLinearConv": _Form((0, 3), 6, bias=8),
    "QLinearMatMul": _Form((0, 3), 6),
    "QGemm": _Form((0, 3), 7, bias=6),
    "QLinearAdd": _Form((0, 3), 6),
    "QLinearMul": _Form((0, 3), 6),
    "QLinearSigmoid": _Form((0,), 3),
    "QLinearLeakyRelu": _Form((0,), 3),
    "QLinearSoftmax": _Form((0,), 3),
    "QLinearAveragePool": _Form((0,), 3),
    "QLinearGlobalAveragePool": _Form((0,), 3),
    "QLinearReduceMean": _Form((0,), 3),
    "QLinearWhere": _Form((1, 4), 7, plain=1),
}
_DOMAINS = {
    **dict.fromkeys((*_FORMS, "QLinearConcat"), (MICROSOFT,)),
    "QLinearConv": ("", MICROSOFT),
    "QLinearMatMul": ("",),
}


def quantization_at(node: Node, i: int, axis: int = 0) -> Quantization:
    """Scale and zero point that are inputs `i` and `i` + 1 of `node`, several along `axis`."""
    scale, point = (node.inputs[k] if k < len(node.inputs) else "" for k in (i, i + 1))
    return Quantization(scale, point, axis)


def operands_of(node: Node) -> tuple[tuple[str, Quantization], ...]:
    """The quantised values that an operator reads; none for one that computes with floats."""
    if node.op_type == "QLinearConcat":
        places: tuple[int, ...] = tuple(range(2, len(node.inputs), 3))
    elif node.op_type == "DequantizeLinear":
        return ((node.inputs[0], quantization_at(node, 1, node.attributes.get("axis", 1))),)
    elif node.op_type in _FORMS:
        places = _FORMS[node.op_type].operands
    else:
        return ()
    return tuple((node.inputs[i], quantization_at(node, i + 1, _axis(node, i))) for i in places)


def _axis(node: Node, i: int) -> int:
    """The axis of operand `i` that several scales are along: filters, columns of a second factor, rows of a first."""
    if node.op_type == "QLinearConv":
        return 0
    if node.op_type == "QGemm":
        return 0 if node.attributes.get("transB", 0) else 1
    return -1 if i else -2


def write_operator(node: Node, values: QuantizedValues) -> bool:
    """Writes the float form of a node into `values`; False, and nothing, for a node that has none."""
    if node.domain not in _DOMAINS.get(node.op_type, ()):
        return False
    if not all(q and by.scale for q, by in operands_of(node)):
        return False
    form = _FORMS.get(node.op_type)
    attributes, bias = _attributes(node, values.opset), _bias(node, values)
    result = _typed(node, values, quantization_at(node, form.result if form else 0))
    if attributes is None or bias is None or result is None:
        return False
    inputs = [values.dequantized(q, by) for q, by in (*operands_of(node), *bias)]
    inputs = [*node.inputs[: form.plain if form else 0], *inputs]
    operator = node.op_type.removeprefix("Q").removeprefix("Linear")
    if operator == "ReduceMean" and values.opset >= _AXES_SINCE and "axes" in attributes:
        axes = np.array(attributes.pop("axes"), np.int64)
        inputs.append(values.add(f"{node.outputs[0]}/axes", axes))
    if not result.scale:  # QGemm can return floats
        values.write(operator, tuple(inputs), node.outputs[0], **attributes)
        return True
    real = values.write(operator, tuple(inputs), f"{node.outputs[0]}/unquantised", **attributes)
    values.quantized(real, result, node.outputs[0])
    return True


def _attributes(node: Node, opset: int) -> dict[str, Any] | None:
    """Those of the float operator; None where it has no such form."""
    attributes = dict(node.attributes)
    if attributes.pop("channels_last", 0):
        return None
    written_for = attributes.pop("opset", opset)
    if node.op_type == "QLinearSoftmax":
        flattens = (written_for < _FLATTENS_BEFORE) != (opset < _FLATTENS_BEFORE)
        attributes.setdefault("axis", -1)
        if flattens and attributes["axis"] != -1:
            return None
    return attributes


def _typed(node: Node, values: QuantizedValues, result: Quantization) -> Quantization | None:
    """The quantisation of the result with a zero point, which says that it is of the operands' type; None where that
    is not known."""
    if result.point or not result.scale:
        return result
    points = (values.array(by.point) for _, by in operands_of(node))
    dtype = next((a.dtype for a in points if a is not None), None)
    if dtype is None:
        return None
    return result._replace(point=values.add(f"{node.outputs[0]}/zero_point", np.zeros((), dtype)))


def _bias(node: Node, values: QuantizedValues) -> tuple[tuple[str, Quantization], ...] | None:
    """The bias of a product with its quantisation, none where there is none; None where its scale is not known."""
    form = _FORMS.get(node.op_type)
    if form is None or form.bias < 0 or form.bias >= len(node.inputs) or not node.inputs[form.bias]:
        return ()
    name = node.inputs[form.bias]
    numbers, first, second = (values.array(n) for n in (name, node.inputs[1], node.inputs[4]))
    if numbers is None or first is None or second is None:
        return None
    scale = np.float32(node.attributes.get("alpha", 1.0)) * first.reshape(-1) * second.reshape(-1)
    shape = () if scale.size == 1 else scale.shape
    own = values.add(f"{node.outputs[0]}/bias_scale", scale.astype(np.float32).reshape(shape))
    return ((name, Quantization(own, "", numbers.ndim - 1)),)
