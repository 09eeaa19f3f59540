"""Momentum, Adagrad and Adam of ai.onnx.preview.training on the device: torch's numbers in double, one kernel for each
variable, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trainers
from onnx import NodeProto
from training_models import Info, Trainable, check_steps, device, graph, node, single

from minbuild.errors import Unsupported
from minbuild.ir import TrainingArtifacts
from minbuild.ops import registry
from minbuild.training.library import TRAIN

START = [1.0, -0.5, 2.0]
STEPS = 20
X = np.zeros(1, np.float32)

# Variables after twenty steps of torch 2.13's optimizers in float64 on c w^2 / 2 - d w, with c and d as in `descent`:
# operator, whether the first step is number 0, its attributes, variables.
RECORDED: dict[str, tuple[str, int, dict[str, Any], list[float]]] = {
    "SGD with momentum": (
        "Momentum",
        0,
        {"alpha": 0.75, "beta": 1.0, "norm_coefficient": 0.25, "mode": "standard"},
        [1.3556319580688119, -1.5860537771064853, 1.3499216316146396],
    ),
    "SGD with Nesterov's momentum": (
        "Momentum",
        1,
        {"alpha": 0.75, "beta": 1.0, "norm_coefficient": 0.0, "mode": "nesterov"},
        [1.9826207620822451, -2.038041774999342, 1.5070544991697568],
    ),
    "Adagrad": (
        "Adagrad",
        0,
        {"decay_factor": 0.125, "norm_coefficient": 0.25, "epsilon": 2.0**-20},
        [1.233806744379741, -0.7772523245596795, 1.7335392467887174],
    ),
    "Adam": (
        "Adam",
        1,
        {"alpha": 0.75, "beta": 0.875, "norm_coefficient": 0.25, "epsilon": 0.0},
        [1.3246256678716515, -1.544844024714345, 1.28776761459186],
    ),
    "Adam by default": (
        "Adam",
        1,
        {"epsilon": 0.0},
        [2.047067276880972, -1.6460139938640652, 1.37879137223528],
    ),
}


def descent(op: str, first: int, attributes: dict[str, Any], dtype: type[np.floating]) -> Trainable:
    """`op` on three numbers with the gradient c w - d, at steps counted from `first`."""
    moments = ("m", "v")[: 2 if op == "Adam" else 1]
    state: dict[str, Any] = {n: np.zeros(3, dtype) for n in moments}
    state |= {"c": np.array([0.5, 1, 2], dtype), "d": np.array([1, -2, 3], dtype)}
    state |= {"rate": single(0.0625), "step": np.array(first), "one": np.array(1)}
    made = " ".join(f"{n}1" for n in ("w", *moments))
    nodes = [
        node("Mul", "c w", "cw"),
        node("Sub", "cw d", "g"),
        node(op, f"rate step w g {' '.join(moments)}", made, **attributes),
        node("Add", "step one", "step1"),
    ]
    inference = graph([node("Identity", "x", "y")], {"x": [1]}, "y", {"w": np.array(START, dtype)})
    updates = " ".join(f"{n}={n}1" for n in ("w", *moments, "step"))
    return Trainable(inference, [Info(graph(nodes, {}, f"{made} step1", state), updates)])


@pytest.mark.parametrize(
    ("dtype", "close"), [(np.float64, 2e-15), (np.float32, 2e-6)], ids=["double", "float"]
)
@pytest.mark.parametrize("name", RECORDED)
def test_twenty_steps_are_those_of_torch(name, dtype, close, tmp_path):
    op, first, attributes, wanted = RECORDED[name]
    session = device(descent(op, first, attributes, dtype).artifacts(tmp_path), tmp_path)
    for _ in range(STEPS):
        session.run(TRAIN, (X,))
    np.testing.assert_allclose(session.parameter("w"), wanted, rtol=close * STEPS)


def updating(
    nodes: list[NodeProto], state: dict[str, np.ndarray], updates: str, folder: Path
) -> TrainingArtifacts:
    """A step of these nodes."""
    inference = graph([node("Identity", "x", "y")], {"x": [1]}, "y")
    made = " ".join(pair.split("=")[1] for pair in updates.split())
    return Trainable(inference, [Info(graph(nodes, {}, made, state), updates)]).artifacts(folder)


def test_variables_of_several_types_and_a_rate_of_one(tmp_path):
    """What is not asked for is not there; the rate is converted where it has to be."""
    state = {
        "r": np.array([0.125]),  # double
        "t": np.array([2]),
        "a": np.ones((2, 2), np.float32),
        "b": np.full(3, 2.0),
        "ma": np.zeros((2, 2), np.float32),
        "mb": np.zeros(3),
    }
    how = {"alpha": 0.5, "beta": 2.0, "norm_coefficient": 0.0, "mode": "standard"}
    nodes = [
        node("Momentum", "r t a b a b ma mb", "a1 b1 - mb1", **how),
        node("Momentum", "r t a a ma", "- ma1", **how),
    ]
    artifacts = updating(nodes, state, "a=a1 b=b1 ma=ma1 mb=mb1", tmp_path)
    found = check_steps(artifacts, tmp_path, X, steps=1)
    np.testing.assert_array_equal(found["a"], np.full((2, 2), 0.75))
    np.testing.assert_array_equal(found["b"], np.full(3, 1.5))
    np.testing.assert_array_equal(found["ma"], np.full((2, 2), 2.0))
    np.testing.assert_array_equal(found["mb"], np.full(3, 4.0))


def test_a_kernel_for_each_variable_that_changes_it_where_it_is(tmp_path):
    state = {n: np.ones(5, np.float32) for n in ("a", "b", "va", "vb", "ha", "hb", "ga", "gb")}
    state |= {"r": single(0.1), "t": np.array(1)}
    nodes = [node("Adam", "r t a b ga gb va vb ha hb", "a1 b1 va1 vb1 ha1 hb1")]
    updates = "a=a1 b=b1 va=va1 vb=vb1 ha=ha1 hb=hb1"
    plan = trainers.plan_of(updating(nodes, state, updates, tmp_path), registry())
    train = next(r for r in plan.routines if r.name == "train")
    steps = [s for s in train.steps if plan.kernels[s.kernel].function == "preview_adam"]
    assert len(steps) == 2
    assert all(s.args[:3] == (s.args[5], *s.args[7:9]) for s in steps)


def test_what_does_not_fit_is_refused_at_once(tmp_path):
    state = {n: np.ones(3, np.float32) for n in ("a", "g", "v", "h")}
    state |= {
        "r": single(0.1),
        "t": np.array(1),
        "two": np.array([0.1, 0.2], np.float32),
        "k": np.ones(4, np.float32),
    }
    plain = {"alpha": 0.5, "beta": 1.0, "norm_coefficient": 0.0}
    nodes = [
        node("Adam", "r t a g v h", "o0 - -", alpha=1.0),
        node("Adam", "two t a g v h", "o1 - -"),
        node("Adagrad", "r t a g k", "o2 -"),
        node("Adagrad", "r t a g", "o3 -"),
        node("Momentum", "r t a g v", "o4 -", mode="other", **plain),
        node("Adagrad", "r t a - h", "o5 -"),
    ]
    wanted = {
        "o0": "alpha is 1; it must be at least 0 and less than 1",
        "o1": "the learning rate has the shape [2]; it must be a single number",
        "o2": "a variable, its gradient and its state must be alike; they are float[3], float[3], float[4]",
        "o3": "it has 4 inputs; they must be 2 and 3 for each variable",
        "o4": "mode is 'other'; it must be 'standard' or 'nesterov'",
        "o5": "input 3 is left out; it needs all of them",
    }
    inference = graph([node("Identity", "x", "y")], {"x": [1]}, "y")
    artifacts = Trainable(inference, [Info(graph(nodes, {}, " ".join(wanted), state), "a=o4")])
    with pytest.raises(Unsupported) as refused:
        trainers.plan_of(artifacts.artifacts(tmp_path), registry())
    lines = str(refused.value).splitlines()
    for name, text in wanted.items():
        assert any(f"of {name}" in line and text in line for line in lines), (name, lines)
