"""Gradients of gradients, operator by operator: the squared norm of a gradient against finite differences of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import trainers
from authored import differences
from gradients import is_smooth, wanted_inputs

from minbuild.authoring.autodiff.backward import differentiate
from minbuild.errors import Unsupported
from minbuild.ir import Checkpoint, ElementType, Graph, Node, Parameter, TensorType, TrainingArtifacts
from minbuild.ops import registry
from minbuild.ops.core.definition import Op, TestCase
from minbuild.reference.interpreter import ReferenceTrainer

REGISTRY, OPSET = registry(), 17
EXACT = 2e-5  # of what finite differences say
LARGEST = 200  # numbers in an input
CASES = 4
# Their gradients are single kernels with no rule yet: using them twice is refused by name.
ONCE = frozenset({
    "DeformConv", "Det", "GRU", "GRUTraining", "GridSample", "LSTM", "LSTMTraining", "MaxRoiPool",
    "RNN", "RoiAlign",
})  # fmt: skip


def _applications(op: Op) -> Iterator[TestCase]:
    """A few small cases at which the operator is differentiable."""
    assert op.cases is not None
    for case in op.cases(np.random.default_rng(2024)):
        sizes = [x.size for x in case.inputs if x is not None]
        if 0 not in case.absent and max(sizes, default=0) <= LARGEST and is_smooth(op, case):
            yield case


def _is_twice(op: Op) -> bool:
    draws = op.generator is not None or op.mutates
    return op.gradient is not None and op.cases is not None and op.reference is not None and not draws


OPS = tuple(op for _, op in sorted(REGISTRY.ops.items()) if _is_twice(op) and any(_applications(op)))


def _node(op_type: str, inputs: tuple[str, ...], output: str, **attributes: object) -> Node:
    return Node(op_type, "", OPSET, output, inputs, (output,), attributes)


def _forward(op: Op, case: TestCase) -> tuple[Graph, tuple[str, ...]]:
    """The mean sine of the first output, and the values that gradients are taken by."""
    names = tuple("" if x is None else f"x{i}" for i, x in enumerate(case.inputs))
    outputs = tuple("" if i in case.absent else f"y{i}" for i in range(case.outputs))
    applied = Node(op.name, op.domain, max(op.since), "applied", names, outputs, case.attributes)
    nodes = (applied, _node("Sin", outputs[:1], "s"), _node("ReduceMean", ("s",), "l", keepdims=0))
    arrays = {n: x for n, x in zip(names, case.inputs, strict=True) if x is not None}
    return Graph("model.onnx", nodes, {}, {}, ("l",), arrays), tuple(
        names[i] for i in wanted_inputs(op, case)
    )


def _twice(graph: Graph, wanted: tuple[str, ...]) -> ReferenceTrainer | None:
    """Trains on the squared norm of the gradients; None where they do not depend on what is wanted."""
    first = differentiate(graph, "l", wanted, REGISTRY, OPSET)
    squares = [_node("Mul", (g, g), f"{n}_square") for n, g in first.gradients.items()]
    sums = [_node("ReduceSum", s.outputs, f"{s.name}s", keepdims=0) for s in squares]
    norm = _node("Sum", tuple(s.name for s in sums), "norm")
    if not sums:
        return None
    arrays = {**graph.initializers, **first.initializers}
    whole = Graph("training_model.onnx", (*first.nodes, *squares, *sums, norm), {}, {}, ("norm",), arrays)
    second = differentiate(whole, "norm", wanted, REGISTRY, OPSET)
    nodes, inputs = list(second.nodes), {}
    for name, gradient in second.gradients.items():
        buffer = f"{name}_grad.accumulation.buffer"
        inputs |= dict.fromkeys((name, buffer), TensorType(ElementType.DOUBLE, arrays[name].shape))
        nodes.append(
            Node(
                "InPlaceAccumulatorV2", "com.microsoft", 1, buffer, (buffer, gradient), (f"{name}_done",), {}
            )
        )
    constants = {n: a for n, a in {**arrays, **second.initializers}.items() if n not in second.gradients}
    training = Graph("training_model.onnx", tuple(nodes), inputs, {}, ("norm",), constants)
    parameters = [
        Parameter(n, ElementType.DOUBLE, arrays[n].shape, True, arrays[n]) for n in second.gradients
    ]
    return ReferenceTrainer(TrainingArtifacts(training, None, None, Checkpoint(tuple(parameters)), {}))


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_the_gradient_of_the_gradient_is_its_derivative(op):
    for case in list(_applications(op))[:CASES]:
        graph, wanted = _forward(op, case)
        try:
            made = _twice(graph, wanted)
        except Unsupported as error:
            assert op.name in ONCE, str(error)
            continue
        if made is not None and made.trained:
            worst = max(differences(made).values())
            assert worst < EXACT, f"{case.name}: {worst:.1e}"


@pytest.mark.parametrize(
    "name", ["MaxPool", "AveragePool", "LayerNormalization", "SoftmaxCrossEntropyLoss", "Mish", "PRelu"]
)
def test_the_device_computes_it(name, tmp_path):
    op = REGISTRY.ops[f":{name}"]
    graph, wanted = _forward(op, next(c for c in _applications(op) if c.inputs[0].size > 10))
    exact = _twice(graph, wanted)
    exact.train_step()
    plan = trainers.plan_of(exact.artifacts, REGISTRY)
    session = trainers.session_of(
        trainers.library_of(trainers.contents_of([plan]), REGISTRY, tmp_path), plan, {}
    )
    for parameter in exact.trained:
        session.parameter(parameter)[...] = exact.parameters[parameter]
    session.run(trainers.TRAIN, [])
    for parameter, gradient in exact.gradients.items():
        np.testing.assert_allclose(session.gradient(parameter), gradient, atol=1e-9 * np.abs(gradient).max())
