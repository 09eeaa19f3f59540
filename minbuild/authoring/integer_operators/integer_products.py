"""Products of dynamically quantised inputs with quantised weights, as float products of a DynamicFakeQuant.

ONNX Runtime's `quantize_dynamic` writes DynamicQuantizeLinear, MatMulInteger or ConvInteger, a Cast and a Mul by both
scales; its optimizer makes one node of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import numpy as np

from minbuild.authoring.integer_operators.values import Quantization, QuantizedValues
from minbuild.frontend.onnx.quantization_pairs import DYNAMIC_FAKE_QUANT, MICROSOFT, MINBUILD
from minbuild.ir import ElementType, Node

_FLOAT = ElementType.FLOAT
_PRODUCTS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}


@dataclass
class IntegerProducts:
    """The parts of products that were read so far. Results are written into `values`."""

    values: QuantizedValues
    dynamic: dict[str, str] = field(default_factory=dict)  # by scale, the value that is quantised so
    factors: dict[str, tuple[str, str]] = field(default_factory=dict)  # products of two scales
    sums: dict[str, Node] = field(default_factory=dict)  # integer products, before and behind a Cast

    def write(self, node: Node) -> bool:
        """Writes the float form of a node; False, and nothing, for one that goes as it is."""
        kind = node.title
        if kind == "DynamicQuantizeLinear" and all(node.outputs[1:3]) and len(node.outputs) == 3:
            self.values.nodes.append(node)
            self.quantizer(node)
        elif kind == f"{MICROSOFT}:DynamicQuantizeMatMul":
            return self.of_floats(node)
        elif kind == f"{MICROSOFT}:MatMulIntegerToFloat":
            return self.of_quantised(node)
        elif kind == "Mul":
            return self.scaled(node)
        else:
            if kind in _PRODUCTS:
                self.sums[node.outputs[0]] = node
            elif kind == "Cast" and node.inputs[0] in self.sums and node.attributes["to"] == _FLOAT:
                self.sums[node.outputs[0]] = self.sums[node.inputs[0]]
            return False
        return True

    def quantizer(self, node: Node) -> None:
        """The float value behind a DynamicQuantizeLinear."""
        q, scale, point = node.outputs
        real = self.values.write(DYNAMIC_FAKE_QUANT, node.inputs, f"{q}/float", MINBUILD)
        self.values.droppable |= set(node.outputs)
        self.values.set_float_value(q, Quantization(scale, point), real)
        self.dynamic[scale] = q

    def scaled(self, node: Node) -> bool:
        """The float product that a Mul of an integer product by the scales of both factors is."""
        for one, other in (node.inputs, node.inputs[::-1]):
            if one in self.dynamic and other not in self.sums:
                self.factors[node.outputs[0]] = one, other
                return False
            if one in self.sums and other in self.factors:
                return self.product(node, self.sums[one], self.factors[other])
        return False

    def product(self, node: Node, sums: Node, scales: tuple[str, str]) -> bool:
        """`sums` times `scales`, in whose place `node` stands."""
        q, w, *points = sums.inputs
        first, second = (*points, "", "")[:2]
        for scale, own in (scales, scales[::-1]):
            real = self.values.float_value(q, Quantization(scale, first))
            weights = self.weights(sums, w, own, second) if real else ""
            if weights:
                operator = _PRODUCTS[sums.op_type]
                self.values.write(operator, (real, weights), node.outputs[0], **sums.attributes)
                self.values.droppable |= {*node.inputs, *sums.outputs}
                return True
        return False

    def of_floats(self, node: Node) -> bool:
        """Inputs: the first factor, weights, their scale and zero point, a bias."""
        x, w, scale, point, bias = (*node.inputs, "", "")[:5]
        weights = self.weights(node, w, scale, point)
        if not weights:
            return False
        real = self.values.write(DYNAMIC_FAKE_QUANT, (x,), f"{node.outputs[0]}/fake_quant", MINBUILD)
        self.float_product(node, real, weights, bias)
        return True

    def of_quantised(self, node: Node) -> bool:
        """Inputs: two factors, the scale of each, the zero point of each, a bias."""
        q, w, scale, own, point, zero, bias = (*node.inputs, "", "", "")[:7]
        by = Quantization(scale, point)
        weights = self.weights(node, w, own, zero) if self.values.of_whole(by) else ""
        if not weights:
            return False
        self.float_product(node, self.values.dequantized(q, by), weights, bias)
        return True

    def float_product(self, node: Node, real: str, weights: str, bias: str) -> None:
        """The product of `real` and `weights` plus `bias`, in place of `node`."""
        result = node.outputs[0]
        product = self.values.write("MatMul", (real, weights), f"{result}/product" if bias else result)
        if bias:
            self.values.write("Add", (product, bias), result)

    def weights(self, sums: Node, w: str, scale: str, point: str) -> str:
        """The float value of `w`, the second factor of `sums`, with this `scale` and zero `point`; "" where there is
        none: it is computed, or the scales are along another axis."""
        values = self.values
        if real := values.float_value(w, Quantization(scale, point)):
            return real
        codes, numbers, zero = (values.array(n) for n in (w, scale, point))
        if codes is None or numbers is None or codes.ndim < 2 or (point and zero is None):
            return ""
        convolves = sums.op_type == "ConvInteger"
        axis = 0 if convolves else codes.ndim - 1
        zero = np.zeros((), codes.dtype) if zero is None else zero
        counts = {a.size for a in (numbers, zero)} - {1}
        along = (codes.shape[axis],) if counts else ()
        behind = codes.ndim - 2 if convolves else 0  # axes of the result behind that of the scales
        if counts - set(along) or not (_lies_along(numbers, behind) and _lies_along(zero, 0)):
            return ""
        names = f"{w}/{scale}", f"{w}/{scale}/{point or 'zero'}"
        for name, array in zip(names, (numbers, zero), strict=True):
            values.add(name, np.broadcast_to(array.ravel(), prod(along)).reshape(along).copy())
        return values.dequantized(w, Quantization(*names, axis))


def _lies_along(array: np.ndarray, behind: int) -> bool:
    """True for one number, or numbers along the axis with this number of axes `behind` it."""
    return array.size == 1 or (array.ndim > behind and array.shape[-1 - behind] == array.size)
