"""Whole training steps as plain ONNX graphs: states paired, first values, what is refused, and what they compute."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
import step_graphs
from commands import command_fixture  # noqa: F401
from onnx.reference import ReferenceEvaluator
from step_graphs import batches, step
from training_models import device

from minbuild.authoring.load import load
from minbuild.errors import BadInput
from minbuild.frontend.onnx.step_graph import is_step, state_pairs, step_model
from minbuild.ops import registry
from minbuild.training.library import EVAL, TRAIN

RATE = np.float32(0.05)


def file_of(model: onnx.ModelProto, folder, name: str = "step.onnx"):
    (folder / name).write_bytes(model.SerializeToString())
    return folder / name


def artifacts_of(model: onnx.ModelProto, folder, pairs=None, values=None):
    made = step_model(file_of(model, folder), pairs or {}, values or {})
    (folder / "made.onnx").write_bytes(made.data)
    return load(folder / "made.onnx", registry()), made.notes


@pytest.mark.parametrize(("net", "optimizer"), [("relu", "adamw"), ("tanh", "nesterov")])
def test_a_step_trains_as_its_graph_says(net, optimizer, tmp_path):
    whole = step(net, optimizer)
    artifacts, notes = artifacts_of(whole.model(), tmp_path)
    assert notes[0].startswith(f"a whole training step: its state is {', '.join(list(whole.arrays)[:9])}")
    assert {p.name for p in artifacts.checkpoint.parameters} == set(whole.arrays)
    assert artifacts.training.outputs == ("loss",)
    session = device(artifacts, tmp_path)
    evaluator, state = ReferenceEvaluator(whole.model(values=False)), dict(whole.arrays)
    for x, t in batches(5):
        wanted = evaluator.run(None, {"x": x, "t": t, "lr": RATE, **state})
        (evaluated,) = session.run(EVAL, [x, t])
        (loss,) = session.run(TRAIN, [x, t, RATE])
        assert float(loss) == pytest.approx(float(wanted[0]), rel=1e-6)
        assert float(evaluated) == pytest.approx(float(wanted[0]), rel=1e-6)  # which changes nothing
        state = dict(zip(whole.following, wanted[1:], strict=True))


def test_states_in_other_words_and_from_elsewhere(tmp_path):
    whole = step("linear", "momentum")
    proto = whole.model(values=False)
    for node in proto.graph.node:
        node.output[:] = [o.replace("_next", "/2") for o in node.output]
    for output in proto.graph.output:
        output.name = output.name.replace("_next", "/2")
    assert not is_step(file_of(proto, tmp_path))
    with pytest.raises(BadInput, match="--state w=w_next. Inputs: x, t, lr, w0"):
        step_model(tmp_path / "step.onnx", {}, {})
    pairs = {name: f"{name}/2" for name in whole.arrays}
    (tmp_path / "pairs.json").write_text(json.dumps({"state": pairs}))
    assert state_pairs([str(tmp_path / "pairs.json")]) == pairs
    artifacts, notes = artifacts_of(proto, tmp_path, pairs, {"w0": whole.arrays["w0"]})
    assert notes == (
        "b0, w0/m, b0/m: begin as zeros. Give first values with --state-values FILE.npz, or set them later.",
    )
    data = {p.name: p.data for p in artifacts.checkpoint.parameters}
    np.testing.assert_array_equal(data["w0"], whole.arrays["w0"])


@pytest.mark.parametrize(
    "names",
    [("w", "w_next"), ("w", "new_w"), ("w_in", "w_out"), ("w_prev", "w_next"), ("state/w", "next_state/w")],
)
def test_names_pair_inputs_and_outputs(names, tmp_path):
    s = step_graphs.Step()
    s.state(names[0], np.ones((step_graphs.INPUTS, step_graphs.OUTPUTS)))
    s.add("ReduceMax", "x", keepdims=0, name="loss")
    s.following[names[0]] = s.add("Mul", names[0], "lr", name=names[1])
    artifacts, _ = artifacts_of(s.model(), tmp_path)
    assert [p.name for p in artifacts.checkpoint.parameters] == [names[0]]


def test_states_that_change_places(tmp_path):
    """A next value that is another state, and one that is an input."""
    s = step_graphs.Step()
    for name in "ab":
        s.state(name, np.full((step_graphs.BATCH, step_graphs.INPUTS), ord(name)))
    s.add("ReduceMax", "a", keepdims=0, name="loss")
    s.following = {"a": "b", "b": "x"}
    proto = s.model()
    artifacts, _ = artifacts_of(proto, tmp_path, {"a": "b", "b": "x"})
    session = device(artifacts, tmp_path)
    (x, _), *_ = batches(1)  # the graph reads nothing else
    assert [float(session.run(TRAIN, [x])[0]) for _ in range(3)] == [97, 98, float(x.max())]


@pytest.mark.parametrize(
    ("pairs", "values", "reason"),
    [
        ({"w": "w0_next"}, {}, "no such input 'w'. Did you mean w0?"),
        ({"w0": "next"}, {}, "no such output 'next'"),
        ({"x": "w0_next", "w0": "w0_next"}, {}, "w0_next: the next value of several inputs"),
        ({"w0": "w0_next", "b0": "b0_next", "lr": "loss"}, {}, "all outputs are next values of states"),
        ({"w0": "w0_next"}, {"w1": np.zeros(1)}, "'w1' is no state"),
        ({"w0": "w0_next"}, {"w0": np.zeros(1)}, "has shape [1], but"),
    ],
)
def test_wrong_pairs_are_refused(pairs, values, reason, tmp_path):
    path = file_of(step("linear", "sgd").model(), tmp_path)
    with pytest.raises(BadInput) as caught:
        step_model(path, pairs, values)
    assert reason in str(caught.value)


def test_states_that_nothing_pairs_have_one_cure(tmp_path):
    """Values that are given for them are of states whose names are not known yet."""
    proto = step("linear", "sgd").model()
    for i, output in enumerate(proto.graph.output):
        for node in proto.graph.node:
            node.output[:] = [str(i) if n == output.name else n for n in node.output]
        output.name = str(i)
    with pytest.raises(BadInput, match="no names pair its inputs") as caught:
        step_model(file_of(proto, tmp_path), {}, {"w0": np.zeros(1)})
    assert "is no state" not in str(caught.value)


def test_a_state_of_free_size_is_refused(tmp_path):
    proto = step("linear", "sgd").model()
    proto.graph.input[3].type.tensor_type.shape.dim[0].dim_param = "n"
    with pytest.raises(BadInput, match="'w0' has no fixed shape"):
        step_model(file_of(proto, tmp_path), {"w0": "w0_next"}, {})


def test_the_command_builds_a_trainer(minbuild, tmp_path):
    whole = step("tanh", "adam")
    path = file_of(whole.model(values=False), tmp_path)
    np.savez(tmp_path / "first.npz", **whole.arrays)
    done = minbuild(
        "reduce", path, "--state-values", tmp_path / "first.npz", "--out", tmp_path / "dist", "--no-analysis"
    )
    assert done.code == 0, done.err
    assert "PROVEN" in done.out
