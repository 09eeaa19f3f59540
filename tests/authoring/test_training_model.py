"""A model with training information made from a forward model trains to the numbers of the artifacts made of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import trainers
from commands import command_fixture  # noqa: F401
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from training_models import Trainable, check_steps, graph, node, regression

from minbuild.authoring import Recipe, generate_artifacts, read_source, write_artifacts
from minbuild.authoring.load import load
from minbuild.authoring.losses import LossOptions
from minbuild.authoring.optimizers import OPTIMIZERS, OptimizerOptions
from minbuild.authoring.training_info.model_builder import FILE, make_training_model
from minbuild.errors import BadInput
from minbuild.ir import TrainingArtifacts
from minbuild.ops import registry
from minbuild.reference.interpreter import ReferenceTrainer

RANDOM = np.random.default_rng(3)
X, T = (RANDOM.standard_normal(s) for s in ((6, 4), (6, 3)))
LABELS = np.array([0, 2, 1, 1, 0, 2])
CLOSE = {"rtol": 0, "atol": 1e-6}  # constants are floats, and ORT's convention rounds powers


def forward(folder: Path, model: Trainable | None = None) -> Path:
    return (model or Trainable(regression([], "", {}).inference)).save(folder / "forward.onnx")


def both(folder: Path, recipe: Recipe, model: Path) -> tuple[TrainingArtifacts, TrainingArtifacts]:
    """What trains by artifacts, and by training information."""
    generate_artifacts(model, folder / "artifacts", recipe)
    made = make_training_model(read_source(model), recipe, registry())
    (folder / FILE).write_bytes(made.files[FILE])
    return tuple(load(p, registry()) for p in (folder / "artifacts", folder / FILE))  # type: ignore[return-value]


def check_same_training(
    folder: Path, recipe: Recipe, *batch: np.ndarray, model: Path | None = None
) -> TrainingArtifacts:
    """Four steps of both, compared after each."""
    artifacts, own = both(folder, recipe, model or forward(folder))
    apart, together = ReferenceTrainer(artifacts), ReferenceTrainer(own)
    together.parameters["learning_rate"][...] = apart.learning_rate = 0.05
    for _ in range(4):
        wanted, *_ = apart.train_step(*batch)
        apart.optimizer_step()
        apart.lazy_reset_grad()
        found, *_ = together.train_step(*batch)
        np.testing.assert_allclose(found, wanted, **CLOSE)
        for name in apart.trained:
            np.testing.assert_allclose(
                together.parameters[name], apart.parameters[name], err_msg=name, **CLOSE
            )
    return own


OPTIONS = {
    "adamw": OptimizerOptions(weight_decay=0.1, betas=(0.8, 0.9), epsilon=1e-3),
    "adam": OptimizerOptions(weight_decay=0.1, betas=(0.8, 0.9), epsilon=1e-3),
    "sgd": OptimizerOptions(),
    "momentum": OptimizerOptions(momentum=0.8, nesterov=True, weight_decay=0.1),
    "adagrad": OptimizerOptions(weight_decay=0.1, epsilon=1e-3),
    "rmsprop": OptimizerOptions(weight_decay=0.1, alpha=0.8, epsilon=1e-3),
}


@pytest.mark.parametrize("clip", [None, 0.1], ids=["", "clipped"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_trains_as_by_artifacts(tmp_path, name, clip):
    chosen = vars(OPTIONS[name]) | {"max_norm": clip}
    recipe = Recipe(loss="mse", optimizer=name, optimizer_options=OptimizerOptions(**chosen))
    own = check_same_training(tmp_path, recipe, X, T)
    onnx.checker.check_model(onnx.load(tmp_path / FILE))
    trainers.plan_of(own, registry())


def test_uncorrected_moments_train_as_by_artifacts(tmp_path):
    options = OptimizerOptions(correct_bias=False, epsilon=1e-3)
    check_same_training(tmp_path, Recipe(loss="mse", optimizer="adamw", optimizer_options=options), X, T)


def test_labels_frozen_parameters_and_further_outputs(tmp_path):
    loss = LossOptions(class_weights=np.array([1.0, 2.0, 0.5], np.float32))
    recipe = Recipe(loss="cross-entropy", loss_options=loss, optimizer="sgd", frozen=["b"], outputs=["a"])
    own = check_same_training(tmp_path, recipe, X, LABELS)
    assert [p.name for p in own.checkpoint.parameters] == ["W", "learning_rate"]
    assert own.training.outputs == ("loss", "a", "y")
    assert list(own.training.inputs)[:2] == ["x", "labels"]


def test_running_statistics_and_halves(tmp_path):
    state = {"s": np.ones(4), "o": np.zeros(4), "mean": np.zeros(4), "var": np.ones(4)}
    initializers = {n: x.astype(np.float32) for n, x in state.items()}
    half = np.eye(4, 3, dtype=np.float16)
    nodes = [
        node("BatchNormalization", "x s o mean var", "n mean1 var1", training_mode=1, momentum=0.7),
        node("Cast", "n", "h", to=TensorProto.FLOAT16),
        node("MatMul", "h W", "hy"),
        node("Cast", "hy", "y", to=TensorProto.FLOAT),
    ]
    model = Trainable(graph(nodes, {"x": ["batch", 4]}, "y", initializers | {"W": half}))
    recipe = Recipe(loss="mse", optimizer="momentum")
    own = check_same_training(tmp_path, recipe, X, T, model=forward(tmp_path, model))
    exact = ReferenceTrainer(own)
    exact.train_step(X, T)
    np.testing.assert_allclose(exact.parameters["mean"], 0.3 * X.mean(0), atol=1e-7)


def test_initialization_resets_all_but_parameters(tmp_path):
    _, own = both(tmp_path, Recipe(loss="mse", optimizer="adamw"), forward(tmp_path))
    exact = ReferenceTrainer(own)
    first = {n: x.copy() for n, x in exact.parameters.items()}
    exact.train_step(X, T)
    trained = exact.parameters["W"].copy()
    exact.parameters["learning_rate"][...] = 7
    exact.initialize()
    for name, value in exact.parameters.items():
        assert np.array_equal(value, first[name]) == (name not in ("W", "b")), name
    assert np.array_equal(exact.parameters["W"], trained)


def test_the_device_trains_it(tmp_path):
    options = OptimizerOptions(weight_decay=0.1, max_norm=0.5)
    recipe = Recipe(loss="mse", optimizer="adamw", optimizer_options=options)
    _, own = both(tmp_path, recipe, forward(tmp_path))
    found = check_steps(own, tmp_path, X.astype(np.float32), T.astype(np.float32))
    assert found["step"] == 3


def test_the_trained_model_is_exported(tmp_path, minbuild):
    both(tmp_path, Recipe(loss="mse", optimizer="sgd"), forward(tmp_path))
    said = minbuild("export", tmp_path / FILE, "--out", tmp_path / "inference.onnx")
    assert said.code == 0, said.err
    found, wanted = (
        ReferenceEvaluator(str(tmp_path / name)).run(None, {"x": X.astype(np.float32)})
        for name in ("inference.onnx", "forward.onnx")
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_what_the_format_cannot_say_is_refused(tmp_path):
    source = read_source(forward(tmp_path))
    for recipe, text in (
        (Recipe(loss="mse", optimizer="none"), "needs an optimizer"),
        (Recipe(loss="mse", optimizer="own.onnx"), "works on all parameters at once"),
        (Recipe(loss="mse", stops=["a"]), "cannot stop at a"),
    ):
        with pytest.raises(BadInput, match=text):
            make_training_model(source, recipe, registry())


@pytest.mark.parametrize(
    ("largest", "outside"),
    [(90, ["W", "W.momentum0", "W.momentum1"]), (140, ["W"])],
    ids=["all tensors", "the inference graph's"],
)
def test_what_does_not_fit_into_a_file_stands_beside_it(largest, outside, tmp_path, monkeypatch):
    model = read_source(forward(tmp_path))
    made = make_training_model(model, Recipe(loss="mse"), registry())
    assert list(made.files) == [FILE]
    monkeypatch.setattr("minbuild.frontend.onnx.writer.LEAST_OUTSIDE", 48)  # bytes of W
    large = make_training_model(model, Recipe(loss="mse"), registry(), "large_", largest)
    path = tmp_path / f"large_{FILE}"
    assert list(large.files) == [path.name, f"{path.name}.data"]
    for result in (made, large):
        write_artifacts(result, tmp_path)
    proto = onnx.load(path, load_external_data=False)
    stored = [*proto.graph.initializer, *proto.training_info[0].algorithm.initializer]
    beside = [t for t in stored if t.data_location == TensorProto.EXTERNAL]
    assert [t.name for t in beside] == outside
    for number, tensor in enumerate(beside):
        told = {entry.key: entry.value for entry in tensor.external_data}
        assert told == {"location": f"{path.name}.data", "offset": str(4096 * number), "length": "48"}
    onnx.checker.check_model(str(path))
    one, other = (load(p, registry()) for p in (tmp_path / FILE, path))
    assert [n.outputs for n in one.training.nodes] == [n.outputs for n in other.training.nodes]
    for mine, theirs in zip(one.checkpoint.parameters, other.checkpoint.parameters, strict=True):
        assert mine.name == theirs.name
        np.testing.assert_array_equal(mine.data, theirs.data)


def test_the_command_writes_a_file_that_scan_reads(tmp_path, minbuild):
    model = forward(tmp_path)
    said = minbuild(
        "artifacts", model, "--out", tmp_path, "--loss", "mse", "--training-info", "--prefix", "my_"
    )
    assert said.code == 0, said.err
    path = tmp_path / f"my_{FILE}"
    assert str(path) in said.out
    assert not (tmp_path / "my_checkpoint").exists()
    scanned = minbuild("scan", path, "--json")
    assert scanned.code == 0, scanned.err
    assert "ai.onnx.preview.training:Adam" in scanned.out
    assert minbuild("scan", tmp_path / "nowhere").code == 2
    folder = tmp_path / "alone"
    folder.mkdir()
    path.rename(folder / path.name)
    assert minbuild("scan", folder, "--json").out == scanned.out.replace(str(path), str(folder))
