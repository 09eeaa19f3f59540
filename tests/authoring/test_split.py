"""Models cut where training begins: backbone and tail compute what the whole computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from commands import Command, command_fixture  # noqa: F401
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from minbuild.authoring import Recipe, artifacts_of, in_directory, make_artifacts, source_of
from minbuild.authoring.load import load
from minbuild.authoring.split import Split, split_model
from minbuild.errors import BadInput
from minbuild.ops import registry
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.training.feature_cache import FeatureCache

pytestmark = pytest.mark.unit
FLOAT = TensorProto.FLOAT
BATCH, SIDE, CLASSES = 6, 6, 3


def weight(name: str, *shape: int) -> TensorProto:
    random = np.random.default_rng(len(name) + sum(shape))
    return numpy_helper.from_array((0.4 * random.standard_normal(shape)).astype(np.float32), name)


def model(
    *, mode: int = 0, reshapes: bool = False, ends: tuple[str, ...] = ("scores",), batch: object = "batch"
):
    """A residual block, a pool and two layers. `mode` is that of the batch normalisation; with `reshapes` the tail asks
    for the shape of a value of the backbone."""
    conv = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    statistics = ["norm.weight", "norm.bias", "norm.mean", "norm.var"]
    nodes = [
        helper.make_node("Conv", ["image", "conv1.weight"], ["c1"], "first", **conv),
        helper.make_node(
            "BatchNormalization",
            ["c1", *statistics],
            ["n1", "mean", "var"][: 1 + 2 * mode],
            "norm",
            training_mode=mode,
        ),
        helper.make_node("Relu", ["n1"], ["r1"]),
        helper.make_node("Conv", ["r1", "conv2.weight"], ["c2"], "second", **conv),
        helper.make_node("Add", ["c2", "r1"], ["sum"]),
        helper.make_node("GlobalAveragePool", ["sum"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Gemm", ["flat", "fc1.weight", "fc1.bias"], ["hidden"], "fc1", transB=1),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("Gemm", ["active", "fc2.weight", "fc2.bias"], ["plain"], "fc2", transB=1),
    ]
    if reshapes:
        nodes += [
            helper.make_node("Shape", ["pooled"], ["rank4"], "shape", end=1),
            helper.make_node("Concat", ["rank4", "rest"], ["wanted"], "wanted", axis=0),
            helper.make_node("Reshape", ["plain", "wanted"], ["scores"], "reshape"),
        ]
    else:
        nodes.append(helper.make_node("Identity", ["plain"], ["scores"], "end"))
    positive = numpy_helper.from_array(np.array([1, 2, 0.5, 1], np.float32), "norm.var")
    weights = [weight("conv1.weight", 4, 1, 3, 3), weight("conv2.weight", 4, 4, 3, 3), positive]
    weights += [weight(name, 4) for name in statistics[:3]]
    weights += [
        weight("fc1.weight", 5, 4),
        weight("fc1.bias", 5),
        weight("fc2.weight", CLASSES, 5),
        weight("fc2.bias", CLASSES),
    ]
    weights += [numpy_helper.from_array(np.array([CLASSES], np.int64), "rest")] if reshapes else []
    shapes = {"scores": [batch, CLASSES], "pooled": [batch, 4, 1, 1]}
    graph = helper.make_graph(
        nodes,
        "split",
        [helper.make_tensor_value_info("image", FLOAT, [batch, 1, SIDE, SIDE])],
        [helper.make_tensor_value_info(name, FLOAT, shapes[name]) for name in ends],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def images() -> np.ndarray:
    return np.random.default_rng(7).standard_normal((BATCH, 1, SIDE, SIDE)).astype(np.float32)


def cut(whole, *train: str) -> Split:
    return split_model(
        source_of(whole, Path("model.onnx")), Recipe(loss="cross-entropy", train=train), registry()
    )


def evaluators(split: Split) -> tuple[ReferenceEvaluator, ReferenceEvaluator]:
    files = split.files()
    models = [onnx.load_from_string(files[name]) for name in ("backbone.onnx", "tail.onnx")]
    for each in models:
        onnx.checker.check_model(each, full_check=True)
    return ReferenceEvaluator(models[0]), ReferenceEvaluator(models[1])


@pytest.mark.parametrize(
    ("train", "features"),
    [
        ("last:1", ["active"]),
        ("last:2", ["flat"]),
        ("fc1.bias", ["flat"]),
        ("last:3", ["r1"]),
        ("norm.weight", ["c1"]),
    ],
)
def test_both_parts_make_the_scores_of_the_whole(train: str, features: list[str]) -> None:
    split = cut(model(), train)
    assert list(split.features) == features
    backbone, tail = evaluators(split)
    given = dict(zip(features, backbone.run(features, {"image": images()}), strict=True))
    assert all(each.shape[0] == BATCH for each in given.values())
    (scores,) = tail.run(["scores"], given)
    (wanted,) = ReferenceEvaluator(model()).run(["scores"], {"image": images()})
    np.testing.assert_array_equal(scores, wanted)  # the same nodes on the same values


@pytest.mark.parametrize("train", ["last:1", "last:2", "last:3", "fc2.bias"])
def test_the_tail_trains_as_the_whole(train: str) -> None:
    recipe = Recipe(loss="cross-entropy", train=(train,))
    operators = registry()
    whole = ReferenceTrainer(artifacts_of(source_of(model(), Path("model.onnx")), recipe, operators))
    split = split_model(source_of(model(), Path("model.onnx")), recipe, operators)
    tail = ReferenceTrainer(artifacts_of(split.tail, split.recipe(recipe), operators))
    backbone, _ = evaluators(split)
    labels = np.arange(BATCH) % CLASSES
    features = backbone.run(list(split.features), {"image": images()})  # once, for all steps
    for _ in range(4):
        for trainer, inputs in ((whole, [images()]), (tail, features)):
            trainer.learning_rate = 0.05
            trainer.lazy_reset_grad()
            trainer.loss = trainer.train_step(*inputs, labels)[0]
            trainer.optimizer_step()
        # The features were rounded to float32 once; everything else is float64.
        np.testing.assert_allclose(tail.loss, whole.loss, rtol=1e-5)
    assert set(tail.trained) == set(whole.trained) == set(split.train)
    for name in tail.trained:
        np.testing.assert_allclose(tail.parameters[name], whole.parameters[name], rtol=1e-3, atol=1e-5)


def test_shapes_are_computed_in_the_tail() -> None:
    split = cut(model(reshapes=True), "last:1")
    assert list(split.features) == ["pooled", "active"]
    backbone, tail = evaluators(split)
    features = dict(zip(split.features, backbone.run(None, {"image": images()}), strict=True))
    (wanted,) = ReferenceEvaluator(model(reshapes=True)).run(None, {"image": images()})
    np.testing.assert_array_equal(tail.run(None, features)[0], wanted)


def test_a_fixed_batch_can_be_split() -> None:
    split = cut(model(batch=2), "last:1")
    assert split.features["active"].shape == (2, 5) and split.feature_bytes == 20


def test_outputs_of_the_backbone_stay_there() -> None:
    split = cut(model(ends=("scores", "pooled")), "last:2")
    assert split.backbone.outputs == ("flat", "pooled") and split.tail.graph.outputs == ("scores",)


def test_batch_statistics_begin_the_tail_with_a_note() -> None:
    split = cut(model(mode=1), "last:1")
    assert list(split.features) == ["c1"]
    assert any("'norm' (BatchNormalization) normalises by the batch" in note for note in split.notes)


@pytest.mark.parametrize(
    ("train", "text"),
    [
        ((), "--train: name the parameters"),
        (("conv1.*",), "training begins at node 'first'"),
        (("tail",), "--train tail"),
    ],
)
def test_splits_without_a_backbone_are_refused(train: tuple[str, ...], text: str) -> None:
    with pytest.raises(BadInput, match=text):
        cut(model(), *train)


def test_the_command_writes_both_models_and_artifacts(minbuild: Command, tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "model.onnx")
    said = minbuild(
        "split", tmp_path / "model.onnx", "--train", "last:2", "--no-build", "--out", tmp_path / "split"
    )
    assert said.code == 0, said.err
    assert "feature flat: float32[batch, 4]" in said.out and "take 16 bytes" in said.out
    assert sorted(p.name for p in (tmp_path / "split").iterdir()) == [
        "artifacts",
        "backbone.onnx",
        "tail.onnx",
    ]
    found = load(tmp_path / "split/artifacts", registry())
    assert [p.name for p in found.checkpoint.parameters] == [
        "fc1.weight",
        "fc1.bias",
        "fc2.weight",
        "fc2.bias",
    ]


def test_tail_artifacts_are_those_of_the_tail_as_a_model(tmp_path: Path) -> None:
    split = cut(model(), "last:2")
    (tmp_path / "tail.onnx").write_bytes(split.files()["tail.onnx"])
    recipe = Recipe(loss="cross-entropy")
    with in_directory(make_artifacts(tmp_path / "tail.onnx", recipe)) as folder:
        again = load(folder, registry())
    made = artifacts_of(split.tail, split.recipe(recipe), registry())
    assert [node.op_type for node in again.training.nodes] == [node.op_type for node in made.training.nodes]


class Counting:
    """A backbone that counts the samples it computes."""

    def __init__(self) -> None:
        self.samples = 0

    def __call__(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.samples += len(x)
        return x * 2, x.sum(1)


def test_features_are_computed_once(tmp_path: Path) -> None:
    data = np.arange(20.0).reshape(10, 2)
    for folder in (None, tmp_path / "features"):
        backbone = Counting()
        cache = FeatureCache(backbone, data, folder=folder)
        for chosen in ([3, 1, 3], slice(2, 5), np.array([1, 3])):
            doubled, sums = cache[chosen]
            np.testing.assert_array_equal(doubled, data[chosen] * 2)
            np.testing.assert_array_equal(sums, data[chosen].sum(1))
        assert backbone.samples == cache.computed == 4 and len(cache) == 10
    again = Counting()
    np.testing.assert_array_equal(
        FeatureCache(again, data, folder=tmp_path / "features")[[4, 1]][0], data[[4, 1]] * 2
    )
    assert again.samples == 0
    with pytest.raises(BadInput, match="another data set"):
        FeatureCache(again, data[:3], folder=tmp_path / "features")


def test_backbones_that_lose_rows_are_refused() -> None:
    with pytest.raises(BadInput, match="one row each"):
        FeatureCache(lambda x: x[:1], np.zeros((4, 2)))[:3]
