"""DynamicQuantizeLSTM as a Scan over float products of a DynamicFakeQuant.

ONNX Runtime's `quantize_dynamic` writes it for an LSTM. Weights are quantised, [directions, inputs, 4 * hidden]; the
input is quantised as a whole, the hidden states of a batch in every time step. Gates are in the order input, output,
forget, cell.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minbuild.authoring.integer_operators.lstm_step import Step
from minbuild.authoring.integer_operators.values import Quantization, QuantizedValues
from minbuild.frontend.onnx.quantization_pairs import DYNAMIC_FAKE_QUANT, MICROSOFT, MINBUILD
from minbuild.ir import ElementType, Graph, Node

_SCAN_SINCE = 9  # the first opset whose Scan has no batch
_RANGE_SINCE = 11
_SPLIT_READS_SIZES = 13  # the first opset whose Split reads them
_UNSQUEEZE_READS_AXES = 13
# Inputs; from _SCALES on scale and zero point of W, then of R.
_X, _W, _R, _BIAS, _LENGTHS, _HIDDEN, _CELLS, _PEEPHOLES, _SCALES = range(9)
_DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
_USUAL = ["Sigmoid", "Tanh", "Tanh"]  # of gates, of candidates and of cells
_ACTIVATIONS = ("Elu", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh")


def write_lstm(node: Node, values: QuantizedValues) -> bool:
    """Writes the float form of a node into `values`; False, and nothing, for a node that has none: one whose weights
    are computed, in the other layout, or with activations that have parameters of their own."""
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
    def activations(self) -> list[str]:
        """Three operators for each direction."""
        usual = _USUAL * _DIRECTIONS.get(self.direction, 0)
        named = {a.lower(): a for a in _ACTIVATIONS}
        return [named.get(str(a).lower(), str(a)) for a in self.node.attributes.get("activations", usual)]

    @property
    def prefix(self) -> str:
        return next(filter(None, self.node.outputs))

    def is_usual(self) -> bool:
        """True if there is a float form."""
        attributes, count = self.node.attributes, _DIRECTIONS.get(self.direction, 0)
        activations = self.activations
        if len(activations) != 3 * count or any(a not in _ACTIVATIONS for a in activations):
            return False
        if any(attributes.get(n) for n in ("activation_alpha", "activation_beta", "layout")):
            return False
        if self.input(_LENGTHS) and self.values.opset < _RANGE_SINCE:
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
        lengths, reverse = self.input(_LENGTHS), int(direction == "reverse")
        results = f"{own}/last hidden", f"{own}/last cells", f"{own}/states"
        scans, made = [sums], list(results)
        if lengths:
            scans = [self.turned(sums, f"{own}/turned sums") if reverse else sums, self.running(x)]
            before.append(before[0])
            made = [
                f"{own}/last read",
                results[1],
                results[0],
                f"{results[2]} by step" if reverse else results[2],
            ]
        backward = int(reverse and not lengths)
        values.nodes.append(
            Node(
                "Scan",
                "",
                values.opset,
                name=f"{self.node.name or own}/{i}",
                inputs=(*before, *scans),
                outputs=tuple(made),
                attributes={
                    "body": self.step(own, i),
                    "num_scan_inputs": len(scans),
                    "scan_input_directions": [backward] * len(scans),
                    "scan_output_directions": [backward],
                },
            )
        )
        values.droppable |= {*made, *results}
        if lengths and reverse:
            self.turned(made[-1], results[2])
        return results[2], *results[:2]

    def turned(self, x: str, output: str) -> str:
        """`x` [steps, batch, ...] with each sequence, as long as it is, from its end to its start."""
        return self.values.write("ReverseSequence", (x, self.lengths()), output, time_axis=0, batch_axis=1)

    def lengths(self) -> str:
        """The lengths of sequences, in int64."""
        name = f"{self.prefix}/lengths"
        if name not in self.values.droppable:
            self.values.write("Cast", (self.input(_LENGTHS),), name, to=int(ElementType.INT64))
        return name

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

    def running(self, x: str) -> str:
        """For each step and sample of `x`, [steps, batch, 1], a truth value: false behind the end of a sequence."""
        values, own = self.values, self.prefix
        name = f"{own}/running"
        if name not in values.droppable:
            row, column = (
                values.add(f"{own}/{n}", np.array(a))
                for n, a in (("row", (1, -1, 1)), ("column", (-1, 1, 1)))
            )
            ends = values.write("Reshape", (self.lengths(), row), f"{own}/ends")
            sizes = values.write("Shape", (x,), f"{own}/sizes of steps")
            first, one = (values.add(f"{own}/whole {n}", np.array(n)) for n in (0, 1))
            count = values.write("Gather", (sizes, first), f"{own}/steps", axis=0)
            steps = values.write("Range", (first, count, one), f"{own}/step numbers")
            steps = values.write("Reshape", (steps, column), f"{own}/step numbers by row")
            values.write("Less", (steps, ends), name)
        return name

    def peepholes(self, own: str, i: int) -> tuple[str, ...]:
        """Weights of the cells for the gates input, output and forget of direction `i`; none where there are none."""
        if not self.input(_PEEPHOLES):
            return ()
        values = self.values
        shape = values.add(f"{own}/peephole_shape", np.array((3, -1)))
        rows = values.write("Reshape", (self.row(self.input(_PEEPHOLES), i), shape), f"{own}/peepholes")
        return tuple(self.row(rows, k) for k in range(3))

    def step(self, own: str, i: int) -> Graph:
        """A time step of direction `i`: from hidden states, cells and products of inputs, and what samples are running,
        to both states, the former twice. R is dequantised inside, where a product reads it as it is stored."""
        codes, by = self.weights(_R, i)
        width = np.asarray(self.values.array(self.input(_R))).shape[1]
        step = Step(f"{own}/step", self.values.opset)
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
        result, cell = self.states(step, parts, cells, i)
        stacked = step.name("states")
        if not self.input(_LENGTHS):
            step.add("Identity", (result,), (stacked,))
            return step.graph((hidden, cells, sums), (result, cell, stacked), self.values.graph.source)
        # Hidden states behind the end of a sequence are zeros for the next step, which quantises all samples by one
        # scale; the last ones of each sequence are a state of their own.
        last, running = step.name("last"), step.name("running")
        zero = self.values.add(f"{self.prefix}/nothing", np.zeros((), np.float32))
        step.add("Where", (running, result, zero), (stacked,))
        read = step.write("Identity", (stacked,), "states for the next step")
        cell = step.write("Where", (running, cell, cells), "cells or those before")
        result = step.write("Where", (running, result, last), "hidden or those before")
        inputs = hidden, cells, last, sums, running
        return step.graph(inputs, (read, cell, result, stacked), self.values.graph.source)

    def states(self, step: Step, parts: tuple[str, ...], cells: str, i: int) -> tuple[str, str]:
        """Hidden states and cells behind a step from the sums of its four gates."""
        gate, candidate, squash = self.activations[3 * i : 3 * i + 3]
        peepholes = self.peepholes(f"{self.prefix}/{i}", i)

        def opened(k: int, name: str, read: str) -> str:
            """The gate `k`, which sees the cells `read` through its peephole."""
            x = parts[k]
            if peepholes:
                x = step.write(
                    "Add", (x, step.write("Mul", (peepholes[k], read), f"{name} sight")), f"{name} sum"
                )
            return step.write(gate, (self.limited(step, x, name),), f"{name} open")

        enter = opened(0, "input", cells)
        if self.node.attributes.get("input_forget", 0):
            one = self.values.add(f"{self.prefix}/one", np.ones((), np.float32))
            keep = step.write("Sub", (one, enter), "forget open")
        else:
            keep = opened(2, "forget", cells)
        proposed = step.write(candidate, (self.limited(step, parts[3], "cell"),), "candidate")
        new = step.write("Mul", (enter, proposed), "new")
        cell = step.write("Add", (step.write("Mul", (keep, cells), "kept"), new), "cells behind it")
        leave = opened(1, "output", cell)
        return step.write("Mul", (leave, step.write(squash, (cell,), "squashed")), "hidden behind it"), cell

    def limited(self, step: Step, x: str, name: str) -> str:
        """The sum `x` of a gate within the limit of the layer."""
        limit = float(self.node.attributes.get("clip", 0.0))
        if not limit:
            return x
        ends = (("least", -limit), ("most", limit))
        low, high = (self.values.add(f"{self.prefix}/{n}", np.array(v, np.float32)) for n, v in ends)
        x = step.write("Max", (x, low), f"{name} at least")
        return step.write("Min", (x, high), f"{name} within")
