"""Artifacts made of forward models: that they train as ONNX Runtime's do, and what they can be asked to be."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from agreement import check_gradients, close, gradient_noise, gradients, loss_of, noise
from authored import FORWARD, differences, operators, source, stepped, trainer_of, uniform
from case_sets import GOLDEN, TRAIN, load, trainer

from minbuild.authoring import Recipe, Source, artifacts_of, make_artifacts, types_of, write_artifacts
from minbuild.authoring.losses import LossOptions
from minbuild.authoring.optimizers import OptimizerOptions
from minbuild.errors import BadInput, Unsupported
from minbuild.frontend.artifacts import load_artifacts
from minbuild.frontend.checkpoint import read_checkpoint, write_checkpoint_files
from minbuild.frontend.onnx.reader import opset_in, read_graph, read_model
from minbuild.frontend.onnx.writer import write_files, write_graph
from minbuild.ir import ElementType, TensorType
from minbuild.ops import registry
from minbuild.training import onnxblock
from minbuild.training.onnxblock.context import writing

KINDS = {"CrossEntropyLoss": "cross-entropy", "MSELoss": "mse", "L1Loss": "l1", "BCEWithLogitsLoss": "bce"}
W, B = uniform((4, 3), (3,))
LINEAR = source("m (float[n,4] x) => (float[n,3] y) { h = MatMul (x, w) y = Add (h, b) }", {"w": W, "b": B})
X, T = uniform((5, 4), (5, 3))


def weighted(compose, output):
    """The loss that the golden set `weighted` has of its own."""
    mse, l1 = onnxblock.loss.MSELoss(), onnxblock.loss.L1Loss()
    with writing(compose):
        parts = [(0.6, mse(output)), (0.4, l1(output))]
    return compose.add("Add", *(compose.add("Mul", compose.constant(c, loss), loss) for c, loss in parts))


def source_of(model):
    """An onnx.ModelProto, to make artifacts of."""
    return Source(read_model(model, Path("model.onnx")), opset_in(model), Path("model.onnx"))


def golden_recipe(name):
    """What the golden set's artifacts were asked to be."""
    asked, meta = FORWARD[name], load(GOLDEN / name).meta
    options = {}
    for node in load(GOLDEN / name).artifacts.optimizer.nodes:
        given = node.attributes
        options |= {n: given[n] for n in ("epsilon", "weight_decay", "max_norm") if n in given}
        options |= {"betas": (given["alpha"], given["beta"])} if "beta" in given else {}
    return Recipe(
        loss=KINDS.get(asked.loss, weighted),
        loss_inputs=tuple(asked.loss_inputs),
        optimizer="sgd" if asked.optimizer == "SGD" else "adamw",
        optimizer_options=OptimizerOptions(**options),
        train=tuple(meta["requires_grad"]),
        frozen=tuple(meta["frozen"]),
        outputs=tuple(asked.extra_outputs),
    )


@pytest.mark.parametrize("name", [n for n in FORWARD if n != "dense_ort"])
def test_golden_models_train_as_onnx_runtime_trained_its_own_artifacts(name, tmp_path):
    theirs, path = load(GOLDEN / name), tmp_path / "made"
    forward = source_of(FORWARD[name].build()[1])
    write_artifacts(make_artifacts(forward, golden_recipe(name)), path)
    for file in ("meta.json", "reference.npz"):
        os.symlink(GOLDEN / name / file, path / file)
    made = load(path)
    assert {p.name: p.trainable for p in made.artifacts.checkpoint.parameters} == {
        p.name: p.trainable for p in theirs.artifacts.checkpoint.parameters
    }
    session = trainer(path).session(made.checkpoint)
    session.learning_rate = made.rate
    for step in range(made.meta["steps"]):
        close(loss_of(session.run(TRAIN, made.batch(step))), theirs.losses()[step], noise(theirs))
        if step == 0:
            recorded = theirs.recorded("grad_step1")
            check_gradients(theirs, gradients(session, recorded), recorded, gradient_noise(theirs))
        session.optimizer_step()
        session.lazy_reset_grad()


# ---------------------------------------------------------------------------------------------------- losses


def log_softmax(y):
    shifted = y - y.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def cross_entropy(y, t, weights, ignored=-1):
    w = np.where(t == ignored, 0, weights[t % len(weights)])
    return -(w * log_softmax(y)[np.arange(len(t)), t % len(weights)]).sum() / w.sum()


def bce(y, t, positive=1.0):
    p = 1 / (1 + np.exp(-y))
    return -(positive * t * np.log(p) + (1 - t) * np.log(1 - p)).mean()


def huber(y, t, delta):
    d = np.abs(y - t)
    return np.where(d < delta, d * d / 2, delta * (d - delta / 2)).mean()


LABELS = np.array([0, 2, 1, 1, 2])
PROBABILITIES = np.exp(T.astype(np.float64)) / np.exp(T.astype(np.float64)).sum(1, keepdims=True)
LOSSES = (
    ("mse", {}, T, lambda y: ((y - T) ** 2).mean()),
    ("mse", {"reduction": "sum"}, T, lambda y: ((y - T) ** 2).sum()),
    ("l1", {}, T, lambda y: np.abs(y - T).mean()),
    ("huber", {"delta": 0.25}, T, lambda y: huber(y, T, 0.25)),
    ("bce", {}, (T > 0) * 1.0, lambda y: bce(y, T > 0)),
    ("bce", {"pos_weight": np.array([1.0, 2.0, 0.5])}, (T > 0) * 1.0, lambda y: bce(y, T > 0, np.array([1, 2, 0.5]))),
    ("cross-entropy", {}, LABELS, lambda y: cross_entropy(y, LABELS, np.ones(3))),
    (
        "cross-entropy",
        {"class_weights": np.array([1.0, 3.0, 0.5]), "ignore_index": 2},
        LABELS,
        lambda y: cross_entropy(y, LABELS, np.array([1.0, 3.0, 0.5]), 2),
    ),
    ("nll", {}, LABELS, lambda y: -y[np.arange(5), LABELS].mean()),
    ("kl", {}, PROBABILITIES, lambda y: (PROBABILITIES * (np.log(PROBABILITIES) - y)).sum(1).mean()),
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "options", "target", "wanted"), LOSSES, ids=lambda v: str(v) if isinstance(v, str) else ""
)
def test_losses_are_what_their_names_say(kind, options, target, wanted):
    made = trainer_of(LINEAR, Recipe(loss=kind, loss_options=LossOptions(**options)))
    y = X.astype(np.float64) @ W.astype(np.float64) + B
    assert stepped(made, X, target) == pytest.approx(wanted(y), rel=1e-9)
    assert max(differences(made, X, target).values()) < 1e-6


def test_large_logits_do_not_overflow():
    made = trainer_of(LINEAR, Recipe(loss="bce"))
    made.parameters["w"] *= 1e4
    assert np.isfinite(stepped(made, X, (T > 0) * 1.0))


def test_a_loss_may_be_taken_of_several_outputs():
    both = source(
        "m (float[n,4] x) => (float[n,3] y, float[n,3] z) { y = MatMul (x, w) z = Neg (y) }", {"w": W}
    )
    made = trainer_of(both, Recipe(loss="mse", loss_inputs=("y", "z")))
    assert list(made.artifacts.training.inputs)[:3] == ["x", "y_target", "z_target"]
    y = X.astype(np.float64) @ W
    assert stepped(made, X, T, T) == pytest.approx(((y - T) ** 2).mean() + ((-y - T) ** 2).mean())


def test_a_model_may_compute_its_own_loss():
    own = source(
        "m (float[n,4] x) => (float[n,3] y, float l) { y = MatMul (x, w) l = ReduceMean <keepdims=0> (y) }",
        {"w": W},
    )
    made = trainer_of(own, Recipe(loss="none", loss_output="l", outputs=("y",)))
    assert stepped(made, X) == pytest.approx((X.astype(np.float64) @ W).mean())
    assert made.artifacts.training.outputs[:2] == ("l", "y")


def test_a_loss_may_be_an_onnx_file(tmp_path):
    text = """m (float[n,3] a, float[n,3] wanted) => (float l) {
        d = Sub (a, wanted) e = Mul (d, scale) s = Mul (e, e) l = ReduceSum <keepdims=0> (s) }"""
    loss = source(text, {"scale": np.array([2], np.float32)})
    path = tmp_path / "own.onnx"
    path.write_bytes(write_graph(loss.graph, {"l": TensorType(ElementType.FLOAT, ())}, {"": 17}))
    made = trainer_of(LINEAR, Recipe(loss=str(path)))
    assert made.trained == ("w", "b")  # the loss's own constants do not train
    y = X.astype(np.float64) @ W + B
    assert stepped(made, X, T) == pytest.approx(4 * ((y - T) ** 2).sum())
    with pytest.raises(BadInput, match="imports opset 17, but the model imports 13"):
        older = source("m (float[n,4] x) => (float[n,3] y) { y = MatMul (x, w) }", {"w": W}, 13)
        artifacts_of(older, Recipe(loss=str(path)), registry())


# ------------------------------------------------------------------------------------------------ parameters

DEEP_NAMES = ("body_w", "head_w", "head_bias", "top_w", "top_bias")
DEEP = source(
    "m (float[n,4] x) => (float[n,3] y) { a = MatMul (x, body_w) b = Relu (a) c = Gemm (b, head_w, head_bias) "
    "y = Gemm (c, top_w, top_bias) }",
    dict(zip(DEEP_NAMES, uniform((4, 6), (6, 3), (3,), (3, 3), (3,)), strict=True)),
)


@pytest.mark.parametrize(
    ("train", "trained"),
    [
        ((), list(DEEP_NAMES)),
        (("bias",), ["head_bias", "top_bias"]),
        (("last:1",), ["top_w", "top_bias"]),
        (("last:2",), ["head_w", "head_bias", "top_w", "top_bias"]),
        (("head_*", "top_w"), ["head_w", "head_bias", "top_w"]),
    ],
)
def test_parameters_are_chosen_by_name_pattern_and_place(train, trained):
    loaded = artifacts_of(DEEP, Recipe(loss="mse", train=train), registry())
    assert [p.name for p in loaded.checkpoint.parameters if p.trainable] == trained


def test_last_layers_are_those_before_the_loss_of_models_with_several_outputs():
    two = source(
        "m (float[n,4] x) => (float[n,3] y, float[n,3] z) { a = MatMul (x, body_w) y = MatMul (a, y_w) "
        "b = MatMul (a, z_w) z = MatMul (b, w) }",
        dict(zip(("body_w", "y_w", "z_w", "w"), uniform((4, 6), (6, 3), (6, 3), (3, 3)), strict=True)),
    )
    loaded = artifacts_of(two, Recipe(loss="mse", loss_inputs=("y",), train=("last:2",)), registry())
    assert [p.name for p in loaded.checkpoint.parameters if p.trainable] == ["body_w", "y_w"]


def test_nothing_below_the_first_trained_parameter_is_differentiated():
    everything, head = (
        operators(artifacts_of(DEEP, Recipe(loss="mse", train=train), registry()))
        for train in ((), ("top_*",))
    )
    assert "ReluGrad" in everything and "ReluGrad" not in head
    assert head.count("Gemm") < everything.count("Gemm")
    backward = head[head.index("Sub") :]
    assert "FusedMatMul" not in backward and backward.count("InPlaceAccumulatorV2") == 2


def test_a_frozen_backbone_is_only_run_forward():
    forward = source_of(FORWARD["transfer"].build()[1])
    recipe = golden_recipe("transfer")
    head = operators(artifacts_of(forward, recipe, registry()))
    whole = operators(artifacts_of(forward, Recipe(loss="cross-entropy"), registry()))
    assert "ConvGrad" in whole and "BatchNormalizationGrad" in whole
    assert not {"ConvGrad", "BatchNormalizationGrad", "Expand", "Scale"} & set(head)


def test_parameters_in_neither_list_stay_in_the_graph():
    loaded = artifacts_of(DEEP, Recipe(loss="mse", train=("top_*",), frozen=("head_w",)), registry())
    assert [p.name for p in loaded.checkpoint.parameters] == ["top_w", "top_bias", "head_w"]
    assert {"body_w", "head_bias"} <= set(loaded.training.initializers)


def test_parameters_that_the_loss_does_not_reach_are_reported_and_frozen():
    two = source(
        "m (float[n,4] x) => (float[n,3] y, float[n,3] z) { y = MatMul (x, w) z = MatMul (x, v) }",
        {"w": W, "v": W},
    )
    loaded = artifacts_of(two, Recipe(loss="mse"), registry())
    assert loaded.notes == ("v: the loss does not depend on them; they are frozen.",)
    with pytest.raises(BadInput, match="depends on none of the parameters"):
        artifacts_of(two, Recipe(loss="mse", train=("v",)), registry())


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (Recipe(loss="square"), "no such loss. Choose from"),
        (Recipe(loss="mse", optimizer="lion"), "no such optimizer. Choose from"),
        (Recipe(loss="mse", loss_options=LossOptions(reduction="none")), "a loss must be one number"),
        (Recipe(loss="mse", loss_options=LossOptions(ignore_index=1)), "ignore_index does nothing with the loss mse"),
        (Recipe(loss="mse", loss_options=LossOptions(class_weights=np.ones(3))), "class_weights does nothing"),
        (Recipe("mse", optimizer="sgd", optimizer_options=OptimizerOptions(momentum=0.9)), "momentum does nothing"),
        (Recipe(loss="mse", train=("w",), frozen=("w",)), "both trained and frozen"),
        (Recipe(loss="mse", train=("nothing*",)), "no parameter of model.onnx matches"),
        (Recipe(loss="mse", loss_inputs=("q",)), "no such output to take the loss of"),
        (Recipe(loss="mse", outputs=("q",)), "no such value to return"),
        (Recipe(loss="mse", stops=("q",)), "no such value to stop gradients at"),
        (Recipe(loss="none", loss_output="q"), "the loss 'q' is no output"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_the_cure(recipe, said):
    with pytest.raises(BadInput, match=said.replace("*", ".")):
        artifacts_of(LINEAR, recipe, registry())


def test_a_loss_must_be_one_number():
    with pytest.raises(BadInput, match="a loss is a single number"):
        artifacts_of(LINEAR, Recipe(loss="none"), registry())


def test_every_node_in_the_way_is_named():
    text = "m (float[n,4] x) => (float[n,3] y) { a = MatMul (x, w) b = own.Odd (a) c = own.Strange (a) y = Add (b, c) }"
    with pytest.raises(Unsupported) as refused:
        artifacts_of(source(text, {"w": W}), Recipe(loss="mse"), registry())
    assert [finding.split("(")[1].split(",")[0] for finding in refused.value.findings] == [
        "own:Odd",
        "own:Strange",
    ]


def test_unknown_operators_behind_others_are_named_too():
    """What only follows from an unknown operator is not reported; what is unknown itself is, once."""
    text = """m (float[n,4] x) => (float[n,3] y) {
        a = own.Odd (x) b = MatMul (a, w) c = own.Strange (b) d = Mish (c) y = Add (b, d) }"""
    with pytest.raises(Unsupported) as refused:
        artifacts_of(source(text, {"w": W}, 18), Recipe(loss="mse"), registry())
    assert [finding.split("(")[1].split(",")[0] for finding in refused.value.findings] == [
        "own:Odd",
        "own:Strange",
    ]


# ----------------------------------------------------------------------------------------------------- files


def test_large_constants_stand_beside_the_model(tmp_path):
    loaded = artifacts_of(DEEP, Recipe(loss="mse", train=("top_*",)), registry())
    types = types_of(loaded, registry())["training_model.onnx"]
    big = np.arange(1024, dtype=np.float32).reshape(32, 32)
    graph = loaded.training.__class__(
        "training_model.onnx", loaded.training.nodes, loaded.training.inputs, {}, loaded.training.outputs,
        {**loaded.training.initializers, "body_w": big},
    )  # fmt: skip
    files = write_files(graph, types, {"": 17, "com.microsoft": 1}, "p_", largest=4000)
    assert set(files) == {"p_training_model.onnx", "p_training_model.onnx.data"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    path = tmp_path / "p_training_model.onnx"
    read = read_graph(path.read_bytes(), path)
    np.testing.assert_array_equal(read.initializers["body_w"], big)
    assert set(read.initializers) == set(graph.initializers)


def test_files_have_the_prefix_and_a_nominal_checkpoint_if_asked(tmp_path):
    made = make_artifacts(LINEAR, Recipe(loss="mse", nominal=True), prefix="net_")
    names = [
        "checkpoint",
        "eval_model.onnx",
        "nominal_checkpoint",
        "optimizer_model.onnx",
        "training_model.onnx",
    ]
    assert sorted(made.files) == [f"net_{name}" for name in names]
    write_artifacts(made, tmp_path)
    (tmp_path / "net_checkpoint").unlink()
    assert load_artifacts(tmp_path).checkpoint.nominal
    assert make_artifacts(LINEAR, Recipe(loss="mse", nominal=True), prefix="net_") == made  # byte for byte


def test_artifacts_of_large_models_stand_in_two_files_each(tmp_path, monkeypatch):
    """Constants of the graphs, and parameters; what is read is the same."""
    monkeypatch.setattr("minbuild.frontend.onnx.writer.LEAST_OUTSIDE", 16)
    recipe = Recipe(loss="mse", train=("top_*",), frozen=("head_*",))
    whole, parted = make_artifacts(DEEP, recipe), make_artifacts(DEEP, recipe, largest=64)
    assert set(parted.files) - set(whole.files) == {
        "training_model.onnx.data",
        "eval_model.onnx.data",
        "checkpoint.data",
    }
    write_artifacts(whole, tmp_path / "whole")
    write_artifacts(parted, tmp_path / "parted")
    one, other = load_artifacts(tmp_path / "whole"), load_artifacts(tmp_path / "parted")
    for mine, theirs in ((one.training, other.training), (one.evaluation, other.evaluation)):
        assert [n.outputs for n in mine.nodes] == [n.outputs for n in theirs.nodes]
        assert mine.initializers.keys() == theirs.initializers.keys()
        for name, array in mine.initializers.items():
            np.testing.assert_array_equal(array, theirs.initializers[name])
    for mine, theirs in zip(one.checkpoint.parameters, other.checkpoint.parameters, strict=True):
        np.testing.assert_array_equal(mine.data, theirs.data)


def test_large_checkpoints_stand_in_two_files(tmp_path):
    checkpoint = artifacts_of(
        DEEP, Recipe(loss="mse", train=("top_*",), frozen=("body_*", "head_*")), registry()
    ).checkpoint
    assert set(write_checkpoint_files(checkpoint, "checkpoint")) == {"checkpoint"}
    for name, content in write_checkpoint_files(checkpoint, "checkpoint", largest=100).items():
        (tmp_path / name).write_bytes(content)
    outside = (tmp_path / "checkpoint.data").read_bytes()
    assert DEEP.graph.initializers["body_w"].tobytes() in outside
    read = read_checkpoint(tmp_path / "checkpoint")
    assert [(p.name, p.trainable) for p in read.parameters] == [
        (p.name, p.trainable) for p in checkpoint.parameters
    ]
    for found, wanted in zip(read.parameters, checkpoint.parameters, strict=True):
        np.testing.assert_array_equal(found.data, wanted.data)


def test_values_between_nodes_are_declared_as_onnx_runtimes_pooling_gradients_want():
    import onnx

    pooled = source(
        """m (float[n,2,4,4] x) => (float[n,2,2,2] y) {
            a = Mul (x, w) y = MaxPool <kernel_shape=[2,2], strides=[2,2]> (a) }""",
        {"w": uniform((2, 4, 4))[0]},
    )
    model = onnx.load_from_string(make_artifacts(pooled, Recipe(loss="mse")).files["training_model.onnx"])
    gradient = next(node for node in model.graph.node if node.op_type == "MaxPoolGrad")
    declared = {v.name: v.type.tensor_type.shape.dim for v in model.graph.value_info}[gradient.output[0]]
    assert [d.dim_param or d.dim_value for d in declared] == ["n", 2, 4, 4]
