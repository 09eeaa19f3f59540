"""Differentiation of whole graphs, against finite differences in float64."""

from __future__ import annotations

import numpy as np
import pytest
from authored import differences, operators, source, stepped, trainer_of, uniform
from case_sets import TRAIN, trainer

from minbuild.authoring import (
    GeneratedArtifacts,
    Recipe,
    Source,
    artifacts_of,
    make_artifacts,
    write_artifacts,
)
from minbuild.authoring.autodiff.backward import differentiate
from minbuild.authoring.autodiff.gradcheck import checked_gradients
from minbuild.authoring.optimizers import OPTIMIZERS, OptimizerOptions
from minbuild.errors import VerificationFailed
from minbuild.frontend.artifacts import load_artifacts
from minbuild.ir import Checkpoint, ElementType, Graph, Node, Parameter, Role, TrainingArtifacts
from minbuild.ops import registry
from minbuild.passes.lowering.lower import lower
from minbuild.planning.estimate import estimate
from minbuild.reference.interpreter import ReferenceTrainer

W, V = uniform((4, 3), (3, 3))
X, T = uniform((5, 4), (5, 3))
EXACT = 1e-6  # of what finite differences say


def test_gradients_of_a_shared_parameter_add_up():
    tied = source(
        "m (float[n,4] x) => (float[n,3] y) { a = MatMul (x, w) b = Tanh (a) c = MatMul (b, v) d = Mul (c, b) "
        "y = MatMul (d, v) }",
        {"w": W, "v": V},
    )
    made = trainer_of(tied, Recipe(loss="mse"))
    assert max(differences(made, X, T).values()) < EXACT
    assert "Sum" in operators(made.artifacts)


def test_gradients_stop_where_they_are_told_to():
    text = "m (float[n,4] x) => (float[n,3] y) { a = MatMul (x, w) b = Identity (a) y = Mul (a, b) }"
    model = source(text, {"w": W})
    free, stopped = (trainer_of(model, Recipe(loss="mse", stops=stops)) for stops in ((), ("b",)))
    for made in (free, stopped):
        stepped(made, X, T)
    # y = a * b with b = a: half of the derivative comes by way of b.
    np.testing.assert_allclose(stopped.gradients["w"] * 2, free.gradients["w"])


def test_no_gradient_flows_along_indices_and_comparisons():
    text = """m (float[n,4] x) => (float[n,3] y) {
        a = MatMul (x, w) zero = Constant <value = float {0}> () above = Greater (a, zero) part = Cast <to=1> (above)
        best = ArgMax <axis=1, keepdims=1> (a) picked = GatherElements <axis=1> (a, best)
        b = Mul (a, part) y = Add (b, picked) }"""
    made = trainer_of(source(text, {"w": W}), Recipe(loss="mse"))
    assert differences(made, X, T)["w"] < EXACT


def test_functions_and_constant_conditions_are_taken_apart():
    text = """m (float[n,4] x) => (float[n,3] y) <bool yes = {1}> {
        a = MatMul (x, w) b = own.twice (a)
        y = If (yes) <
            then_branch = first () => (float[n,3] c) { c = Tanh (b) },
            else_branch = other () => (float[n,3] d) { d = MatMul (b, v) }>
    }"""
    function = '<opset_import: ["" : 17], domain: "own"> twice (t) => (u) { s = Sin (t) u = Mul (s, t) }'
    made = trainer_of(source(text, {"w": W, "v": V}, functions=function), Recipe(loss="mse", train=("w",)))
    assert differences(made, X, T)["w"] < EXACT


def test_parameters_of_branches_train(tmp_path):
    """Each only where its branch is taken; the evaluation model keeps the node as it is."""
    text = """m (float[n,4] x) => (float[n,3] y) <bool yes = {CHOICE}> {
        a = MatMul (x, w)
        y = If (yes) <
            then_branch = first () => (float[n,3] c) { c = MatMul (a, v) },
            else_branch = other () => (float[n,3] d) { d = MatMul (a, u) }>
    }"""
    for choice, reached, lost in (("1", "v", "u"), ("0", "u", "v")):
        model = source(text.replace("CHOICE", choice), {"w": W, "v": V, "u": V + 1})
        made = trainer_of(model, Recipe(loss="mse"))
        assert set(made.trained) == {"w", reached} and lost in made.artifacts.notes[0]
        assert max(differences(made, X, T).values()) < EXACT
        write_artifacts(make_artifacts(model, Recipe(loss="mse", train=("last:1",))), tmp_path / choice)
        read = ReferenceTrainer(load_artifacts(tmp_path / choice))
        assert read.trained == (reached,)
        assert float(read.eval_step(X, T)[0]) == pytest.approx(stepped(read, X, T))


def test_gradients_have_gradients():
    """The squared norm of a gradient, differentiated again: what penalties on gradients need."""
    text = """m (float[n,4] x) => (float l) {
        a = MatMul (x, w) b = Tanh (a) c = Relu (b) d = Softmax <axis=1> (c) e = Mul (d, b)
        l = ReduceMean <keepdims=0> (e) }"""
    model, operators = source(text, {"w": W}), registry()
    first = differentiate(model.graph, "l", ("w",), operators, 17)
    square = Node("Mul", "", 17, "square", (first.gradients["w"],) * 2, ("squares",), {})
    norm = Node("ReduceSum", "", 17, "norm", ("squares",), ("norm",), {"keepdims": 0})
    graph = Graph(
        "training_model.onnx",
        (*first.nodes, square, norm),
        model.graph.inputs,
        {},
        ("norm",),
        {**model.graph.initializers, **first.initializers},
    )
    second = differentiate(graph, "norm", ("w",), operators, 17)
    buffers = dict.fromkeys(("w", "w_grad.accumulation.buffer"), second.types["w"])
    flag = Node(
        "InPlaceAccumulatorV2",
        "com.microsoft",
        1,
        "gather",
        ("w_grad.accumulation.buffer", second.gradients["w"]),
        ("done",),
        {},
    )
    constants = {n: a for n, a in {**graph.initializers, **second.initializers}.items() if n != "w"}
    training = Graph(
        graph.source, (*second.nodes, flag), {**graph.inputs, **buffers}, {}, ("norm",), constants
    )
    parameter = Parameter("w", ElementType.FLOAT, W.shape, True, W)
    made = ReferenceTrainer(TrainingArtifacts(training, None, None, Checkpoint((parameter,)), {}))
    assert differences(made, X)["w"] < 1e-5


@pytest.mark.parametrize(
    ("kind", "name", "tolerance"),
    [(np.float64, "double", 1e-12), (np.float16, "float16", 3e-3)],
    ids=["double", "half"],
)
def test_models_of_other_precisions_train(kind, name, tolerance, tmp_path):
    """Doubles stay doubles. Halves compute as halves and keep their parameters in float, as checkpoints do."""
    text = f"m ({name}[n,4] x) => ({name}[n,3] y) {{ a = MatMul (x, w) b = Tanh (a) y = MatMul (b, v) }}"
    model = source(text, {"w": W.astype(kind), "v": V.astype(kind)})
    _placed(tmp_path, make_artifacts(model, Recipe(loss="mse", optimizer="sgd")))
    exact = trainer_of(source(text.replace(name, "float"), {"w": W, "v": V}), Recipe(loss="mse"))
    wanted = stepped(exact, X.astype(kind), T.astype(kind))
    built = trainer(tmp_path)
    session = built.session((tmp_path / "checkpoint").read_bytes())
    session.learning_rate = 0.1
    loss = session.run(TRAIN, [X.astype(kind), T.astype(kind)])[0]
    assert loss.dtype == kind and float(loss) == pytest.approx(wanted, rel=tolerance)
    for parameter in ("w", "v"):
        found, right = session.gradient(parameter), exact.gradients[parameter]
        assert found.dtype == (np.float32 if kind is np.float16 else kind)
        np.testing.assert_allclose(found, right, atol=tolerance * np.abs(right).max())
    before = session.parameter("w").copy()
    session.optimizer_step()
    np.testing.assert_allclose(session.parameter("w"), before - 0.1 * session.gradient("w"), rtol=1e-6)


def _placed(folder, made):
    """Artifacts with what a case has beside them."""
    write_artifacts(made, folder)
    (folder / "meta.json").write_text("{}")
    np.savez(folder / "reference.npz", loss=np.zeros(1))
    return folder


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_double_models_train_with_every_optimizer(optimizer, tmp_path):
    """As in float64, through a checkpoint that keeps their moments."""
    text = "m (double[n,4] x) => (double[n,3] y) { a = MatMul (x, w) b = Tanh (a) y = MatMul (b, v) }"
    model = source(text, {"w": W.astype(np.float64), "v": V.astype(np.float64)})
    options = OptimizerOptions(max_norm=1.0)
    recipe = Recipe(loss="mse", optimizer=optimizer, optimizer_options=options)
    built = trainer(_placed(tmp_path, make_artifacts(model, recipe)))
    session = built.session((tmp_path / "checkpoint").read_bytes())
    exact = ReferenceTrainer(load_artifacts(tmp_path))
    batch = [X.astype(np.float64), T.astype(np.float64)]
    for _ in range(3):
        session = built.session(session.checkpoint(include_optimizer=True))
        session.learning_rate, exact.learning_rate = 0.125, 0.125
        session.run(TRAIN, batch)
        stepped(exact, *batch)
        session.optimizer_step()
        exact.optimizer_step()
        session.lazy_reset_grad()
    for name in ("w", "v"):
        # What is compared with rounds powers of Adam's factors to float32, as ONNX Runtime does.
        tolerance = 1e-6 if optimizer in ("adam", "adamw") else 1e-9
        np.testing.assert_allclose(session.parameter(name), exact.parameters[name], rtol=tolerance)


# --------------------------------------------------------------------------------------------- before training

SMALL = source("m (float[n,4] x) => (float[n,3] y) { a = MatMul (x, w) y = Tanh (a) }", {"w": W})


def test_the_gradient_check_agrees_with_right_gradients():
    made = make_artifacts(SMALL, Recipe(loss="cross-entropy"))
    assert [line.split(":")[0] for line in checked_gradients(made)] == [
        "gradient check, all trained parameters together"
    ]


@pytest.mark.parametrize("kind", [1, 10, 16], ids=["float", "float16", "bfloat16"])
def test_the_gradient_check_sees_through_rounding(kind):
    text = f"""m (float[n,4] x) => (float[n,3] y) {{
        a = MatMul (x, w) b = Cast <to={kind}> (a) c = Tanh (b) y = Cast <to=1> (c) }}"""
    assert checked_gradients(make_artifacts(source(text, {"w": W}), Recipe(loss="mse")))
    halves = source(
        "m (float16[n,4] x) => (float16[n,3] y) { y = MatMul (x, w) }", {"w": W.astype(np.float16)}
    )
    assert checked_gradients(make_artifacts(halves, Recipe(loss="mse")))


QUANTIZED = "c = QuantizeLinear (a, scale, zero) d = DequantizeLinear (c, scale, zero)"
MASKED = "e = Where (hidden, lowest, none) c = Add (a, e) d = Softmax (c)"  # all of a row, as on padding
CONSTANTS = {
    "scale": np.array(0.25, np.float32),
    "zero": np.array(3, np.int8),
    "hidden": np.full(3, True),
    "lowest": np.array(np.finfo(np.float32).min),
    "none": np.array(0, np.float32),
}


def smoothed(between: str) -> Source:
    text = (
        f"m (float[n,4] x) => (float[n,3] y) {{ a = MatMul (x, w) {between} b = Tanh (d) y = MatMul (b, v) }}"
    )
    return source(text, {"w": W, "v": V, **CONSTANTS})


@pytest.mark.parametrize("between", [QUANTIZED, MASKED], ids=["quantised", "masked"])
def test_the_gradient_check_sees_through_straight_through_gradients_and_masks(between):
    assert len(checked_gradients(make_artifacts(smoothed(between), Recipe(loss="mse")))) == 1


@pytest.mark.parametrize(
    "between", ["d = Identity (a)", QUANTIZED, MASKED], ids=["plain", "quantised", "masked"]
)
def test_the_gradient_check_names_the_parameters_whose_gradients_are_wrong(between):
    import onnx

    two = smoothed(between)
    made = make_artifacts(two, Recipe(loss="mse"))
    model = onnx.load_from_string(made.files["training_model.onnx"])
    wrong = next(node for node in model.graph.node if node.op_type == "TanhGrad")
    wrong.op_type, wrong.domain = "Mul", ""  # only what is below tanh hears of it
    spoilt = GeneratedArtifacts({**made.files, "training_model.onnx": model.SerializeToString()}, ())
    with pytest.raises(VerificationFailed) as refused:
        checked_gradients(spoilt)
    lines = str(refused.value).splitlines()[1:]
    assert [line.split(":")[0] for line in lines] == ["gradient check, w"]


def test_the_estimate_counts_what_the_plan_counts():
    lines = "\n".join(estimate(make_artifacts(SMALL, Recipe(loss="mse")), largest={"n": 8}))
    assert "trained parameters: 64 bytes" in lines  # 48 of them, and room for whole vectors
    assert "temporaries of train at n 8" in lines and "kernels: " in lines


def test_models_with_a_name_twice_are_differentiated_and_written_with_each_once():
    text = """m (float[n,4] x) => (float[n,3] y) {
        [same] a = MatMul (x, w) [same] b = Tanh (a) [same] y = MatMul (b, v) }"""
    model = source(text, {"w": W, "v": V})
    assert [node.name for node in model.graph.nodes] == ["same"] * 3
    artifacts = artifacts_of(model, Recipe(loss="mse"), registry())
    names = [node.name for node in artifacts.training.nodes]
    outputs = [name for node in artifacts.training.nodes for name in node.outputs]
    assert len(set(names)) == len(names) and len(set(outputs)) == len(outputs)
    assert max(differences(ReferenceTrainer(artifacts), X, T).values()) < EXACT


def test_running_statistics_of_half_models_are_kept_in_float():
    text = """m (float16[n,4] x) => (float16[n,3] y) {
        a = MatMul (x, w) y, m, s = BatchNormalization <training_mode = 1> (a, scale, shift, mean, spread) }"""
    ones = np.ones(3, np.float16)
    weights = {"w": W.astype(np.float16), "scale": ones, "shift": ones * 0, "mean": ones * 0, "spread": ones}
    artifacts = artifacts_of(source(text, weights), Recipe(loss="mse"), registry())
    roles = {v.name: v.role for v in lower(artifacts, registry(), {}).parameters}
    assert roles["mean"] is roles["spread"] is Role.BUFFER and roles["w"] is Role.PARAMETER
    assert {p.element for p in artifacts.checkpoint.parameters} == {ElementType.FLOAT}
