"""What can be asked for when artifacts are made, and how what cannot be is refused: everything at once."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import numpy as np
import onnx
import onnx.parser
import pytest
from authored import operators, source, trainer_of, uniform

from minbuild.authoring import Recipe, artifacts_of, in_directory, make_artifacts, write_artifacts
from minbuild.authoring.losses import LossOptions
from minbuild.authoring.optimizers import OptimizerOptions
from minbuild.authoring.training_info.model_builder import make_training_model
from minbuild.errors import BadInput
from minbuild.frontend.artifacts import load_artifacts
from minbuild.ops import registry
from minbuild.planning.compile import compile_model

NAMES = ("body_w", "head_w", "head_bias", "top_w", "top_bias")
DEEP = source(
    "m (float[n,4] x) => (float[n,3] y) { a = MatMul (x, body_w) b = Relu (a) c = Gemm (b, head_w, head_bias) "
    "y = Gemm (c, top_w, top_bias) }",
    dict(zip(NAMES, uniform((4, 6), (6, 3), (3,), (3, 3), (3,)), strict=True)),
)


def refusal(recipe: Recipe, model=DEEP) -> list[str]:
    with pytest.raises(BadInput) as refused:
        artifacts_of(model, recipe, registry())
    return str(refused.value).splitlines()


def test_everything_that_is_wrong_is_said_at_once():
    recipe = Recipe(
        loss="cross_entropy",
        loss_options=LossOptions(reduction="none", delta=-1.0),
        optimizer="adagrade",
        optimizer_options=OptimizerOptions(max_norm=0.0),
        train=("top_v", "nothing", "all"),
        frozen=("head",),
        outputs=("q",),
        stops=("aa",),
    )
    assert refusal(recipe) == [
        "--loss cross_entropy: no such loss. Did you mean cross-entropy?",
        "reduction 'none': a loss must be one number; choose from mean, sum.",
        "delta -1.0 cannot be; it takes numbers above 0.",
        "--frozen head: no parameter of model.onnx matches. Did you mean head_w?",
        "--train top_v: no parameter of model.onnx matches. Did you mean top_w?",
        f"--train nothing: no parameter of model.onnx matches. There are: {', '.join(NAMES)}.",
        "--train all: no parameter of model.onnx matches. '*' matches all.",
        "model.onnx: q: no such value to return. The nodes compute: a, b, c, y.",
        "model.onnx: aa: no such value to stop gradients at. Did you mean a?",
        "--optimizer adagrade: no such optimizer. Did you mean adagrad?",
        "max_norm 0.0 cannot be; the largest norm of gradients is more than 0.",
    ]
    with pytest.raises(BadInput) as refused:
        make_training_model(DEEP, replace(recipe, optimizer="none"), registry())
    said = str(refused.value)
    assert "needs an optimizer" in said and "cannot stop at aa" in said and "top_v: no parameter" in said


@pytest.mark.parametrize(
    ("optimizer", "options", "said"),
    [
        ("adamw", {"betas": (0.9, 1.0)}, "betas (0.9, 1.0) cannot be; it takes numbers from 0 to below 1."),
        ("adam", {"epsilon": -1e-8}, "epsilon -1e-08 cannot be; it takes numbers of 0 or more."),
        ("adamw", {"weight_decay": nan}, "weight_decay nan cannot be; it takes numbers of 0 or more."),
        ("rmsprop", {"alpha": 2.0}, "alpha 2.0 cannot be; it takes numbers from 0 to below 1."),
        ("momentum", {"momentum": -0.1}, "momentum -0.1 cannot be; it takes numbers of 0 or more."),
        ("sgd", {"max_norm": nan}, "max_norm nan cannot be; the largest norm of gradients is more than 0."),
        ("none", {"max_norm": 1.0}, "max_norm does nothing without an optimizer."),
    ],
)
def test_optimizers_refuse_numbers_that_would_ruin_training(optimizer, options, said):
    recipe = Recipe("mse", optimizer=optimizer, optimizer_options=OptimizerOptions(**options))
    assert refusal(recipe) == [said]


@pytest.mark.parametrize(
    ("loss", "options", "said"),
    [
        ("nll", {"class_weights": np.ones(2)}, "class_weights: 2 weights for 3 classes; give one for each."),
        ("cross-entropy", {"class_weights": np.ones((1, 3))}, "class_weights: 3 weights for 3 classes; give"),
        (
            "cross-entropy",
            {"class_weights": np.array([1, nan, 1])},
            "class_weights: weights are numbers of 0 or",
        ),
        ("bce", {"pos_weight": np.array([1.0, -1.0, 1.0])}, "pos_weight: weights are numbers of 0 or more"),
        ("bce", {"pos_weight": np.ones(2)}, "pos_weight: an array of shape [2] does not broadcast to the"),
        ("bce", {"weights": np.ones((5, 1))}, "weights: an array of shape [5, 1] does not broadcast to the"),
        ("bce", {"weights": np.ones((1, 1, 3))}, "weights: an array of shape [1, 1, 3] does not broadcast"),
    ],
)
def test_losses_refuse_weights_that_do_not_fit(loss, options, said):
    (finding,) = refusal(Recipe(loss, loss_options=LossOptions(**options)))
    assert finding.startswith(said)


def saved(text: str, path) -> str:
    imports = '"" : 17, "com.microsoft" : 1'
    onnx.save(onnx.parser.parse_model(f"<ir_version: 8, opset_import: [{imports}]> {text}"), path)
    return str(path)


STEP = """
    o (float[1] learning_rate, int64[1] step, seq(float) params, seq(float) gradients, seq(float) first_order_moments)
    => (bool[1] updated) { updated = com.microsoft.SGDOptimizerV2 (learning_rate, params, gradients) }"""
EACH = "l (float[n,3] p, float[n,3] t) => (float[n,3] e) { d = Sub (p, t) e = Mul (d, d) }"


def test_a_loss_and_an_optimizer_of_ones_own_are_looked_at_together(tmp_path):
    each = saved(EACH, tmp_path / "each.onnx")
    step = saved(STEP, tmp_path / "step.onnx")
    gone = str(tmp_path / "gone.onnx")
    clipped = OptimizerOptions(max_norm=1.0, momentum=0.5)
    assert refusal(Recipe(gone, optimizer=each)) == [
        f"{gone}: no such file. Give the ONNX file of the loss.",
        f"{each}: it is no optimizer model, which takes learning_rate, params, gradients, and moments; learning_rate, "
        "params, gradients: not there.",
    ]
    assert refusal(Recipe(each, optimizer=step, optimizer_options=clipped)) == [
        "model.onnx: value 'loss/e' has shape [n, 3], but a loss is a single number. Take the mean or the sum of it.",
        f"{step}: momentum does nothing with an optimizer model. Write it into the model.",
        f"{step}: max_norm does nothing with an optimizer model. Write it into the model.",
    ]
    made = make_artifacts(DEEP, Recipe("mse", optimizer=step))
    with in_directory(made) as folder:
        optimizer = load_artifacts(folder).optimizer
    assert optimizer is not None and [n.op_type for n in optimizer.nodes] == ["SGDOptimizerV2"]


def test_models_without_parameters_are_told_from_those_where_none_is_left():
    nothing = source("m (float[n,4] x) => (float[n,4] y) { y = Relu (x) }")
    assert "it has no parameters" in refusal(Recipe("mse"), nothing)[0]
    assert "no parameter is left to train" in refusal(Recipe("mse", frozen=("*",)))[0]


def test_weights_broadcast():
    for shape in ((), (1,), (3,), (1, 1), (1, 3)):
        artifacts_of(DEEP, Recipe("bce", loss_options=LossOptions(pos_weight=np.ones(shape))), registry())


def test_the_rest_may_stay_in_the_checkpoint_and_costs_no_memory():
    constant, kept = (
        make_artifacts(DEEP, Recipe("mse", train=("top_*",), frozen=frozen)) for frozen in ((), ("rest",))
    )
    with in_directory(constant) as one, in_directory(kept) as other:
        parameters = {p.name: p.trainable for p in load_artifacts(other).checkpoint.parameters}
        assert parameters == {n: n.startswith("top") for n in NAMES}
        plans = [compile_model(folder, {}, {}) for folder in (one, other)]
    assert plans[0].plan.persistent_bytes == plans[1].plan.persistent_bytes
    assert [a.peak for a in plans[0].arenas] == [a.peak for a in plans[1].arenas]
    assert len(plans[1].plan_bytes) < len(plans[0].plan_bytes)
    assert operators(artifacts_of(DEEP, Recipe("mse", train=("top_*",)), registry())) == operators(
        artifacts_of(DEEP, Recipe("mse", train=("top_*",), frozen=("rest",)), registry())
    )


def test_the_rest_is_what_does_not_train():
    def split(**chosen) -> tuple[list[str], list[str]]:
        parameters = artifacts_of(DEEP, Recipe("mse", **chosen), registry()).checkpoint.parameters
        return [p.name for p in parameters if p.trainable], [p.name for p in parameters if not p.trainable]

    assert split(frozen=("rest",)) == (list(NAMES), [])
    assert split(frozen=("body_w", "rest")) == (list(NAMES[1:]), ["body_w"])
    assert split(train=("bias",), frozen=("rest",)) == (
        ["head_bias", "top_bias"],
        ["body_w", "head_w", "top_w"],
    )


def test_scales_of_a_resize_are_no_parameters():
    text = """m (float[n,2,4,4] x) => (float[n,2,8,8] y) {
        a = Mul (x, w) y = Resize <mode="nearest"> (a, , scales) }"""
    scales = np.array([1, 1, 2, 2], np.float32)
    model = source(text, {"w": uniform((2, 4, 4))[0], "scales": scales})
    assert trainer_of(model, Recipe("mse", frozen=("rest",))).trained == ("w",)
    assert refusal(Recipe("mse", frozen=("scales",)), model) == [
        "--frozen scales: no parameter of model.onnx matches. There are: w."
    ]


def test_values_may_be_returned_once_only():
    bundle = artifacts_of(DEEP, Recipe("mse", outputs=("b", "loss", "b")), registry())
    assert bundle.evaluation is not None and bundle.evaluation.outputs == ("loss", "b")


def test_nothing_of_an_earlier_set_stays(tmp_path):
    recipe = Recipe("mse", nominal=True, ort=True)
    for prefix in ("", "net_"):
        assert write_artifacts(make_artifacts(DEEP, recipe, prefix=prefix), tmp_path) == ()
    (tmp_path / "notes.txt").write_text("mine")
    before = {p.name for p in tmp_path.iterdir()}
    removed = write_artifacts(make_artifacts(DEEP, Recipe("mse", optimizer="none")), tmp_path)
    models = ("training_model", "eval_model", "optimizer_model")
    assert set(removed) == {
        "optimizer_model.onnx",
        "nominal_checkpoint",
        *(m + kind for m in models for kind in (".ort", ".required_operators.config")),
    }
    assert {p.name for p in tmp_path.iterdir()} == before - set(removed)
    assert write_artifacts(make_training_model(DEEP, Recipe("mse"), registry()), tmp_path) == ()


def test_lists_of_numbers_in_constant_nodes_train():
    model = source(
        "m (float[n,2] x) => (float[n,2] y) { w = Constant <value_floats = [1.5, -2.0]> () y = Mul (x, w) }",
        {},
    )
    made = artifacts_of(model, Recipe(loss="mse"), registry())
    (parameter,) = made.checkpoint.parameters
    assert parameter.name == "w"
    np.testing.assert_array_equal(parameter.data, np.array([1.5, -2.0], np.float32))
