"""QAttention as a float product of the dequantised input, and an attention of its parts.

ONNX Runtime's quantizer writes it for the layer that its optimizer for transformers fuses. Weights are [inputs, 3 *
hidden], those of queries, keys and values beside each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minbuild.authoring.integer_operators.values import Quantization, QuantizedValues
from minbuild.frontend.onnx.quantization_pairs import MICROSOFT
from minbuild.ir import ElementType, Node

_RANGE_SINCE = 11
_X, _W, _BIAS, _X_SCALE, _W_SCALE, _MASK, _X_POINT, _W_POINT, _PAST = range(9)
_LEAST = float(np.finfo(np.float32).min)
_FILTER = -10000.0  # added to the scores of masked places, by default
_SAME_RANK = ("Cast", "Identity")


def write_attention(node: Node, values: QuantizedValues) -> bool:
    """Writes the float form of a node into `values`; False, and nothing, for a node that has none: one with states of
    earlier calls or rotated positions, with a mask of three axes, or whose weights are computed."""
    if node.title != f"{MICROSOFT}:QAttention" or values.opset < _RANGE_SINCE:
        return False
    layer = _Attention(node, values)
    if not layer.is_usual():
        return False
    layer.write()
    return True


@dataclass
class _Attention:
    node: Node
    values: QuantizedValues

    def input(self, i: int) -> str:
        return self.node.inputs[i] if i < len(self.node.inputs) else ""

    @property
    def heads(self) -> int:
        return int(self.node.attributes.get("num_heads", 1))

    def is_usual(self) -> bool:
        """True if there is a float form."""
        node, weights = self.node, self.values.array(self.input(_W))
        if (
            self.input(_PAST)
            or any(node.outputs[1:])
            or not all(self.input(i) for i in (_X, _BIAS, _X_SCALE))
        ):
            return False
        if any(node.attributes.get(n) for n in ("do_rotary", "past_present_share_buffer")):
            return False
        if weights is None or self.values.array(self.input(_W_SCALE)) is None:
            return False
        fits = weights.ndim == 2 and weights.shape[1] % (3 * max(self.heads, 1)) == 0 and self.heads > 0
        return fits and (not self.input(_MASK) or self.mask_rank() in (1, 2))

    def mask_rank(self) -> int:
        """The number of axes of the mask: 2 for truth values [batch, places], 1 for the number of places of each
        sample; 0 where it is not known, or may be more than that."""
        name, summed = self.input(_MASK), 0
        maker = {n: each for each in self.values.graph.nodes for n in each.outputs}
        while (node := maker.get(name)) is not None:
            if node.op_type == "ReduceSum" and not node.attributes.get("keepdims", 1) and not summed:
                summed = 1
            elif node.op_type not in _SAME_RANK:
                return 0
            name = node.inputs[0]
        tensor = self.values.graph.inputs.get(name)
        shape = None if tensor is None else tensor.shape
        if shape is None or len(shape) != 2:  # with one axis, it may have starts behind the ends
            return 0
        return 2 - summed

    def write(self) -> None:
        """Writes the nodes."""
        values, own = self.values, self.node.outputs[0]
        x, w = (
            values.dequantized(self.input(i), Quantization(self.input(scale), self.input(point), axis))
            for i, scale, point, axis in ((_X, _X_SCALE, _X_POINT, 0), (_W, _W_SCALE, _W_POINT, 1))
        )
        sums = values.write("MatMul", (x, w), f"{own}/products")
        sums = values.write("Add", (sums, self.input(_BIAS)), f"{own}/sums")
        width = np.asarray(values.array(self.input(_W))).shape[1] // 3 // self.heads
        # [batch, places, 3, heads, width] to [3, batch, heads, places, width]
        parts = self.reshaped(sums, (0, 0, 3, self.heads, width), "parts")
        parts = values.write("Transpose", (parts,), f"{own}/turned", perm=[2, 0, 3, 1, 4])
        queries, keys, wanted = (
            values.write("Gather", (parts, self.whole(f"number {i}", i)), f"{own}/part {i}", axis=0)
            for i in range(3)
        )
        keys = values.write("Transpose", (keys,), f"{own}/keys", perm=[0, 1, 3, 2])
        scores = values.write("MatMul", (queries, keys), f"{own}/scores")
        factor = float(self.node.attributes.get("scale", 0.0)) or 1 / np.sqrt(width)
        scores = values.write("Mul", (scores, self.real("factor", factor)), f"{own}/scaled")
        scores = self.masked(scores, x)
        shares = values.write("Softmax", (scores,), f"{own}/shares", axis=-1)
        mixed = values.write("MatMul", (shares, wanted), f"{own}/mixed")
        mixed = values.write("Transpose", (mixed,), f"{own}/by place", perm=[0, 2, 1, 3])
        shape = values.add(f"{own}/result_shape", np.array((0, 0, self.heads * width)))
        values.write("Reshape", (mixed, shape), own)
        values.droppable.discard(own)

    def masked(self, scores: str, x: str) -> str:
        """The `scores` [batch, heads, places, places] with those of masked places far below the others; `x` is the
        input."""
        values, own = self.values, self.node.outputs[0]
        if self.input(_MASK):
            mask = values.write("Cast", (self.input(_MASK),), f"{own}/mask", to=int(ElementType.INT64))
            if self.mask_rank() == 2:
                there = values.write("Greater", (mask, self.whole("nothing", 0)), f"{own}/there")
                there = self.reshaped(there, (0, 1, 1, -1), "there by sample")
            else:
                ends = self.reshaped(mask, (-1, 1, 1, 1), "ends")
                there = values.write("Less", (self.places(x), ends), f"{own}/there")
            given = float(self.node.attributes.get("mask_filter_value", _FILTER))
            low, zero = self.real("masked", given), self.real("kept", 0)
            addend = values.write("Where", (there, zero, low), f"{own}/mask addend")
            scores = values.write("Add", (scores, addend), f"{own}/masked scores")
        if self.node.attributes.get("unidirectional", 0):
            places = self.places(x)
            rows = self.reshaped(places, (-1, 1), "rows")
            later = values.write("Less", (rows, places), f"{own}/later")
            scores = values.write(
                "Where", (later, self.real("least", _LEAST), scores), f"{own}/earlier scores"
            )
        return scores

    def places(self, x: str) -> str:
        """The numbers of places, 0, 1, ... along the second axis of `x`."""
        values, own = self.values, self.node.outputs[0]
        name = f"{own}/places"
        if name not in values.droppable:
            sizes = values.write("Shape", (x,), f"{own}/sizes")
            count = values.write("Gather", (sizes, self.whole("axis of places", 1)), f"{own}/count", axis=0)
            values.write("Range", (self.whole("first", 0), count, self.whole("step", 1)), name)
        return name

    def reshaped(self, x: str, shape: tuple[int, ...], name: str) -> str:
        own = self.node.outputs[0]
        sizes = self.values.add(f"{own}/shape of {name}", np.array(shape))
        return self.values.write("Reshape", (x, sizes), f"{own}/{name}")

    def whole(self, name: str, number: int) -> str:
        return self.values.add(f"{self.node.outputs[0]}/{name}", np.array(number))

    def real(self, name: str, number: float) -> str:
        return self.values.add(f"{self.node.outputs[0]}/{name}", np.array(number, np.float32))
