"""Several TrainingInfo entries in one model: their order, their own names, initialization in order, GraphCall, and
what is wrong with any of them, said at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trainers
from commands import command_fixture  # noqa: F401
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
)

from minbuild.errors import BadInput, Unsupported
from minbuild.ops import registry
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.training.library import EVAL, TRAIN

RANDOM = np.random.default_rng(21)
X, T = (RANDOM.standard_normal(s).astype(np.float32) for s in ((5, 4), (5, 3)))
INFERENCE = regression([], "", {}).inference
LOSS = [node("Sub", "y t", "d"), node("Mul", "d d", "dd"), node("ReduceMean", "dd", "loss", keepdims=0)]


def descent(variable: str, other: str, count: list, **state: np.ndarray) -> Info:
    """One step of gradient descent on a variable at rate `rate`; `count` are nodes behind it."""
    nodes = [
        *LOSS,
        gradient(variable, f"{other} x t", "loss", "g"),
        node("Mul", "rate g", "rg"),
        node("Sub", f"{variable} rg", "new"),
        *count,
    ]
    made = "loss new" + " n1" * bool(count)
    return Info(graph(nodes, {"t": ["batch", 3]}, made, state), f"{variable}=new" + " n=n1" * bool(count))


def counting(name: str) -> list:
    return [node("Add", f"{name} one", "n1")]


def test_each_algorithm_has_initializers_of_its_own(tmp_path):
    """`rate` is another number in each; `n` counts in the second and is a constant in the first and third."""
    one = np.array(1, np.float32)
    infos = [
        descent("W", "b", [], rate=single(0.5)),
        descent("b", "W", counting("n"), rate=single(0.25), n=single(7), one=one),
    ]
    fixed = graph([node("Mul", "n one", "same")], {}, "same", {"n": single(40), "one": single(2)})
    artifacts = Trainable(INFERENCE, [Info(fixed), *infos, Info(fixed)]).artifacts(tmp_path)
    start = {p.name: np.asarray(p.data, np.float64) for p in artifacts.checkpoint.parameters}
    assert start["n"] == 7
    found = check_steps(artifacts, tmp_path, X, T, steps=1)
    x, t = X.astype(float), T.astype(float)
    w = start["W"] - 0.5 * regression_gradients(x, t, start["W"], start["b"])[2]
    b = start["b"] - 0.25 * regression_gradients(x, t, w, start["b"])[3]
    np.testing.assert_allclose(found["W"], w, rtol=1e-6)
    np.testing.assert_allclose(found["b"], b, rtol=1e-6)
    assert found["n"] == 8
    assert found["same"] == found["same (4)"] == 80


def test_initializations_run_in_order_and_the_last_one_holds(tmp_path):
    def filled(value: float, name: str) -> list:
        return [node("Constant", "", "s", value_ints=[4, 3]), node("ConstantOfShape", "s", "z")] + [
            node("Constant", "", "k", value_float=value),
            node("Add", "z k", name),
        ]

    infos = [descent("W", "b", [], rate=single(0.5)), descent("b", "W", [], rate=single(0.5))]
    infos[0].initialization, infos[0].resets = graph(filled(2.0, "W0"), {}, "W0"), "W=W0"
    again = [*filled(3.0, "W0"), node("Constant", "", "b0", value_floats=[1.0, 2.0, 3.0])]
    infos[1].initialization, infos[1].resets = graph(again, {}, "W0 b0"), "W=W0 b=b0"
    artifacts = Trainable(INFERENCE, infos).artifacts(tmp_path)
    exact, session = ReferenceTrainer(artifacts), device(artifacts, tmp_path)
    for _ in range(2):
        session.run(TRAIN, (X, T))
        session.initialize()
        assert np.array_equal(session.parameter("W"), np.full((4, 3), 3.0))
        assert np.array_equal(session.parameter("b"), [1, 2, 3])
    exact.initialize()
    assert_close(session.run(EVAL, (X,))[0], exact.eval_step(X)[0])


def test_an_algorithm_calls_the_inference_graph_twice(tmp_path):
    """Consistency: both views of the batch should be predicted alike; each call has names of its own."""
    call = {"input_names": ["x"], "output_names": ["y"], "graph_name": "net"}
    step = [
        node("GraphCall", "u", "yu", **call),
        node("GraphCall", "v", "yv", **call),
        node("Sub", "yu yv", "e"),
        node("Mul", "e e", "ee"),
        node("ReduceMean", "ee", "loss", keepdims=0),
        gradient("W", "b u v", "loss", "dW"),
        node("Sub", "W dW", "W1"),
    ]
    algorithm = graph(step, {"u": ["batch", 4], "v": ["batch", 4]}, "loss W1")
    artifacts = Trainable(INFERENCE, [Info(algorithm, "W=W1")]).artifacts(tmp_path)
    assert tuple(artifacts.training.inputs)[:2] == ("u", "v")
    start = {p.name: np.asarray(p.data, np.float64) for p in artifacts.checkpoint.parameters}
    u, v = X.astype(float), X.astype(float) * 0.5 + 0.25
    found = check_steps(artifacts, tmp_path, X, v.astype(np.float32), steps=1)
    bias = {n.name: n for n in INFERENCE.initializer}["b"]
    b = np.frombuffer(bias.raw_data, np.float32).astype(float)
    yu, yv = (np.tanh(each @ start["W"] + b) for each in (u, v))
    de = 2 * (yu - yv) / yu.size
    dw = u.T @ (de * (1 - yu**2)) - v.T @ (de * (1 - yv**2))
    np.testing.assert_allclose(found["loss"], np.mean((yu - yv) ** 2), rtol=1e-5)
    np.testing.assert_allclose(found["W"], start["W"] - dw, rtol=1e-5, atol=1e-6)


STATISTICS = {"s": np.ones(4), "o": np.full(4, 0.5), "mean": np.full(4, 0.25), "var": np.full(4, 2.0)}


def normalized(*infos: Info) -> Trainable:
    """Batch normalization in training mode, its running statistics among the outputs."""
    names = "y mean1 var1"
    nodes = [node("BatchNormalization", "x s o mean var", names, training_mode=1, momentum=0.75)]
    state = {n: x.astype(np.float32) for n, x in STATISTICS.items()}
    return Trainable(graph(nodes, {"x": ["batch", 4]}, names, state), infos)


def scaling(variable: str, other: str, bindings: str, further: str = "", *more: Any) -> Info:
    """A step of descent on one of its parameters."""
    loss = [
        node("Mul", "y y", "yy"),
        node("Mul", "yy yy", "y4"),
        node("ReduceMean", "y4", "loss", keepdims=0),
    ]
    step = [gradient(variable, f"{other} x mean var", "loss", "g"), node("Sub", f"{variable} g", "new")]
    return Info(graph([*loss, *step, *more], {}, f"loss new {further}"), f"{variable}=new {bindings}")


BOTH = "mean=mean1 var=var1"
ONE = {
    "in the only entry": [scaling("s", "o", BOTH)],
    "in the first entry": [scaling("s", "o", BOTH), scaling("o", "s", "")],
    "in the second entry": [scaling("s", "o", ""), scaling("o", "s", BOTH)],
    "beside a reader": [scaling("s", "o", BOTH, "old", node("ReduceSum", "mean", "old", keepdims=0))],
}


@pytest.mark.parametrize("infos", ONE.values(), ids=ONE)
def test_running_statistics_change_once_where_they_are_bound(infos, tmp_path):
    found = check_steps(normalized(*infos).artifacts(tmp_path), tmp_path, X, steps=1)
    batch = X.astype(float)
    np.testing.assert_allclose(found["mean"], 0.75 * 0.25 + 0.25 * batch.mean(0), rtol=1e-6)
    np.testing.assert_allclose(found["var"], 0.75 * 2.0 + 0.25 * batch.var(0), rtol=1e-6)
    assert found.get("old", 1) == 1, "a reader sees what was there before"


def test_running_statistics_that_are_not_bound_are_results(tmp_path):
    artifacts = normalized(
        scaling("s", "o", "var=twice", "twice", node("Add", "var1 var1", "twice"))
    ).artifacts(tmp_path)
    found = check_steps(artifacts, tmp_path, X, steps=1)
    variance = 0.75 * 2.0 + 0.25 * X.astype(float).var(0)
    np.testing.assert_allclose(found["mean1"], 0.75 * 0.25 + 0.25 * X.astype(float).mean(0), rtol=1e-6)
    np.testing.assert_allclose(found["var1"], variance, rtol=1e-5)
    np.testing.assert_allclose(found["var"], 2 * variance, rtol=1e-5)


def test_what_is_wrong_in_any_graph_is_said_at_once(tmp_path, minbuild):
    """With the entry it is in, and once for the inference graph, which stands before every algorithm."""
    inference = graph([node("Neg", "lost", "y")], {"x": ["batch", 4]}, "y", {"W": np.ones(3, np.float32)})
    infos = [
        Info(graph([node("Neg", "gone", "q")], {}, "q")),
        Info(
            graph([node("Neg", "W", "q")], {}, "q"), "W=p", graph([node("Neg", "W", "W0")], {}, "W0"), "W=W0"
        ),
    ]
    with pytest.raises(BadInput) as refused:
        Trainable(inference, infos).artifacts(tmp_path)
    texts = str(refused.value).splitlines()
    path = tmp_path / "model.onnx"
    for start, text in (
        (f"{path}: training_info[1].update_binding: ", "'p', the new value of 'W', is no output"),
        (f"{path}: node 'Neg of y'", "reads 'lost'"),
        (f"{path}, training_info[0].algorithm: node 'Neg of q'", "reads 'gone'"),
        (f"{path}, training_info[1].initialization: node 'Neg of W0'", "reads 'W'"),
    ):
        assert any(t.startswith(start) and text in t for t in texts), (start, texts)
    assert len(texts) == 4
    said = minbuild("scan", path)
    assert said.code == 2
    assert all(t in said.err.replace("\n", "") for t in ("'lost'", "'gone'"))


def test_rules_of_gradient_are_checked_in_every_entry(tmp_path, minbuild):
    bad = [Info(graph([gradient("W", "x", name, "g")], {}, "g")) for name in ("p", "q")]
    model = Trainable(INFERENCE, [bad[0], descent("W", "b", [], rate=single(0.5)), bad[1]])
    with pytest.raises(Unsupported) as refused:
        model.artifacts(tmp_path)
    first, second = str(refused.value).splitlines()
    assert first.startswith("model.onnx, training_info[0].algorithm: node 'Gradient of g'")
    assert second.startswith("model.onnx, training_info[2].algorithm: node 'Gradient of g'")
    assert minbuild("scan", tmp_path / "model.onnx").code == 3


def test_new_values_of_another_shape_are_told_by_entry(tmp_path):
    infos = [
        Info(graph([node("Transpose", "W", "W1")], {}, "W1"), "W=W1"),
        Info(graph([node("ReduceSum", "b", "b1", keepdims=0)], {}, "b1"), "b=b1"),
    ]
    infos[1].initialization, infos[1].resets = (
        graph([node("Constant", "", "b0", value_float=1.0)], {}, "b0"),
        "b=b0",
    )
    with pytest.raises(Unsupported) as refused:
        trainers.plan_of(Trainable(INFERENCE, infos).artifacts(tmp_path), registry())
    first, second, third = str(refused.value).splitlines()
    assert "'training_info[0]/update of W'" in first and "float[3, 4]" in first
    assert "'training_info[1]/update of b'" in second and "float[]" in second
    assert "'training_info[1]/reset of b'" in third and "float[]" in third
