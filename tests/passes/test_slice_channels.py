"""Loops over slices of channels: frozen blocks with statistics of the batch take less memory, with the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import quantized_models
import trainers
from authored import source
from planned_models import compiled, peak

from minbuild.authoring import Recipe, artifacts_of
from minbuild.ir import TensorType
from minbuild.ir.types import ElementType
from minbuild.ops import registry
from minbuild.passes import manager
from minbuild.passes.analysis.channel_runs import MOST_CALLS, runs_of
from minbuild.passes.lowering.lower import lower
from minbuild.passes.rewrite import slice_channels
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.kernel_selection import contents_of

OPERATORS = registry()
BATCH, SIZE = 4, 16
NORM = "BatchNormalization<training_mode = 1>"
WINDOW = "kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 48"


def norm(y: str, x: str, name: str) -> str:
    inputs = ", ".join(f"{name}_{part}" for part in ("weight", "bias", "running_mean", "running_var"))
    return f"{y}, {name}_m, {name}_v = {NORM}({x}, {inputs}) "


# What begins with a convolution over all channels reads its input whole. A run that begins with one filter per channel
# is handed slices of its input.
FILTERS = (
    "a = Conv<kernel_shape = [1, 1]>(x, c1) "
    + norm("b", "a", "n1")
    + f"r = Relu(b) d = Conv<{WINDOW}, strides = [2, 2]>(r, c2) "
    + norm("e", "d", "n2")
)
CHANNELS = (
    "p = Conv<kernel_shape = [1, 1]>(x, c1) q = Softmax<axis = 1>(p) "
    f"d = Conv<{WINDOW}>(q, c2) "
    + norm("b", "d", "n1")
    + f"r = Relu(b) f = Conv<{WINDOW}, strides = [4, 4]>(r, c2) "
    "g = Add(f, shift) " + norm("e", "g", "n2")
)
HEAD = "m = GlobalAveragePool(e) f1 = Flatten(m) scores = MatMul(f1, w)"


def net(body: str, train: tuple[str, ...] = ("w",), channels: int = 48) -> CompiledModel:
    """A block that makes e of x, before a head; `train` are the parameters that train."""
    inputs, outputs = f"(float[batch, 3, {SIZE}, {SIZE}] x)", "(float[batch, 4] scores)"
    random = np.random.default_rng(4)
    shapes = {"c1": (channels, 3, 1, 1), "c2": (channels, 1, 3, 3), "w": (channels, 4)}
    weights = {n: random.standard_normal(s).astype(np.float32) for n, s in shapes.items() if n in body + "w"}
    if "shift" in body:
        weights["shift"] = random.standard_normal((channels, 1, 1)).astype(np.float32)
    for name in ("n1", "n2"):
        for part, fill in (("weight", 1), ("bias", 0), ("running_mean", 0), ("running_var", 1)):
            if f"{name}_{part}" in body:
                noise = random.standard_normal(channels) / 8 if part in ("weight", "bias") else 0
                weights[f"{name}_{part}"] = (np.full(channels, fill) + noise).astype(np.float32)
    text = f"net {inputs} => {outputs} {{ {body} {HEAD} }}".replace("group = 48", f"group = {channels}")
    made = artifacts_of(source(text, weights), Recipe(loss="cross-entropy", train=train), OPERATORS)
    return compiled(made, OPERATORS, batch=BATCH)


def unsliced(patch: pytest.MonkeyPatch, body: str) -> CompiledModel:
    """The same without these loops."""
    with patch.context() as within:
        passes = tuple(p for p in manager.PASSES if p.name != "slice_channels")
        within.setattr(manager, "PASSES", passes)
        return net(body)


def moves(model: CompiledModel) -> int:
    return sum(model.plan.kernels[s.kernel].function == "move_channels" for s in model.plan.routines[0].steps)


@pytest.mark.parametrize(("body", "count"), [(FILTERS, 1), (CHANNELS, 2)], ids=["filters", "channels"])
def test_a_run_in_slices_has_the_same_bits_in_less_memory(
    body: str, count: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(slice_channels, "MOST_TIME", 2)  # these blocks have no other time than that of memory
    models = (net(body), unsliced(monkeypatch, body))
    assert moves(models[0]) == count and not moves(models[1])
    assert peak(models[0]) * 8 < peak(models[1]) * 7
    library = trainers.library_of(contents_of(models), OPERATORS, tmp_path)
    data = quantized_models.batches((BATCH, 3, SIZE, SIZE), 4, 3)
    states = []
    for model in models:
        session = quantized_models.session(model, library, BATCH)
        states.append(quantized_models.trained(session, data))
    assert states[0] == states[1]
    assert any(name.endswith("running_var") for name in states[0])  # compared, too
    assert len(set(np.frombuffer(states[0]["losses"], np.float32).tolist())) == len(data)


def test_any_batch_is_computed_by_the_same_plan(tmp_path: Path) -> None:
    """With rows of the last batch, which has other sizes than the one before."""
    model = net(FILTERS)
    library = trainers.library_of(contents_of((model,)), OPERATORS, tmp_path)
    losses = []
    for sizes in ((BATCH, 2), (2,)):
        session = quantized_models.session(model, library, BATCH)
        for size in sizes:
            (batch,) = quantized_models.batches((size, 3, SIZE, SIZE), 4, 1)
            losses.append(session.run(trainers.TRAIN, batch)[0].tobytes())
    assert losses[1] == losses[2] != losses[0]


def test_what_gains_nothing_has_no_loops() -> None:
    trained = net(FILTERS, ("c1", "c2", "n1_weight", "n1_bias", "n2_weight", "n2_bias", "w"))
    assert not moves(trained)  # gradients read the whole results
    assert not moves(net(FILTERS, channels=47))  # has no slices of as many channels


def test_a_run_ends_where_channels_meet() -> None:
    made = artifacts_of(
        source(
            f"net (float[batch, 4, {SIZE}, {SIZE}] x, float[4, 1, 1] y) => (float[batch, 4] scores) {{"
            "a = Relu(x) b = Mul(a, y) c = Softmax<axis = 1>(b) d = Sigmoid(c) e = Tanh(d) "
            "m = GlobalAveragePool(e) f = Flatten(m) scores = MatMul(f, w) }",
            {"w": np.ones((4, 4), np.float32)},
        ),
        Recipe(loss="cross-entropy"),
        OPERATORS,
    )
    procedure = lower(made, OPERATORS, {}).procedures[0]
    runs = runs_of(procedure, OPERATORS)
    assert [[procedure.calls[i].op for i in run.calls] for run in runs[:2]] == [
        [":Relu", ":Mul"],
        [":Sigmoid", ":Tanh"],
    ]
    assert {run.channels for run in runs[:2]} == {4} and MOST_CALLS > 2
    assert procedure.values["a"].type == TensorType(ElementType.FLOAT, procedure.values["a"].type.shape)
