"""Update bindings on the device: no new value beside the old one, no gradient that waits for others, and numbers that
do not depend on where an update stands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import trainers
from onnx import NodeProto
from training_models import Info, Trainable, check_steps, gradient, graph, node, single

from minbuild.ir import Plan, Routine, TrainingArtifacts
from minbuild.ops import registry
from minbuild.passes.analysis import batch_tiles as samples
from minbuild.passes.lowering.lower import lower
from minbuild.passes.manager import optimize
from minbuild.passes.rewrite import batch_tiling as loops
from minbuild.passes.rewrite.loss_check import check_loss
from minbuild.planning.plan import build_plan, peak_bytes

SIDE, LAYERS = 48, 6
WEIGHT_BYTES = 4 * SIDE * SIDE
RANDOM = np.random.default_rng(3)
MEAN = [node("Mul", "y y", "yy"), node("ReduceMean", "yy", "loss", keepdims=0)]


def layers() -> tuple[list[NodeProto], dict[str, np.ndarray]]:
    """y: x through as many matrices, a tanh behind each."""
    nodes, weights = [], {}
    for i in range(LAYERS):
        name, made = f"W{i}", "y" if i == LAYERS - 1 else f"h{i}"
        weights[name] = (RANDOM.standard_normal((SIDE, SIDE)) / 7).astype(np.float32)
        nodes += [
            node("MatMul", f"{'x' if i == 0 else f'h{i - 1}'} {name}", f"p{i}"),
            node("Tanh", f"p{i}", made),
        ]
    return nodes, weights


def deep(
    step: list[NodeProto], updates: Mapping[str, str], state: Mapping[str, np.ndarray], folder: Path
) -> TrainingArtifacts:
    """The layers, the gradients of all weights as `g0`, `g1`, ..., and the nodes of a step behind them."""
    nodes, weights = layers()
    names = " ".join(weights)
    algorithm = [*MEAN, gradient(names, "x", "loss", " ".join(f"g{i}" for i in range(LAYERS))), *step]
    pairs = " ".join(f"{v}={new}" for v, new in updates.items())
    inference = graph(nodes, {"x": ["batch", SIDE]}, "y", weights)
    outputs = f"loss {' '.join(updates.values())}"
    return Trainable(inference, [Info(graph(algorithm, {}, outputs, state), pairs)]).artifacts(folder)


def by_adam(folder: Path) -> TrainingArtifacts:
    """One Adam node over all weights, and the step counted in front of it."""
    every = range(LAYERS)
    state = {f"{m}{i}": np.zeros((SIDE, SIDE), np.float32) for m in ("m", "v") for i in every}
    state |= {"rate": single(0.01), "step": np.array(0), "one": np.array(1)}
    kept = [f"{kind}{i}" for kind in ("W", "m", "v") for i in every]
    given = [f"W{i}" for i in every] + [f"g{i}" for i in every] + kept[LAYERS:]
    news = [f"{name}_new" for name in kept]
    adam = node("Adam", f"rate count {' '.join(given)}", " ".join(news), epsilon=0.0625)
    step = [node("Add", "step one", "count"), adam]
    return deep(step, {**dict(zip(kept, news, strict=True)), "step": "count"}, state, folder)


def train_of(plan: Plan) -> Routine:
    return next(r for r in plan.routines if r.name == "train")


def kernels_of(plan: Plan) -> list[str]:
    return [plan.kernels[s.kernel].function for s in train_of(plan).steps]


def test_neither_new_values_nor_gradients_gather(tmp_path):
    artifacts = by_adam(tmp_path)
    plan = trainers.plan_of(artifacts, registry())
    peak, _ = peak_bytes(plan, {"batch": 1})
    assert peak < 2 * WEIGHT_BYTES, "one gradient at a time, and rows of a batch of one"
    assert not [k for k in kernels_of(plan) if k.startswith("copy")]
    x = RANDOM.standard_normal((3, SIDE)).astype(np.float32)
    found = check_steps(artifacts, tmp_path, x)
    assert found["step"] == 3


def test_what_is_written_out_as_nodes_is_in_place_too(tmp_path):
    """Each weight minus its scaled gradient, then shrunk: two results on the way to the new value."""
    step, updates = [], {}
    for i in range(LAYERS):
        step += [
            node("Mul", f"rate g{i}", f"move{i}"),
            node("Sub", f"W{i} move{i}", f"moved{i}"),
            node("Mul", f"moved{i} kept", f"new{i}"),
        ]
        updates[f"W{i}"] = f"new{i}"
    artifacts = deep(step, updates, {"rate": single(0.1), "kept": single(0.99)}, tmp_path)
    peak, _ = peak_bytes(trainers.plan_of(artifacts, registry()), {"batch": 1})
    assert peak < 2 * WEIGHT_BYTES
    check_steps(artifacts, tmp_path, RANDOM.standard_normal((3, SIDE)).astype(np.float32))


def test_a_weight_that_is_read_again_waits(tmp_path):
    """W is used by both layers and by an output behind the update: all of that sees the old value."""
    weight = (RANDOM.standard_normal((SIDE, SIDE)) / 7).astype(np.float32)
    nodes = [node("MatMul", "x W", "p"), node("Tanh", "p", "h"), node("MatMul", "h W", "y")]
    step = [
        *MEAN,
        gradient("W", "x", "loss", "g"),
        node("Sub", "W g", "new"),
        node("ReduceSum", "W", "before", keepdims=0),
    ]
    inference = graph(nodes, {"x": ["batch", SIDE]}, "y", {"W": weight})
    artifacts = Trainable(inference, [Info(graph(step, {}, "loss before new"), "W=new")]).artifacts(tmp_path)
    found = check_steps(artifacts, tmp_path, RANDOM.standard_normal((3, SIDE)).astype(np.float32), steps=1)
    np.testing.assert_allclose(found["before"], weight.astype(float).sum(), rtol=1e-5)


def test_no_update_comes_before_the_loss_is_checked(tmp_path):
    operators = registry()
    program = optimize(check_loss(lower(by_adam(tmp_path), operators, {}), operators), operators)
    order = kernels_of(build_plan(program, operators))
    checked = order.index("loss_is_finite")
    assert checked < order.index("preview_adam")
    assert "add" not in order[:checked], "the step is counted behind the check"


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops wherever they are possible."""
    monkeypatch.setattr(samples, "MINIMUM_SAVING", 1)
    monkeypatch.setattr(loops, "LEAST_GAIN", 1 << 30)


def convolutions(folder: Path) -> TrainingArtifacts:
    """Two convolutions and a sum over everything, trained by plain steps."""
    weights = {"A": (6, 2, 3, 3), "B": (6, 6, 3, 3), "c": (1, 6, 1, 1)}
    state = {n: (RANDOM.standard_normal(s) / 4).astype(np.float32) for n, s in weights.items()}
    nodes = [
        node("Conv", "x A", "a", pads=[1, 1, 1, 1]),
        node("Add", "a c", "ac"),
        node("Relu", "ac", "r"),
        node("Conv", "r B", "b", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Tanh", "b", "y"),
    ]
    step = [
        *MEAN,
        gradient("A B c", "x", "loss", "dA dB dc"),
        *(node("Sub", f"{n} d{n}", f"{n}1") for n in weights),
    ]
    inference = graph(nodes, {"x": ["batch", 2, 12, 12]}, "y", state)
    updates = " ".join(f"{n}={n}1" for n in weights)
    return Trainable(inference, [Info(graph(step, {}, "loss A1 B1 c1"), updates)]).artifacts(folder)


def test_batches_go_through_sample_by_sample(eager, tmp_path):
    artifacts = convolutions(tmp_path)
    plan = trainers.plan_of(artifacts, registry())
    steps = train_of(plan).steps
    ends = [i for i, s in enumerate(steps) if s.loop]
    assert ends
    updates = [i for i, s in enumerate(steps) if plan.kernels[s.kernel].function == "sub"]
    inside = {i for end in ends for i in range(end - steps[end].loop, end + 1)}
    assert len(updates) == 3
    assert not inside & set(updates), "a sum over samples is whole when it is used"
    check_steps(artifacts, tmp_path, RANDOM.standard_normal((5, 2, 12, 12)).astype(np.float32))
