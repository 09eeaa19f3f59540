"""The drop-in for onnxruntime.training.artifacts and onnxblock."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from authored import differences, stepped, uniform
from commands import GOLDEN, command_fixture  # noqa: F401

from minbuild.errors import BadInput
from minbuild.frontend.artifacts import load_artifacts
from minbuild.frontend.onnx.reader import read_model
from minbuild.ir import Checkpoint, TrainingArtifacts
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.training import artifacts, onnxblock
from minbuild.training.api import CheckpointState, Module, Optimizer
from minbuild.training.artifacts import LossType, OptimType, generate_artifacts
from minbuild.training.onnxblock import blocks, loss, optim

W, B = uniform((4, 3), (3,))
X, T = uniform((5, 4), (5, 3))


@pytest.fixture(name="model")
def model_fixture():
    """y = x w + b, as a ModelProto."""
    text = "m (float[n,4] x) => (float[n,3] y) { h = MatMul (x, w) y = Add (h, b) }"
    made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    for name, array in (("w", W), ("b", B)):
        made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return made


class Weighted(onnxblock.Block):
    """A part of the squared error, and the rest of the absolute one."""

    def __init__(self, part):
        super().__init__()
        self.mse, self.l1 = loss.MSELoss(), loss.L1Loss()
        self.parts = blocks.Constant(part), blocks.Constant(1 - part)
        self.mul, self.add = blocks.Mul(), blocks.Add()

    def build(self, output):
        first, second = (part() for part in self.parts)
        return self.add(self.mul(first, self.mse(output)), self.mul(second, self.l1(output)))


def test_a_loss_of_blocks(model, tmp_path):
    generate_artifacts(model, loss=Weighted(0.75), optimizer=OptimType.AdamW, artifact_directory=tmp_path)
    made = ReferenceTrainer(load_artifacts(tmp_path))
    d = X.astype(np.float64) @ W + B - T
    assert stepped(made, X, T) == pytest.approx(0.75 * (d * d).mean() + 0.25 * np.abs(d).mean())
    assert max(differences(made, X, T).values()) < 1e-6
    made.optimizer_step()


@pytest.mark.parametrize("kind", LossType)
def test_every_kind_of_loss_has_its_block_and_its_name(kind, model, tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    generate_artifacts(str(path), loss=kind, artifact_directory=tmp_path / "kind", nominal_checkpoint=True)
    generate_artifacts(model, loss=getattr(loss, kind.name)(), artifact_directory=tmp_path / "block")
    assert {p.name for p in (tmp_path / "kind").iterdir()} == {
        "checkpoint", "eval_model.onnx", "nominal_checkpoint", "training_model.onnx",
    }  # fmt: skip
    target = np.array([0, 2, 1, 1, 2]) if kind.name in ("CrossEntropyLoss", "NLLLoss") else np.abs(T)
    losses = [stepped(ReferenceTrainer(load_artifacts(tmp_path / n)), X, target) for n in ("kind", "block")]
    assert losses[0] == losses[1] and np.isfinite(losses[0])


@pytest.mark.parametrize("kind", OptimType)
def test_optimizers_and_their_blocks_are_the_same(kind, model, tmp_path):
    block = getattr(optim, kind.name)()
    for name, optimizer in (("kind", kind), ("block", block)):
        generate_artifacts(
            model, loss=LossType.MSELoss, optimizer=optimizer, artifact_directory=tmp_path / name
        )
    files = [(tmp_path / name / "optimizer_model.onnx").read_bytes() for name in ("kind", "block")]
    assert files[0] == files[1]
    assert (
        block(None) == "updated" and block.to_model_proto().SerializeToString(deterministic=True) == files[0]
    )


def test_options_of_an_optimizer_block_reach_the_model(model, tmp_path):
    options = {"betas": (0.8, 0.99), "eps": 1e-5, "weight_decay": 0.1, "bias_correction": False}
    optimizer = optim.AdamW(**options, clip_grad=optim.ClipGradNorm(2.0))
    generate_artifacts(
        model,
        requires_grad=["w"],
        frozen_params=["b"],
        loss=LossType.MSELoss,
        optimizer=optimizer,
        artifact_directory=tmp_path,
        prefix="net_",
        additional_output_names=["h"],
        loss_input_names=["y"],
    )
    loaded = load_artifacts(tmp_path)
    clip, step = loaded.optimizer.nodes
    assert clip.attributes["max_norm"] == 2.0
    wanted = {"alpha": 0.8, "beta": 0.99, "epsilon": 1e-5, "weight_decay": 0.1, "correct_bias": 0}
    assert {n: step.attributes[n] for n in wanted} == pytest.approx(wanted)
    assert loaded.training.outputs[:2] == ("loss", "h")
    assert [(p.name, p.trainable) for p in loaded.checkpoint.parameters] == [("w", True), ("b", False)]


class Head(onnxblock.TrainingBlock):
    """Another layer behind a model, and a loss."""

    def __init__(self):
        super().__init__()
        self.linear, self.loss = blocks.Linear(3, 2), loss.CrossEntropyLoss()

    def build(self, output):
        scores = self.linear(output)
        return self.loss(scores), scores


def test_a_training_block_is_two_models_and_parameters(model, tmp_path):
    head = Head()
    with onnxblock.base(model):
        head.requires_grad("w", False)
        names = head("y")
        training, evaluation = head.to_model_proto()
        trained, frozen = head.parameters()
    assert [o.name for o in evaluation.graph.output] == list(names)
    assert [t.name for t in trained] == ["b", "linear.weight", "linear.bias"]
    assert [t.name for t in frozen] == ["w"]
    onnx.save(training, tmp_path / "training_model.onnx")
    onnx.save(evaluation, tmp_path / "eval_model.onnx")
    onnxblock.save_checkpoint((trained, frozen), tmp_path / "checkpoint")
    made = ReferenceTrainer(load_artifacts(tmp_path))
    assert max(differences(made, X, np.array([0, 1, 1, 0, 1])).values()) < 1e-6
    changed = onnx.ModelProto.FromString(model.SerializeToString())
    changed.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(W * 0, "w"))
    for name, array in (("linear.weight", np.zeros((2, 3))), ("linear.bias", np.zeros(2))):
        changed.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    onnxblock.load_checkpoint_to_model(tmp_path / "checkpoint", changed)
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(changed.graph.initializer[0]), W)
    with pytest.raises(BadInput, match="linear.weight, linear.bias: no such initializer"):
        onnxblock.load_checkpoint_to_model(tmp_path / "checkpoint", model)


NUMBERS = np.array([[0.5, 2.0], [1.5, 0.25]])
ONE = {
    blocks.Abs(): np.abs, blocks.Neg(): np.negative, blocks.Log(): np.log, blocks.Pow(3.0): lambda x: x**3,
    blocks.Sigmoid(): lambda x: 1 / (1 + np.exp(-x)), blocks.Clip(0.4, 1.0): lambda x: x.clip(0.4, 1),
    blocks.Clip(clip_max=1.0): lambda x: x.clip(None, 1), blocks.ReduceMean(False): np.mean,
    blocks.ReduceSum(): lambda x: x.sum(keepdims=True), blocks.Cast(7): lambda x: x.astype(np.int64),
    blocks.ReduceAllL2(): lambda x: np.sqrt((x * x).sum()), blocks.PassThrough(): lambda x: x,
}  # fmt: skip
TWO = {
    blocks.Add(): np.add, blocks.Sub(): np.subtract, blocks.Mul(): np.multiply, blocks.Div(): np.divide,
}  # fmt: skip


class Alone(onnxblock.ForwardBlock):
    """One block between the inputs and the output of a model."""

    def __init__(self, block, inputs):
        super().__init__()
        self.block, self.inputs = block, inputs

    def build(self, x):
        names = [x, *(blocks.InputLike(x)("other") for _ in range(1, self.inputs))]
        value = self.block(*names)
        return self.base.add("Identity", value)


@pytest.mark.parametrize(("block", "wanted"), [*ONE.items(), *TWO.items()], ids=lambda v: type(v).__name__)
def test_blocks_compute_what_they_are_called(block, wanted):
    inputs = 2 if block in TWO else 1
    text = "m (float[2,2] x) => (float[2,2] x2) { x2 = Identity (x) }"
    alone = Alone(block, inputs)
    with onnxblock.base(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')):
        alone("x")
    graph = read_model(alone.to_model_proto(), Path("model.onnx"))
    feeds = (NUMBERS, NUMBERS.T)[:inputs]
    found = ReferenceTrainer(TrainingArtifacts(graph, None, None, Checkpoint(()), {})).train_step(*feeds)[0]
    np.testing.assert_allclose(found, wanted(*feeds), rtol=1e-6)


def test_what_cannot_be_is_refused(model, tmp_path):
    with pytest.raises(BadInput, match="with no model to write into"):
        blocks.Add()("a", "b")
    with pytest.raises(BadInput, match="not built yet"):
        Head().parameters()
    with pytest.raises(BadInput, match="custom_op_library"):
        generate_artifacts(
            model, loss=LossType.MSELoss, custom_op_library="x.so", artifact_directory=tmp_path
        )
    with pytest.raises(BadInput, match="no optimizer"):
        generate_artifacts(model, loss=LossType.MSELoss, optimizer=3.5, artifact_directory=tmp_path)
    with onnxblock.base(model), pytest.raises(BadInput, match="there is no value 'q'"):
        blocks.InputLike("q")()
    assert list(tmp_path.iterdir()) == []
    assert artifacts.LossType.L1Loss == 4 and artifacts.OptimType.SGD == 2  # as in onnxruntime


# ------------------------------------------------------------------------------------------------ the command


def test_the_command_says_what_it_made_and_what_it_will_need(model, minbuild, tmp_path):
    onnx.save(model, tmp_path / "model.onnx")
    np.save(tmp_path / "weights.npy", np.array([1.0, 2.0, 0.5]))
    said = minbuild(
        "artifacts", tmp_path / "model.onnx", "--out", tmp_path / "made", "--class-weights", tmp_path / "weights.npy",
        "--betas", "0.8,0.9", "--epsilon", "1e-7", "--train", "w", "--check-gradients", "--estimate", "--nominal",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert "gradient check, all trained parameters together" in said.out
    assert "memory for temporaries of train at n 32" in said.out
    loaded = load_artifacts(tmp_path / "made")
    assert [p.name for p in loaded.checkpoint.parameters] == ["w"]
    assert loaded.optimizer.nodes[0].attributes["alpha"] == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--class-weights", "1,two"), "--class-weights 1,two: no numbers"),
        (("--class-weights", "gone.npy"), "gone.npy: no such file"),
        (("--betas", "0.9"), "--betas 0.9: two numbers are expected"),
        (("--loss", "huber", "--ignore-index", "1"), "ignore_index does nothing with the loss huber"),
    ],
)
def test_the_command_refuses_options_that_are_wrong(options, said, model, minbuild, tmp_path):
    onnx.save(model, tmp_path / "model.onnx")
    answer = minbuild("artifacts", tmp_path / "model.onnx", "--out", tmp_path / "made", *options)
    assert answer.code == 2 and said in answer.err
    assert not (tmp_path / "made").exists()


def test_a_forward_model_becomes_a_package_at_once(model, minbuild, tmp_path):
    onnx.save(model, tmp_path / "tiny.onnx")
    out = tmp_path / "dist"
    said = minbuild(
        "reduce", tmp_path / "tiny.onnx", "--loss", "mse", "--optimizer", "sgd", "--frozen", "b", "--out", out
    )
    assert said.code == 0, said.err
    assert "PROVEN on" in said.out
    state = CheckpointState.load_checkpoint(out / "model" / "checkpoint")
    module, before = Module(out, state), W.copy()
    optimizer = Optimizer(out, module)
    optimizer.set_learning_rate(0.5)
    d = X @ W + B - T
    assert module(X, T) == pytest.approx((d * d).mean(), rel=1e-6)
    optimizer.step()
    np.testing.assert_allclose(
        state.parameters["w"].data, before - 0.5 * (X.T @ d) * 2 / d.size, rtol=1e-5, atol=1e-7
    )
    np.testing.assert_array_equal(state.parameters["b"].data, B)


def test_parameters_are_chosen_for_forward_models_only(minbuild, tmp_path):
    said = minbuild("reduce", GOLDEN / "dense", "--train", "fc1.weight", "--out", tmp_path / "dist")
    assert said.code == 2 and "give it, and --loss" in said.err


# ---------------------------------------------------------------------------- models that custom blocks edit


class Encoded(onnxblock.ForwardBlock):
    """A loss whose labels are an input that the block adds to the ModelProto by hand, as tables of labels do."""

    def build(self, output):
        labels = onnx.helper.make_tensor_value_info("labels", onnx.TensorProto.INT64, ["n"])
        self.base.graph.input.append(labels)
        node = onnx.helper.make_node("Identity", ["labels"], ["same"], name="by hand")
        self.base.graph.node.append(node)
        return loss.CrossEntropyLoss()(output, "same")


def test_blocks_may_edit_the_model_itself(model):
    block = Encoded()
    with onnxblock.base(model) as accessor:
        name = block("y")
        assert [n.op_type for n in accessor.model.graph.node][:3] == ["MatMul", "Add", "Identity"]
        assert name in accessor.model.graph.node[-1].output
    made = block.to_model_proto()
    assert [i.name for i in made.graph.input] == ["x", "labels"]
    assert len(model.graph.node) == 2  # the model that was given is left alone
    graph = read_model(made, Path("model.onnx"))
    trainer = ReferenceTrainer(TrainingArtifacts(graph, None, None, Checkpoint(()), {}))
    labels = np.array([0, 2, 1, 1, 2])
    scores = X.astype(np.float64) @ W + B
    wanted = (np.log(np.exp(scores).sum(1)) - scores[np.arange(5), labels]).mean()
    assert trainer.train_step(X, labels)[0] == pytest.approx(wanted, rel=1e-6)


def test_a_loss_that_edits_the_model_makes_artifacts(model, tmp_path):
    class ByHand(onnxblock.Block):
        def build(self, output):
            self.base.graph.input.append(
                onnx.helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, ["n", 3])
            )
            self.base.graph.node.append(onnx.helper.make_node("Sub", [output, "t"], ["d"], name="by hand"))
            return blocks.ReduceMean(keepdims=False)(blocks.Pow(2.0)("d"))

    generate_artifacts(model, loss=ByHand(), artifact_directory=tmp_path)
    made = ReferenceTrainer(load_artifacts(tmp_path))
    d = X.astype(np.float64) @ W + B - T
    assert stepped(made, X, T) == pytest.approx((d * d).mean(), rel=1e-6)


def test_the_model_of_an_optimizer_block_is_there_at_once():
    optimizer = optim.AdamW(clip_grad=optim.ClipGradNorm(1.5))
    with onnxblock.empty_base() as accessor:
        name = optimizer(((), ()))
        assert accessor.model.graph.output[0].name == name
        assert [n.op_type for n in accessor.model.graph.node] == ["InplaceClipGradNorm", "AdamWOptimizer"]
        with pytest.raises(BadInput, match="a model of its own"):
            optimizer(((), ()))


def test_clipping_works_on_a_sequence_of_any_length():
    proto = onnx.helper.make_model(
        onnx.helper.make_graph(
            [], "clip", [onnx.helper.make_tensor_sequence_value_info("g", onnx.TensorProto.FLOAT, None)], []
        ),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
    )

    class Clip(onnxblock.ForwardBlock):
        def build(self, gradients):
            return optim.ClipGradNorm(2.5)(gradients)

    block = Clip()
    with onnxblock.base(proto):
        name = block("g")
    made = block.to_model_proto()
    (node,) = made.graph.node
    assert (node.op_type, node.domain, list(node.input), list(node.output)) == (
        "InplaceClipGradNorm", "com.microsoft", ["g"], [name],
    )  # fmt: skip
    assert node.attribute[0].f == 2.5 and made.opset_import[-1].domain == "com.microsoft"


def test_inputs_can_have_gradients(model):
    head = Head()
    head.requires_grad("x")
    with onnxblock.base(model):
        head("y")
    training, _ = head.to_model_proto()
    names = [i.name for i in training.graph.input]
    assert "x_grad.accumulation.buffer" in names
    assert "x_grad.accumulation.out" in [o.name for o in training.graph.output]
    assert [t.name for t in head.parameters()[0]] == ["w", "b", "linear.weight", "linear.bias"]
    # Written by hand: the gradient of the mean of cross-entropies by x.
    graph = read_model(training, Path("training_model.onnx"))
    (accumulate,) = [n for n in graph.nodes if n.inputs[:1] == ("x_grad.accumulation.buffer",)]
    assert accumulate.op_type == "InPlaceAccumulatorV2"


def test_what_onnx_runtime_tolerates_is_noted(model, tmp_path):
    with pytest.warns(UserWarning, match="no.such: no parameters of the model"):
        generate_artifacts(
            model,
            requires_grad=["w"],
            frozen_params=["b", "no.such"],
            loss=LossType.MSELoss,
            artifact_directory=tmp_path,
        )
    assert [(p.name, p.trainable) for p in load_artifacts(tmp_path).checkpoint.parameters] == [
        ("w", True), ("b", False),
    ]  # fmt: skip


def test_a_model_without_parameters_has_artifacts(tmp_path):
    text = "m (float[n,4] x) => (float[n,4] y) { y = Relu (x) }"
    made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    generate_artifacts(made, loss=LossType.MSELoss, artifact_directory=tmp_path)
    training = onnx.load(tmp_path / "training_model.onnx")
    assert [o.name for o in training.graph.output] == ["loss"]
    with pytest.raises(BadInput, match="it holds no parameters"):  # files are made; there is nothing to train
        load_artifacts(tmp_path)
