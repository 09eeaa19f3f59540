"""An operator's gradient rule as a graph that a library can run, and what it must give: shared by tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import trainers

from minbuild.ir import Checkpoint, Graph, Node, TensorType, TrainingArtifacts
from minbuild.ops.core.definition import Op, OpContext, TestCase
from minbuild.ops.core.graph_builder import GradientBuilder, named

STEP = 1e-4  # of central differences of fourth order: their error is near 1e-11 of the function's scale
DIRECTIONS = 3


def wanted_inputs(op: Op, case: TestCase) -> tuple[int, ...]:
    """Inputs with real numbers that are fed: what gradients are checked for."""
    return tuple(
        i
        for i, x in enumerate(case.inputs)
        if x is not None and x.dtype.kind == "f" and i not in case.constant and x.size
    )


def outputs_of(op: Op, case: TestCase, inputs: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """The operator's outputs by its reference, those it leaves out included."""
    assert op.reference is not None
    answer = op.reference(case.attributes, *inputs)
    return [np.asarray(y) for y in (answer if isinstance(answer, tuple) else (answer,))]


def is_smooth(op: Op, case: TestCase) -> bool:
    """Whether finite differences can say anything about the case."""
    arrays = [x for x in case.inputs if x is not None and x.dtype.kind == "f"]
    if not case.smooth or not wanted_inputs(op, case) or not all(np.isfinite(x).all() for x in arrays):
        return False
    outputs = outputs_of(op, case, case.inputs)
    return all(y.size and np.isfinite(y).all() for y in outputs if y.dtype.kind == "f")


def backward_graph(op: Op, case: TestCase, random: np.random.Generator) -> tuple[trainers.OneNode, Gradients]:
    """A graph from the inputs and the outputs' gradients to the inputs' gradients, in double."""
    outputs = outputs_of(op, case, case.inputs)[: case.outputs]
    flows = [
        i
        for i, y in enumerate(outputs)
        if y.dtype.kind == "f" and i not in case.absent and i in op.differentiable
    ]
    x = tuple("" if a is None else f"x{i}" for i, a in enumerate(case.inputs))
    y = tuple("" if i in case.absent else f"y{i}" for i in range(case.outputs))
    dy = tuple(f"dy{i}" if i in flows else "" for i in range(case.outputs))
    requires_grad = wanted_inputs(op, case)
    ctx = OpContext(
        case.attributes,
        tuple(None if a is None else TensorType(trainers.element_of(a), a.shape) for a in case.inputs),
        tuple(a if i in case.constant else None for i, a in enumerate(case.inputs)),
        max(op.since),
    )
    backward = GradientBuilder(ctx, x, y, dy, requires_grad, "backward")
    assert op.gradient is not None
    results = backward.write(op.gradient)
    found = {i: f"dx{i}" for i in requires_grad if results[i]}
    names = [found.get(i, "") for i in range(len(x))]
    arrays = {n: a for n, a in zip(x, case.inputs, strict=True) if a is not None}
    arrays |= {dy[i]: random.standard_normal(outputs[i].shape) for i in flows}
    graph = Graph(
        "training_model.onnx",
        (_forward(op, case, backward), *named(backward, results, names)),
        {n: TensorType(trainers.element_of(a), a.shape) for n, a in arrays.items()},
        {},
        tuple(found.values()),
        {},
    )
    constants = {n: a for n, a in arrays.items() if a.size == 0 or _index(n) in case.constant}
    inputs = {n: t for n, t in graph.inputs.items() if n not in constants}
    graph = replace(graph, inputs=inputs, initializers=constants)
    feeds = tuple(arrays[n] for n in inputs)
    one = trainers.OneNode(
        TrainingArtifacts(graph, None, None, Checkpoint((trainers.TRAINED,)), {}), feeds, {}
    )
    return one, Gradients(op, case, {i: arrays[dy[i]] for i in flows}, found)


def _index(name: str) -> int:
    return int(name[1:]) if name[1:].isdigit() else -1


def _forward(op: Op, case: TestCase, backward: GradientBuilder) -> Node:
    """The forward application as the gradient wants it."""
    domain, name = backward.forward or (op.domain, op.name)
    inputs, outputs = ([value.name for value in values] for values in (backward.x, backward.y))
    for i, saved in backward.saved.items():
        outputs += [""] * (i + 1 - len(outputs))
        outputs[i] = saved
    version = 1 if domain else max(op.since)
    return Node(name, domain, version, "forward", tuple(inputs), tuple(outputs), dict(case.attributes))


class Gradients:
    """What the gradients of one case must be, by finite differences along random directions."""

    def __init__(self, op: Op, case: TestCase, dy: dict[int, np.ndarray], found: dict[int, str]) -> None:
        self.op, self.case, self.dy, self.found = op, case, dy, found

    def problems(
        self, run: dict[str, np.ndarray], random: np.random.Generator, tolerance: float
    ) -> list[str]:
        """What is wrong with the gradients that a run gave, by output name."""
        wrong = []
        for i in wanted_inputs(self.op, self.case):
            x = self.case.inputs[i]
            assert x is not None
            gradient = run[self.found[i]] if i in self.found else np.zeros_like(x)
            if gradient.shape != x.shape:
                wrong.append(f"{self.case.name}, input {i}: shape {gradient.shape}, expected {x.shape}")
                continue
            for _ in range(DIRECTIONS):
                direction = random.standard_normal(x.shape)
                wanted, scale = self.derivative(i, direction)
                error = abs(float((gradient * direction).sum()) - wanted)
                if not error <= tolerance * scale:
                    wrong.append(f"{self.case.name}, input {i}: {error / scale:.2e} of {scale:.3g} off")
                    break
        return wrong

    def derivative(self, i: int, direction: np.ndarray) -> tuple[float, float]:
        """Of sum(dy * y) along `direction` in input `i`, and the size of what is summed up."""
        ahead = {s: self.value(i, s * STEP * direction) for s in (1, -1, 2, -2)}
        wanted = (8 * (ahead[1] - ahead[-1]) - (ahead[2] - ahead[-2])) / (12 * STEP)
        return wanted, max(1.0, abs(wanted), abs(ahead[1]))

    def value(self, i: int, change: np.ndarray) -> float:
        inputs = list(self.case.inputs)
        x = inputs[i]
        assert x is not None
        inputs[i] = x + change
        outputs = outputs_of(self.op, self.case, inputs)
        return sum(float((outputs[k] * dy).sum()) for k, dy in self.dy.items())
