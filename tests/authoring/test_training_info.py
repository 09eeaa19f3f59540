"""Models that carry their own training: read, run by the float64 interpreter and on the device, and refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import trainers
from commands import command_fixture  # noqa: F401
from onnx import TensorProto
from training_models import (
    Info,
    Trainable,
    assert_close,
    check_steps,
    device,
    gradient,
    graph,
    node,
    regression,
    regression_gradients,
    single,
    with_momentum,
)

from minbuild.errors import BadInput, Unsupported
from minbuild.ops import registry
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.training.api import CheckpointState, Module, Optimizer
from minbuild.training.library import EVAL, TRAIN, TrainerError

RANDOM = np.random.default_rng(11)
X, T = (RANDOM.standard_normal(s).astype(np.float32) for s in ((5, 4), (5, 3)))
# ----------------------------------------------------------------------------------------------------- steps


def test_momentum_trains_as_computed_by_hand(tmp_path):
    artifacts = with_momentum().artifacts(tmp_path)
    assert artifacts.training.outputs == ("loss", "y")
    assert [p.name for p in artifacts.checkpoint.parameters] == ["W", "b", "vW", "vb", "T"]
    found = check_steps(artifacts, tmp_path, X, T)
    start = {p.name: np.asarray(p.data, np.float64) for p in artifacts.checkpoint.parameters}
    w, b, vw, vb = (start[n] for n in ("W", "b", "vW", "vb"))
    for step in range(3):
        loss, y, dw, db = regression_gradients(X.astype(float), T.astype(float), w, b)
        beta = 0.8 if step else 1.0
        dw, db = dw + 0.01 * w, db + 0.01 * b
        vw, vb = 0.9 * vw + beta * dw, 0.9 * vb + beta * db
        w, b = w - 0.1 * (dw + 0.9 * vw), b - 0.1 * (db + 0.9 * vb)
    wanted = {"loss": loss, "y": y, "W": w, "b": b, "vW": vw, "vb": vb, "T": np.array(3)}
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-8, err_msg=name)


def test_initialization_resets_what_it_binds_and_evaluation_is_the_inference_graph(tmp_path):
    artifacts = with_momentum().artifacts(tmp_path)
    exact, session = ReferenceTrainer(artifacts), device(artifacts, tmp_path)
    for _ in range(2):
        exact.train_step(X, T)
        session.run(TRAIN, (X, T))
    kept = session.parameter("b").copy()
    exact.initialize()
    session.initialize()
    first = session.parameter("W").copy()
    assert_close(first, exact.parameters["W"])
    assert first.std() == pytest.approx(0.5, rel=0.5)
    assert session.parameter("T") == 0
    assert np.array_equal(session.parameter("b"), kept)
    (y,) = session.run(EVAL, (X,))
    assert_close(y, regression_gradients(X, T, first, kept)[1])
    assert_close(y, exact.eval_step(X)[0])
    session.run(TRAIN, (X, T))
    assert not np.array_equal(session.parameter("W"), first)


def test_a_model_without_initialization_cannot_be_initialized(tmp_path):
    artifacts = regression([node("Sub", "W dW", "W1")], "W=W1", {}).artifacts(tmp_path)
    with pytest.raises(TrainerError, match="unsupported"):
        device(artifacts, tmp_path).initialize()
    with pytest.raises(BadInput, match="no training information that says how"):
        ReferenceTrainer(artifacts).initialize()


def test_entries_follow_one_another_and_see_each_others_updates(tmp_path):
    """Block coordinate descent: W first, then b at the new W."""
    inference = regression([], "", {}).inference
    loss = [node("Sub", "y t", "d"), node("Mul", "d d", "dd"), node("ReduceMean", "dd", "loss", keepdims=0)]
    infos = []
    for variable, other in (("W", "b"), ("b", "W")):
        step = [
            gradient(variable, f"{other} x t", "loss", "g"),
            node("Mul", "rate g", "rg"),
            node("Sub", f"{variable} rg", "new"),
        ]
        algorithm = graph([*loss, *step], {"t": ["batch", 3]}, "loss new", {"rate": single(0.5)})
        infos.append(Info(algorithm, f"{variable}=new"))
    artifacts = Trainable(inference, infos).artifacts(tmp_path)
    assert artifacts.training.outputs == ("loss", "y", "loss (2)")
    start = {p.name: np.asarray(p.data, np.float64) for p in artifacts.checkpoint.parameters}
    found = check_steps(artifacts, tmp_path, X, T, steps=1)
    before, _, dw, _ = regression_gradients(X.astype(float), T.astype(float), start["W"], start["b"])
    w = start["W"] - 0.5 * dw
    between, _, _, db = regression_gradients(X.astype(float), T.astype(float), w, start["b"])
    wanted = {"loss": before, "W": w, "loss (2)": between, "b": start["b"] - 0.5 * db}
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)


def test_all_new_values_are_computed_from_the_old_ones(tmp_path):
    """Two variables swap, a third follows the first, and what is returned is a view of what was there before."""
    a, b, c = (np.full(3, k, np.float32) for k in (1, 2, 3))
    inference = graph(
        [node("Add", "x a", "y")], {"x": [3]}, "y", {"a": a, "b": b, "c": c, "n": np.array([5, 6])}
    )
    swap = [
        node("Identity", "b", "a1"),
        node("Identity", "a", "b1"),
        node("Add", "a b", "c1"),
        node("Identity", "n", "was"),
        node("Add", "n n", "n1"),
    ]
    artifacts = Trainable(
        inference, [Info(graph(swap, {}, "a1 b1 c1 was n1"), "a=a1 b=b1 c=c1 n=n1")]
    ).artifacts(tmp_path)
    found = check_steps(artifacts, tmp_path, np.zeros(3, np.float32), steps=1)
    assert (found["a"][0], found["b"][0], found["c"][0]) == (2, 1, 3)
    assert found["was"].tolist() == [5, 6]
    assert found["n"].tolist() == [10, 12]


def test_updates_are_written_where_the_variables_are(tmp_path):
    operators = registry()
    plan = trainers.plan_of(with_momentum().artifacts(tmp_path), operators)
    train = next(r for r in plan.routines if r.name == "train")
    assert not [k for s in train.steps for k in [plan.kernels[s.kernel].symbol] if k.startswith("copy")]
    assert not plan.trainable_bytes


def test_running_statistics_move_with_their_bindings(tmp_path):
    """BatchNormalization in training mode; evaluation runs it in inference mode and says so."""
    state = {"s": np.ones(4), "o": np.zeros(4), "mean": np.zeros(4), "var": np.ones(4)}
    inference = graph(
        [node("BatchNormalization", "x s o mean var", "y mean1 var1", training_mode=1, momentum=0.7)],
        {"x": ["batch", 4]},
        "y mean1 var1",
        {n: x.astype(np.float32) for n, x in state.items()},
    )
    algorithm = graph(
        [
            node("Mul", "y y", "yy"),
            node("ReduceMean", "yy", "loss", keepdims=0),
            gradient("s", "o x mean var", "loss", "ds"),
            node("Sub", "s ds", "s1"),
        ],
        {},
        "loss s1",
    )
    artifacts = Trainable(inference, [Info(algorithm, "s=s1 mean=mean1 var=var1")]).artifacts(tmp_path)
    found = check_steps(artifacts, tmp_path, X, steps=1)
    np.testing.assert_allclose(found["mean"], 0.3 * X.mean(0), rtol=1e-6)
    assert "inference mode" in artifacts.notes[0]
    exact = ReferenceTrainer(artifacts)
    (y,) = exact.eval_step(X)
    np.testing.assert_allclose(y, X / np.sqrt(1 + 1e-5), rtol=1e-6)
    assert np.array_equal(exact.parameters["mean"], np.zeros(4))


# -------------------------------------------------------------------------------------------------- Gradient


def outputs_of(nodes: list, outputs: str, batch: Mapping[str, np.ndarray], folder: Path, **state: np.ndarray):
    """What a step of these nodes returns, on the interpreter and on the device."""
    inference = graph([node("Identity", "unused", "y")], {"unused": [1]}, "y")
    algorithm = graph(nodes, {n: x.shape for n, x in batch.items()}, outputs, state)
    artifacts = Trainable(inference, [Info(algorithm)]).artifacts(folder)
    return check_steps(artifacts, folder, np.zeros(1, np.float32), *batch.values(), steps=1)


W3 = np.array([0.5, -1.5, 2.0], np.float32)
CUBED = [node("Mul", "w w", "ww"), node("Mul", "ww w", "www"), node("ReduceSum", "www", "f", keepdims=0)]


def test_gradient_at_other_values_runs_the_part_once_more(tmp_path):
    nodes = [*CUBED, gradient("w", "", "f", "g"), gradient("w", "", "f", "g2", inputs="u")]
    found = outputs_of(nodes, "f g g2", {"w": W3, "u": W3 + 1}, tmp_path)
    np.testing.assert_allclose(found["f"], (W3**3).sum(), rtol=1e-6)
    np.testing.assert_allclose(found["g"], 3 * W3**2, rtol=1e-6)
    np.testing.assert_allclose(found["g2"], 3 * (W3 + 1) ** 2, rtol=1e-6)


def test_values_given_twice_are_independent(tmp_path):
    nodes = [
        node("Mul", "a b", "ab"),
        node("ReduceSum", "ab", "f", keepdims=0),
        gradient("a b", "", "f", "- db", inputs="u u"),
    ]
    found = outputs_of(nodes, "db", {"a": W3, "b": W3, "u": W3 + 1}, tmp_path)
    np.testing.assert_allclose(found["db"], W3 + 1, rtol=1e-6)


def test_gradient_of_a_gradient_is_the_second_derivative(tmp_path):
    nodes = [
        *CUBED,
        gradient("w", "", "f", "g"),
        node("Mul", "g v", "gv"),
        node("ReduceSum", "gv", "s", keepdims=0),
        gradient("w", "v", "s", "h"),
        node("ReduceSum", "h", "hs", keepdims=0),
        gradient("w v", "", "hs", "third mixed"),
    ]
    v = np.array([1.0, 2.0, -3.0], np.float32)
    found = outputs_of(nodes, "h third mixed", {"w": W3, "v": v}, tmp_path)
    np.testing.assert_allclose(found["h"], 6 * W3 * v, rtol=1e-6)
    np.testing.assert_allclose(found["third"], 6 * v, rtol=1e-6)
    np.testing.assert_allclose(found["mixed"], 6 * W3, rtol=1e-6)


def test_gradient_by_an_intermediate_value_and_of_what_is_named_itself(tmp_path):
    nodes = [*CUBED, gradient("ww w", "", "f", "dh dw"), gradient("f", "", "f", "one")]
    with pytest.raises(Unsupported, match="'ww' is computed from 'w'"):
        outputs_of(nodes, "dh dw one", {"w": W3}, tmp_path)
    nodes = [
        node("Exp", "a", "h"),
        node("Mul", "h w", "hw"),
        node("ReduceSum", "hw", "f", keepdims=0),
        gradient("h", "w", "f", "dh"),
        gradient("f", "", "f", "one"),
    ]
    found = outputs_of(nodes, "dh one", {"w": W3, "a": W3}, tmp_path)
    assert np.array_equal(found["dh"], W3)
    assert found["one"] == 1


def test_two_gradients_share_a_loss_with_labels(tmp_path):
    """Its operator is exchanged for one that keeps log-probabilities. The batch has two names, which are one size."""
    weights = {"W": np.eye(4, 3, dtype=np.float32)}
    inference = graph([node("MatMul", "x W", "scores")], {"x": ["N", 4]}, "scores", weights)
    algorithm = graph(
        [
            node("Cast", "t", "labels", to=TensorProto.INT64),
            node("SoftmaxCrossEntropyLoss", "scores labels", "loss"),
            gradient("W", "x t", "loss", "dW"),
            gradient("scores", "t", "loss", "ds"),
            node("Sub", "W dW", "W1"),
        ],
        {"t": ["M"]},
        "loss ds W1",
    )
    artifacts = Trainable(inference, [Info(algorithm, "W=W1")]).artifacts(tmp_path)
    labels = np.array([0, 2, 1, 1, 0], np.float32)
    found = check_steps(artifacts, tmp_path, X, labels, steps=1)
    np.testing.assert_allclose(np.eye(4, 3) - X.T @ found["ds"], found["W"], rtol=1e-5, atol=1e-6)


def test_free_dimensions_of_two_names_become_one(tmp_path):
    model = regression([node("Sub", "W dW", "W1")], "W=W1", {})
    model.infos[0].algorithm.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    artifacts = model.artifacts(tmp_path)
    assert trainers.plan_of(artifacts, registry()).symbols == ("batch",)


# ------------------------------------------------------------------------------------------------- GraphCall


@pytest.mark.parametrize(
    "attributes", [{"input_names": ["x"], "output_names": ["y"]}, {}], ids=["by name", "by position"]
)
def test_graph_call_runs_the_inference_graph(tmp_path, attributes):
    model = regression([], "", {})
    step = [
        node("GraphCall", "x_1", "y_1", graph_name="net", **attributes),
        node("Sub", "y_1 t", "d"),
        node("Mul", "d d", "dd"),
        node("ReduceMean", "dd", "loss", keepdims=0),
        gradient("W", "b x_1 t", "loss", "dW"),
        node("Sub", "W dW", "W1"),
    ]
    algorithm = graph(step, {"x_1": ["batch", 4], "t": ["batch", 3]}, "loss W1")
    artifacts = Trainable(model.inference, [Info(algorithm, "W=W1")]).artifacts(tmp_path)
    assert list(artifacts.training.inputs) == ["x_1", "t", "W"]
    assert artifacts.training.outputs == ("loss",)
    start = np.asarray(artifacts.checkpoint.parameters[0].data, np.float64)
    bias = np.asarray(artifacts.training.initializers["b"], np.float64)
    found = check_steps(artifacts, tmp_path, X, T, steps=1)
    loss, _, dw, _ = regression_gradients(X.astype(float), T.astype(float), start, bias)
    np.testing.assert_allclose(found["loss"], loss, rtol=1e-6)
    np.testing.assert_allclose(found["W"], start - dw, rtol=1e-6)


def test_graph_call_that_does_not_fit_is_refused(tmp_path):
    step = [node("GraphCall", "t", "y_1", graph_name="other", input_names=["q"], output_names=["z"])]
    algorithm = graph(step, {"t": ["batch", 3]}, "y_1")
    with pytest.raises(Unsupported) as refused:
        Trainable(regression([], "", {}).inference, [Info(algorithm)]).artifacts(tmp_path)
    for text in ("graph_name is 'other'", "no input 'q'", "input 'x' is not given", "no output 'z'"):
        assert text in str(refused.value)


# ---------------------------------------------------------------------------------------------------- errors


def test_broken_bindings_are_reported_at_once(tmp_path):
    model = regression([node("Sub", "W dW", "W1")], "W=W1", {})
    model.infos[0].updates = "W=W1 nobody=W1 b=nothing"
    model.infos[0].initialization = graph([node("Neg", "q", "W0")], {"q": [1]}, "W0")
    model.infos[0].resets = "W=W9 b=W0 b=W0"
    model.infos = [*model.infos, Info(graph([node("Neg", "W", "W2")], {}, "W2"), "W=W2")]
    with pytest.raises(BadInput) as refused:
        model.artifacts(tmp_path)
    for text in (
        "variable 'W' is updated by 2 bindings",
        "training_info[0].update_binding: 'nobody' is no initializer",
        "'nothing', the new value of 'b', is no output of the algorithm or the inference graph",
        "'W9', the new value of 'W', is no output of the initialization",
        "takes inputs (q)",
        "'b' is bound 2 times",
    ):
        assert text in str(refused.value)


def test_broken_gradient_rules_are_reported_at_once(tmp_path):
    nodes = [
        *CUBED,
        node("Shape", "w", "shape"),
        node("Mul", "www u", "wu"),
        node("ReduceSum", "wu", "s", keepdims=0),
        gradient("w", "", "nowhere", "g0"),
        gradient("w", "", "www", "g1"),
        gradient("u", "w", "f", "g2"),
        gradient("w", "", "s", "g3"),
        gradient("shape", "w", "f", "g4"),
        gradient("w", "", "f", "g5", inputs="w u"),
        node("Neg", "g0", "n0"),
        gradient("w", "", "n0", "g6"),
    ]
    with pytest.raises(Unsupported) as refused:
        outputs_of(nodes, "g0 g1 g2 g3 g4 g5 g6 n0", {"w": W3, "u": W3}, tmp_path)
    texts = str(refused.value).splitlines()
    for name, text in {
        "g0": "y: 'nowhere' is no value of the graph before this node",
        "g1": "'www' is float[3]; it must be a single real number",
        "g2": "'f' does not depend on 'u'",
        "g3": "'s' depends on 'u' too, which stands in neither xs nor zs",
        "g4": "'shape' is int64; only real numbers",
        "g5": "xs and zs name 1 values, but it has 2 inputs",
    }.items():
        assert any(f"'Gradient of {name}'" in line and text in line for line in texts), name
    assert not any("g6" in line for line in texts), "a consequence of g0 only"


def test_other_broken_models_are_refused(tmp_path):
    wrong = regression([node("ReduceSum", "dW", "W1", keepdims=0)], "W=W1", {})
    artifacts = wrong.artifacts(tmp_path)
    with pytest.raises(Unsupported, match=r"the new value is float\[\], but the variable is float\[4, 3\]"):
        trainers.plan_of(artifacts, registry())
    with pytest.raises(BadInput, match="carries no training information"):
        Trainable(wrong.inference).artifacts(tmp_path)
    clash = regression([], "", {})
    clash.infos = [*clash.infos, Info(graph([node("Neg", "t", "q")], {"t": [7]}, "q"))]
    with pytest.raises(Unsupported, match="different inputs under the name 't'"):
        clash.artifacts(tmp_path)


# --------------------------------------------------------------------------------------------------- command


def test_a_package_trains_by_itself(tmp_path, minbuild):
    model = with_momentum()
    path = model.save(tmp_path / "momentum.onnx")
    scanned = minbuild("scan", path)
    assert scanned.code == 0, scanned.err
    assert "Momentum" in scanned.out
    said = minbuild("reduce", path, "--out", tmp_path / "dist", "--finite-checks", "all")
    assert said.code == 0, said.err
    state = CheckpointState.load_checkpoint(tmp_path / "dist/model/checkpoint")
    module = Module(tmp_path / "dist", state)
    exact = ReferenceTrainer(model.artifacts(tmp_path))
    module.initialize()
    exact.initialize()
    for _ in range(3):
        loss, _ = module(X, T)
        assert_close(loss, exact.train_step(X, T)[0])
    wide = np.tile(X, (8, 1)), np.tile(T, (8, 1))  # more rows than the package makes memory for
    assert_close(module(*wide)[0], exact.train_step(*wide)[0])
    assert state.parameters["T"].data == 4
    assert_close(state.parameters["W"].data, exact.parameters["W"])
    with pytest.raises(TrainerError, match="unsupported"):
        Optimizer(None, module).step()
    lost = np.full_like(X, np.nan)
    before = state.parameters["W"].data
    with pytest.raises(TrainerError, match="bad value"):
        module(lost, T)
    assert np.array_equal(state.parameters["W"].data, before)
    readme = (tmp_path / "dist/README.md").read_text("utf-8")
    assert "mb_initialize(session);" in readme
    assert "mb_lazy_reset_grad" not in readme
    assert "what training steps update" in (tmp_path / "dist/report/report.md").read_text("utf-8")
