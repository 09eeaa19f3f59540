"""First states that are zeros: recurrent layers do without them, with the same numbers and fewer bytes."""

from __future__ import annotations

import numpy as np
import pytest

from minbuild.ir import Checkpoint, ElementType, Graph, Node, Procedure, TensorType, TrainingArtifacts
from minbuild.ir.dims import symbol
from minbuild.ops import registry
from minbuild.passes.lowering.lower import lower
from minbuild.passes.manager import optimize

REGISTRY = registry()
HIDDEN, FEATURES = 3, 2
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def program(op: str, batch: object, value: float, constant: bool = False) -> Procedure:
    """A recurrent layer whose first states are filled with `value`, by a call or as a constant."""
    random = np.random.default_rng(3)
    count = GATES[op] * HIDDEN
    constants = {
        "w": random.standard_normal((1, count, FEATURES)).astype(np.float32),
        "r": random.standard_normal((1, count, HIDDEN)).astype(np.float32),
        "ends": np.array([1], np.int64),
        "start": np.array([HIDDEN], np.int64),
        "filled": np.full((1, 5, HIDDEN), value, np.float32),
    }

    def node(name: str, inputs: tuple[str, ...], *outputs: str, **attributes: object) -> Node:
        return Node(name, "", 17, outputs[0], inputs, outputs, attributes)

    state = "filled" if constant else "state"
    nodes = [
        node("Shape", ("x",), "rows", start=1, end=2),
        node("Concat", ("ends", "rows", "start"), "shape", axis=0),
        node("ConstantOfShape", ("shape",), "state", value=np.array([value], np.float32)),
        node(
            op, ("x", "w", "r", "", "", state, *((state,) if op == "LSTM" else ())), "y", hidden_size=HIDDEN
        ),
    ]
    inputs = {"x": TensorType(ElementType.FLOAT, (4, batch, FEATURES))}  # type: ignore[arg-type]
    graph = Graph("training_model.onnx", tuple(nodes), inputs, {}, ("y",), constants)
    lowered = lower(TrainingArtifacts(graph, None, None, Checkpoint(()), {}), REGISTRY, {})
    return optimize(lowered, REGISTRY).procedures[0]


def states(found: Procedure) -> tuple[str, ...]:
    (call,) = (each for each in found.calls if each.op.lstrip(":") in GATES)
    return call.inputs[5:7]


@pytest.mark.parametrize("op", GATES)
def test_zeros_are_left_out(op: str) -> None:
    for found in (program(op, symbol("batch"), 0.0), program(op, 5, 0.0), program(op, 5, 0.0, constant=True)):
        assert not any(states(found))
        assert [call.op for call in found.calls] == [f":{op}"], "nothing fills what nobody reads"


@pytest.mark.parametrize("value", [1.0, -0.0])
def test_other_numbers_stay(value: float) -> None:
    free, fixed = program("LSTM", symbol("batch"), value), program("LSTM", 5, value)
    assert all(states(free)) and all(states(fixed))
    assert ":ConstantOfShape" in [call.op for call in free.calls]
