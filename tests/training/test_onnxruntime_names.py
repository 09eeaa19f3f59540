"""What programs written for ONNX Runtime's artifact tools call and catch is here, under the same names.

golden/onnxblock.json has the names and parameters of ONNX Runtime 1.19.2 (slow/record_names.py).
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from authored import uniform
from commands import GOLDEN

from minbuild.errors import BadInput, Unsupported
from minbuild.frontend.artifacts import load_artifacts
from minbuild.ir import Checkpoint, TrainingArtifacts
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.training import artifacts, onnxblock
from minbuild.training.artifacts import LossType, OptimType, generate_artifacts
from minbuild.training.onnxblock import blocks, loss, optim

pytestmark = pytest.mark.unit

RECORD = json.loads((GOLDEN / "onnxblock.json").read_text())
MODULES = {
    "artifacts": artifacts,
    "onnxblock": onnxblock,
    "onnxblock.blocks": blocks,
    "onnxblock.loss": loss,
    "onnxblock.optim": optim,
}
NAMES = [(module, name) for module in MODULES for name in RECORD[module]]


def parameters(thing) -> list[str]:
    return [p for p in inspect.signature(thing).parameters if p != "self"]


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_names_and_what_they_take(module, name):
    """In the same order; there may be more behind them."""
    recorded, ours = RECORD[module][name], getattr(MODULES[module], name)
    taken = recorded["takes"]
    assert parameters(ours)[: len(taken)] == taken
    built = recorded.get("build", [])
    if built:
        assert parameters(ours.build)[: len(built)] == built
        assert issubclass(ours, blocks.Block)
    listed = getattr(MODULES[module], "__all__", None)
    assert listed is None or name in listed


@pytest.mark.parametrize(("kind", "ours"), [("LossType", LossType), ("OptimType", OptimType)])
def test_kinds_have_the_same_numbers(kind, ours):
    assert {n: int(ours[n]) for n in RECORD[kind]} == RECORD[kind]


# ---------------------------------------------------------------------------------------------------- blocks

W = uniform((4, 3))[0]


@pytest.fixture(name="model")
def model_fixture():
    text = "m (float[n,4] x) => (float[n,3] y) { y = MatMul (x, w) }"
    made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    made.graph.initializer.append(onnx.numpy_helper.from_array(W, "w"))
    return made


class Written(onnxblock.ForwardBlock):
    """A function of the model's first input, as a model."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def build(self, x):
        return self.function(self.base, x)


def run(text: str, function, *inputs: np.ndarray):
    written = Written(function)
    with onnxblock.base(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')):
        written("x")
        made = written.to_model_proto()
    graph = artifacts.read_model(made, Path("model.onnx"))
    return made, ReferenceTrainer(TrainingArtifacts(graph, None, None, Checkpoint(()), {})).train_step(
        *inputs
    )[0]


LABELS = "m (int64[5] x) => (int64[5] z) { z = Identity (x) }"


def test_a_label_encoder_maps_what_it_knows():
    encoder = blocks.LabelEncoder(default_int64=9, keys_int64s=[3, 1], values_int64s=[0, 1])
    made, found = run(LABELS, lambda base, x: encoder(x), np.array([1, 2, 3, 1, 0]))
    np.testing.assert_array_equal(found, [1, 9, 0, 1, 9])
    assert {o.domain: o.version for o in made.opset_import} == {"": 17, "ai.onnx.ml": 2}
    onnx.checker.check_model(made, full_check=True)


def test_labels_may_be_encoded_before_the_loss(model, tmp_path):
    """Classes of the user, 10, 20 and 30, of which the loss counts from 0."""

    class Encoded(onnxblock.Block):
        def __init__(self):
            super().__init__()
            self.encode = blocks.LabelEncoder(keys_int64s=[10, 20, 30], values_int64s=[0, 1, 2])
            self.loss = loss.CrossEntropyLoss()

        def build(self, scores):
            codes = blocks.Cast(onnx.TensorProto.INT64)(blocks.InputLike("code")("codes"))
            return self.loss(scores, self.encode(codes))

    code = model.graph.node.add(op_type="ReduceSum", input=["x", "axes"], output=["code"])
    code.attribute.append(onnx.helper.make_attribute("keepdims", 0))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "axes"))
    generate_artifacts(model, loss=Encoded(), artifact_directory=tmp_path, loss_input_names=["y"])
    loaded = load_artifacts(tmp_path)
    x = uniform((3, 4))[0]
    found = ReferenceTrainer(loaded).train_step(x, np.array([10.0, 30.0, 20.0]))[0]
    scores = x.astype(np.float64) @ W
    logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    assert found == pytest.approx(-logs[[0, 1, 2], [0, 2, 1]].mean())


def test_what_a_label_encoder_cannot_do_is_refused():
    encoder = blocks.LabelEncoder(keys_strings=["a"], values_int64s=[0])
    with pytest.raises(Unsupported, match="LabelEncoder.*strings"):
        run(LABELS, lambda base, x: encoder(x), np.zeros(5, np.int64))
    uneven = blocks.LabelEncoder(keys_int64s=[1, 2], values_int64s=[0])
    with pytest.raises(Unsupported, match="2 keys and 1 values"):
        run(LABELS, lambda base, x: uneven(x), np.zeros(5, np.int64))


PLAIN = "m (float[2,3] x) => (float[2,3] z) { z = Identity (x) }"


def test_a_sequence_is_what_operators_read_from_it():
    def stacked(base, x):
        return base.add("ConcatFromSequence", blocks.SequenceConstruct()(x, blocks.Neg()(x)), axis=1)

    x = uniform((2, 3))[0]
    _, found = run(PLAIN, stacked, x)
    np.testing.assert_array_equal(found, np.concatenate([x, -x], 1))


def test_clipping_scales_a_sequence_to_a_common_norm():
    def clipped(base, x):
        both = optim.ClipGradNorm(0.5)(blocks.SequenceConstruct()(x, blocks.Neg()(x)))
        return base.add("ConcatFromSequence", both, axis=0)

    x = uniform((2, 3))[0]
    _, found = run(PLAIN, clipped, x)
    assert np.linalg.norm(found) == pytest.approx(0.5, rel=1e-5)
    _, found = run(PLAIN, clipped, x / 100)
    np.testing.assert_allclose(found, np.concatenate([x, -x]) / 100, rtol=1e-6)


def test_sequences_are_refused_where_there_can_be_none():
    with pytest.raises(BadInput, match="Relu: what is in its sequence is not known beforehand"):
        run(PLAIN, lambda base, x: base.add("Relu", blocks.SequenceConstruct()(x)))
    with pytest.raises(BadInput, match="there is no sequence 'x'"):
        run(PLAIN, lambda base, x: optim.ClipGradNorm(1.0)(x))


# -------------------------------------------------------------------------------------------------- failures


def test_what_onnx_runtime_raises_is_raised(model, tmp_path):
    def asked(**given):
        generate_artifacts(
            **({"model": model, "artifact_directory": tmp_path, "loss": LossType.MSELoss} | given)
        )

    with pytest.raises(RuntimeError, match="both trained and frozen"):
        asked(requires_grad=["w"], frozen_params=["w"])
    with pytest.raises(RuntimeError, match="no model"):
        asked(model=3)
    with pytest.raises(RuntimeError, match="no loss"):
        asked(loss=3.5)
    with pytest.raises(TypeError, match="no optimizer"):
        asked(optimizer=3.5)
    with pytest.raises(RuntimeError, match="additional_output_names: 'y' is one text"):
        asked(additional_output_names="y")
    with pytest.raises(RuntimeError, match="custom_op_library x.so: no folder"):
        asked(custom_op_library="x.so")
    with pytest.raises(RuntimeError, match="MomentumOptimizer") as lacking:
        asked(optimizer=OptimType.Momentum, ort_format=True)
    assert isinstance(lacking.value, Unsupported) and lacking.value.exit_code == 3
    assert list(tmp_path.iterdir()) == []


def test_options_of_the_exporter_are_passed_over(model, tmp_path):
    """Microsoft's MobileViT sample hands them on, which ONNX Runtime took up to 1.16."""
    asked = {"loss": LossType.MSELoss, "artifact_directory": tmp_path}
    with pytest.raises(TypeError, match="unexpected keyword argument 'losses'"):
        generate_artifacts(model, losses=LossType.MSELoss, **asked)
    assert list(tmp_path.iterdir()) == []
    with pytest.warns(UserWarning, match="do_constant_folding is an option of torch.onnx.export"):
        generate_artifacts(model, do_constant_folding=False, **asked)
    assert (tmp_path / "training_model.onnx").is_file()


def test_an_optimizer_may_be_a_model(model, tmp_path):
    made = optim.SGD().to_model_proto()
    generate_artifacts(
        model, loss=LossType.MSELoss, optimizer=made, artifact_directory=str(tmp_path).encode()
    )
    assert [n.op_type for n in load_artifacts(tmp_path).optimizer.nodes] == ["SGDOptimizerV2"]
