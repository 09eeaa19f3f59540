"""DynamicQuantizeLSTM as a Scan over float products of a DynamicFakeQuant.

ONNX Runtime's `quantize_dynamic` writes it for an LSTM. Weights are quantised, [directions, inputs, 4 * hidden]; the
input is quantised as a whole, the hidden states of a batch in every time step. Gates are in the order input, output,
forget, cell.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minbuild.authoring.integer_operators.values import Quantization, QuantizedValues
from minbuild.frontend.onnx.quantization_pairs import DYNAMIC_FAKE_QUANT, MICROSOFT, MINBUILD
from minbuild.ir import ElementType, Graph, Node, TensorType

_SCAN_SINCE = 9  # the first opset whose Scan has no batch
_SPLIT_READS_SIZES = 13  # the first opset whose Split reads them
_UNSQUEEZE_READS_AXES = 13
# Inputs; from _SCALES on scale and zero point of W, then of R.
_X, _W, _R, _BIAS, _LENGTHS, _HIDDEN, _CELLS, _PEEPHOLES, _SCALES = range(9)
_DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
_USUAL = ["Sigmoid", "Tanh", "Tanh"]
_STATE = TensorType(ElementType.FLOAT, None)


def write_lstm(node: Node, values: QuantizedValues) -> bool:
    """Writes the float form of a node into `values`; False, and nothing, for a node that has none: one with lengths of
    sequences, peepholes, a limit or other activations, or whose weights are computed."""
    if node.title != f"{MICROSOFT}:DynamicQuantizeLSTM" or values.opset < _SCAN_SINCE:
        return False
    lstm = _Lstm(node, values)
    if not lstm.is_usual():
        return False
    lstm.write()
    return True


@dataclass
class _Lstm:
    node: Node
    values: QuantizedValues

    def input(self, i: int) -> str:
        return self.node.inputs[i] if i < len(self.node.inputs) else ""

    @property
    def direction(self) -> str:
        return str(self.node.attributes.get("direction", "forward"))

    @property
    def prefix(self) -> str:
        return next(filter(None, self.node.outputs))

    def is_usual(self) -> bool:
        """True if there is a float form."""
        attributes, count = self.node.attributes, _DIRECTIONS.get(self.direction, 0)
        activations = [str(a) for a in attributes.get("activations", _USUAL * count)]
        if self.input(_LENGTHS) or self.input(_PEEPHOLES) or activations != _USUAL * count:
            return False
        if any(attributes.get(n) for n in ("clip", "input_forget", "layout")):
            return False
        arrays = [self.values.array(self.input(i)) for i in (_W, _R, *range(_SCALES, _SCALES + 4))]
        if any(a is None for a in arrays):
            return False
        w, r, *numbers = (np.asarray(a) for a in arrays)
        if w.ndim != 3 or r.ndim != 3 or not len(w) == len(r) == count:
            return False
        return all(a.size in (1, count, count * w.shape[-1]) for a in numbers)

    def write(self) -> None:
        """Writes the nodes of all directions, and those that put their results together."""
        own, values = self.prefix, self.values
        x = values.write(DYNAMIC_FAKE_QUANT, (self.input(_X),), f"{own}/fake_quant", MINBUILD)
        directions = ["reverse"] if self.direction == "reverse" else ["forward", "reverse"]
        results = [self.one(x, i, directions[i]) for i in range(_DIRECTIONS[self.direction])]
        for i, output in enumerate(self.node.outputs):
            if output:
                axis = 1 if i == 0 else 0  # all states: [steps, directions, batch, hidden]
                parts = [self.unsqueezed(result[i], axis) for result in results]
                values.write("Concat", tuple(parts), output, axis=axis)

    def one(self, x: str, i: int, direction: str) -> tuple[str, str, str]:
        """The hidden states of all steps of direction `i`, the last ones, and the last cells."""
        values, own = self.values, f"{self.prefix}/{i}"
        sums = values.write("MatMul", (x, values.dequantized(*self.weights(_W, i))), f"{own}/products")
        if self.input(_BIAS):
            for k in (0, 1):  # of inputs, and of hidden states
                sums = values.write("Add", (sums, self.bias(i, k)), f"{own}/sums {k}")
        before = [self.state(which, i, x) for which in (_HIDDEN, _CELLS)]
        body = self.step(own, *self.weights(_R, i))
        reverse = int(direction == "reverse")
        results = f"{own}/states", f"{own}/last hidden", f"{own}/last cells"
        values.nodes.append(
            Node(
                "Scan",
                "",
                values.opset,
                name=f"{self.node.name or own}/{i}",
                inputs=(*before, sums),
                outputs=(*results[1:], results[0]),
                attributes={
                    "body": body,
                    "num_scan_inputs": 1,
                    "scan_input_directions": [reverse],
                    "scan_output_directions": [reverse],
                },
            )
        )
        values.droppable |= set(results)
        return results

    def weights(self, which: int, i: int) -> tuple[str, Quantization]:
        """W or R in direction `i`, [inputs, 4 * hidden], and how it is quantised."""
        values, name = self.values, self.input(which)
        scale, point = (self.input(_SCALES + 2 * (which - _W) + k) for k in (0, 1))
        arrays = {n: np.asarray(values.array(n)) for n in (name, scale, point)}
        count = len(arrays[name])
        for n in (scale, point):
            several = arrays[n].size > 1
            arrays[n] = arrays[n].reshape(count, -1)[i] if several else arrays[n].reshape(-1)
            arrays[n] = arrays[n].reshape(() if arrays[n].size == 1 else -1)
        if arrays[scale].size != arrays[point].size:
            shape = np.broadcast_shapes(arrays[scale].shape, arrays[point].shape)
            arrays |= {n: np.broadcast_to(arrays[n], shape).copy() for n in (scale, point)}
        named = (
            (name, arrays[name][i]),
            (f"{name}/{scale}", arrays[scale]),
            (f"{name}/{point}", arrays[point]),
        )
        codes, own, zero = (values.add(f"{n}/{i}", array) for n, array in named)
        return codes, Quantization(own, zero, 1)

    def bias(self, i: int, k: int) -> str:
        """Bias `k` of direction `i`; the whole one, [directions, 8 * hidden], is a parameter."""
        values, own = self.values, self.prefix
        shape = values.add(f"{own}/bias_shape", np.array([2 * _DIRECTIONS[self.direction], -1]))
        rows = f"{own}/biases"
        if rows not in values.droppable:
            values.write("Reshape", (self.input(_BIAS), shape), rows)
        return self.row(rows, 2 * i + k)

    def row(self, rows: str, i: int) -> str:
        """Element `i` along axis 0; hidden states and cells may begin as the same."""
        own, name = self.prefix, f"{self.prefix}/{rows}/{i}"
        if name in self.values.droppable:
            return name
        number = self.values.add(f"{own}/number {i}", np.array(i))
        return self.values.write("Gather", (rows, number), name, axis=0)

    def state(self, which: int, i: int, x: str) -> str:
        """States of direction `i` before the first step, [batch, hidden]: zeros where none are given."""
        if self.input(which):
            return self.row(self.input(which), i)
        values, own = self.values, self.prefix
        zeros = f"{own}/zeros"
        if zeros not in values.droppable:
            hidden = np.asarray(values.array(self.input(_R))).shape[1]
            sizes = values.write("Shape", (x,), f"{own}/sizes")
            one = values.add(f"{own}/axis of samples", np.array([1]))
            batch = values.write("Gather", (sizes, one), f"{own}/samples", axis=0)
            width = values.add(f"{own}/hidden", np.array([hidden]))
            shape = values.write("Concat", (batch, width), f"{own}/state_shape", axis=0)
            values.write("ConstantOfShape", (shape,), zeros)
        return zeros

    def unsqueezed(self, x: str, axis: int) -> str:
        values, output = self.values, f"{x}/of one direction"
        if values.opset < _UNSQUEEZE_READS_AXES:
            return values.write("Unsqueeze", (x,), output, axes=[axis])
        axes = values.add(f"{self.prefix}/axis {axis}", np.array([axis]))
        return values.write("Unsqueeze", (x, axes), output)

    def step(self, own: str, codes: str, by: Quantization) -> Graph:
        """A time step: from hidden states, cells and products of inputs to both states, the former twice. R, `codes`
        quantised `by` this, is dequantised inside, where a product reads it as it is stored."""
        width = np.asarray(self.values.array(self.input(_R))).shape[1]
        step = _Step(f"{own}/step", self.values.opset)
        hidden, cells, sums = (step.name(n) for n in ("hidden", "cells", "inputs"))
        domain, along = self.values.form_of(by)
        weights = step.name("weights")
        step.add("DequantizeLinear", (codes, *by[:2]), (weights,), domain=domain, **along)
        quantised = step.write(DYNAMIC_FAKE_QUANT, (hidden,), "fake_quant", domain=MINBUILD)
        products = step.write("MatMul", (quantised, weights), "products")
        gates = step.write("Add", (sums, products), "gates")
        if self.values.opset < _SPLIT_READS_SIZES:
            parts = step.split((gates,), axis=-1, split=[width] * 4)
        else:
            sizes = self.values.add(f"{own}/widths", np.array([width] * 4))
            parts = step.split((gates, sizes), axis=-1)
        enter, leave, keep = (step.write("Sigmoid", (p,), f"{i} open") for i, p in enumerate(parts[:3]))
        new = step.write("Mul", (enter, step.write("Tanh", parts[3:], "candidate")), "new")
        cell = step.write("Add", (step.write("Mul", (keep, cells), "kept"), new), "cells behind it")
        result = step.write("Mul", (leave, step.write("Tanh", (cell,), "squashed")), "hidden behind it")
        stacked = step.write("Identity", (result,), "states")
        return Graph(
            source=self.values.graph.source,
            nodes=tuple(step.nodes),
            inputs=dict.fromkeys((hidden, cells, sums), _STATE),
            sequences={},
            outputs=(result, cell, stacked),
            initializers={},
        )


@dataclass
class _Step:
    """The nodes of a time step being written; names of its values begin with `prefix`."""

    prefix: str
    opset: int
    nodes: list[Node] = field(default_factory=list)

    def name(self, what: str) -> str:
        return f"{self.prefix}/{what}"

    def write(self, kind: str, inputs: tuple[str, ...], output: str, domain: str = "") -> str:
        """A node with one result."""
        self.add(kind, inputs, (self.name(output),), domain=domain)
        return self.name(output)

    def split(self, inputs: tuple[str, ...], **attributes: Any) -> tuple[str, ...]:
        """The four gates."""
        parts = tuple(self.name(f"gate {n}") for n in ("input", "output", "forget", "cell"))
        self.add("Split", inputs, parts, **attributes)
        return parts

    def add(
        self,
        kind: str,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        domain: str = "",
        **attributes: Any,
    ) -> None:
        self.nodes.append(
            Node(
                kind,
                domain,
                1 if domain else self.opset,
                name=f"{outputs[0]}/{kind}",
                inputs=inputs,
                outputs=outputs,
                attributes=attributes,
            )
        )
