"""Selections by masks that are data: the same numbers as of elements that were really selected, and clear refusals."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from authored import differences, source, trainer_of, uniform
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from minbuild.authoring import Recipe, artifacts_of, write_artifacts
from minbuild.authoring import make_artifacts as made_of
from minbuild.errors import Unsupported
from minbuild.ops import registry
from minbuild.training.api import CheckpointState, Module, Optimizer

WEIGHTS = dict(zip(("w", "v", "b"), uniform((4, 3), (3, 2), (3,)), strict=True))
WEIGHTS |= {"zero": np.array(0.0, np.float32), "one": np.array(1.0, np.float32)}
WEIGHTS |= {f"i{n}": np.array(n) for n in range(3)}
WEIGHTS |= {
    "a0": np.array([0]),
    "a1": np.array([1]),
    "minus": np.array([-1]),
    "two": np.array(2.0, np.float32),
    "four": np.array([0, 1, 2, 0]),
    "turn": np.array([0, 2, 1]),
    "three": np.array([3]),
    "limit": np.array([0.2], np.float32),
    "zero1": np.array([0], np.float32),
}


def model(body: str, output: str = "y", shape: str = "1") -> str:
    return f"m (float[n,4] x) => (float[{shape}] {output}) {{ h = MatMul (x, w) {body} }}"


# Selections as torch's exporters write x[mask], and what models do with them.
MASK = "k = Greater (h, zero) z = NonZero (k) t = Transpose <perm = [1, 0]> (z) s = GatherND (h, t)"
ROWS = "m1 = Gather <axis = 1> (h, i0) k = Greater (m1, zero) z = NonZero (k) r = Squeeze (z, a0) s = Gather (h, r)"
# The newer exporter assigns rows by the elements of their mask, and of values brought to the shape of what is selected.
ELEMENTS = (
    "k2 = Unsqueeze (k, a1) hs = Shape (h) kk = Expand (k2, hs) zz = NonZero (kk) tt = Transpose <perm = [1, 0]> (zz) "
    "kf = Reshape (k, minus) kc = Cast <to = 7> (kf) n = ReduceSum <keepdims = 1> (kc) c = Concat <axis = 0> (n, three)"
)
LOSS = "y0 = ReduceMean <keepdims = 0> (h) y1 = Mul (s, y0) y = Reshape (y1, minus)"
MODELS = {
    "sum": f"{MASK} y = ReduceSum <keepdims = 1> (s)",
    "mean": f"{MASK} e = Exp (s) y = ReduceMean <keepdims = 1> (e)",
    "largest": f"{MASK} y = ReduceMax <keepdims = 1> (s)",
    "smallest": f"{MASK} n = Neg (s) y = ReduceMin <keepdims = 1> (n)",
    "log is finite": f"{MASK} l = Log (s) y = ReduceSum <keepdims = 1> (l)",
    "root is finite": f"{MASK} l = Sqrt (s) y = ReduceL2 <keepdims = 1> (l)",
    "product": f"{MASK} l = Tanh (s) y = ReduceProd <keepdims = 1> (l)",
    "count": f"{MASK} u = ReduceSum <keepdims = 0> (s) f = Shape (s) g = Cast <to = 1> (f) y = Div (u, g)",
    "elements": (
        f"{ROWS} u = ReduceSum <keepdims = 0> (s) f = Size (s) g = Cast <to = 1> (f) d = Div (u, g) "
        "y = Reshape (d, minus)"
    ),
    "rows": (
        f"{ROWS} p = MatMul (s, v) q = Relu (p) u = ReduceMean <axes = [0], keepdims = 0> (q) "
        "y0 = ReduceSum <keepdims = 0> (u, a0) y = Reshape (y0, minus)"
    ),
    "rows of linear": (
        f"{ROWS} p = Gemm <transB = 1> (s, w, d4) q = Sigmoid (p) y0 = ReduceMean <keepdims = 0> (q) "
        "y = Reshape (y0, minus)"
    ),
    "softmax of rows": (
        f"{ROWS} p = Add (s, b) q = Softmax <axis = -1> (p) f = Gather <axis = 1> (q, i1) l = Log (f) "
        "y = ReduceMean <keepdims = 1> (l)"
    ),
    "between rows": (
        f"{ROWS} p = ReduceMean <axes = [1], keepdims = 1> (s) d = Sub (s, p) d2 = Pow (d, two) "
        "y0 = ReduceMean <keepdims = 0> (d2) y = Reshape (y0, minus)"
    ),
    "compress": (
        "k1 = Gather <axis = 1> (h, i0) k = Greater (k1, zero) s = Compress <axis = 0> (h, k) "
        "y0 = ReduceMean <keepdims = 0> (s) y = Reshape (y0, minus)"
    ),
    "compress columns": (
        "k1 = Gather <axis = 0> (h, i0) k = Greater (k1, zero) s = Compress <axis = 1> (h, k) "
        "q = Exp (s) y0 = ReduceMean <keepdims = 0> (q) y = Reshape (y0, minus)"
    ),
    "compress flat": (
        "k1 = Gather <axis = 0> (h, i0) k = Greater (k1, zero) s = Compress (h, k) q = Exp (s) "
        "y = ReduceSum <keepdims = 1> (q)"
    ),
    "one mask twice": (
        f"{MASK} g = Sigmoid (h) s2 = GatherND (g, t) p = Mul (s, s2) y = ReduceSum <keepdims = 1> (p)"
    ),
    "of numbers": (
        "k = Relu (h) z = NonZero (k) t = Transpose <perm = [1, 0]> (z) s = GatherND (h, t) "
        "y = ReduceMean <keepdims = 1> (s)"
    ),
    "assigned": (
        f"{MASK} q = Exp (s) u = ScatterND (h, t, q) y0 = ReduceMean <keepdims = 0> (u) "
        "y = Reshape (y0, minus)"
    ),
    "rows assigned": (
        f"{ROWS} t = Transpose <perm = [1, 0]> (z) q = Exp (s) u = ScatterND (h, t, q) "
        "y0 = ReduceMean <keepdims = 0> (u) y = Reshape (y0, minus)"
    ),
    "rows assigned by elements": (
        f"{ROWS} {ELEMENTS} e = Exp (s) w4 = Expand (e, c) f = Reshape (w4, minus) u = ScatterND (h, tt, f) "
        "y0 = ReduceMean <keepdims = 0> (u) y = Reshape (y0, minus)"
    ),
    "one number of each row, assigned by elements": (
        f"{ROWS} {ELEMENTS} e = ReduceMax <axes = [1], keepdims = 1> (s) w4 = Expand (e, c) "
        "f = Reshape (w4, minus) u = ScatterND (h, tt, f) p = Sigmoid (u) y0 = ReduceMean <keepdims = 0> (p) "
        "y = Reshape (y0, minus)"
    ),
    "a number assigned to rows by elements": (
        f"{ROWS} {ELEMENTS} w4 = Expand (two, c) f = Reshape (w4, minus) u = ScatterND (h, tt, f) p = Sigmoid (u) "
        "y0 = ReduceMean <keepdims = 0> (p) y = Reshape (y0, minus)"
    ),
    "one row assigned to rows by elements": (
        f"{ROWS} {ELEMENTS} w4 = Expand (b, c) f = Reshape (w4, minus) u = ScatterND (h, tt, f) p = Sigmoid (u) "
        "y0 = ReduceMean <keepdims = 0> (p) y = Reshape (y0, minus)"
    ),
    "a number assigned to elements": (
        "k = Greater (h, zero) z = NonZero (k) t = Transpose <perm = [1, 0]> (z) kf = Reshape (k, minus) "
        "kc = Cast <to = 7> (kf) n = ReduceSum <keepdims = 1> (kc) w4 = Expand (two, n) u = ScatterND (h, t, w4) "
        "p = Sigmoid (u) y0 = ReduceMean <keepdims = 0> (p) y = Reshape (y0, minus)"
    ),
    "a column of positions": (
        "m1 = Gather <axis = 1> (h, i0) k = Greater (m1, zero) z = NonZero (k) t = Transpose <perm = [1, 0]> (z) "
        "o = Slice (t, a0, a1, a1) r = Squeeze (o, a1) s = Gather (h, r) q = Exp (s) "
        "y0 = ReduceMean <keepdims = 0> (q) y = Reshape (y0, minus)"
    ),
    "added to rows": (
        f"{ROWS} t = Unsqueeze (r, minus) q = Exp (s) f = Shape (r) c = Concat <axis = 0> (f, three) e = Expand (q, c) "
        'u = ScatterND <reduction = "add"> (h, t, e) p = Tanh (u) y0 = ReduceMean <keepdims = 0> (p) '
        "y = Reshape (y0, minus)"
    ),
    "added to elements": (
        f'{MASK} q = Exp (s) u = ScatterND <reduction = "add"> (h, t, q) p = Tanh (u) '
        "y0 = ReduceMean <keepdims = 0> (p) y = Reshape (y0, minus)"
    ),
    "of columns whose number is free": (
        "k0 = Transpose <perm = [1, 0]> (h) k = Greater (k0, zero) z = NonZero (k) t = Transpose <perm = [1, 0]> (z) "
        "s = GatherND (k0, t) e = Exp (s) y = ReduceMean <keepdims = 1> (e)"
    ),
    "a mixture of experts": (
        "k0 = Transpose <perm = [1, 0]> (h) k = Greater (k0, zero) z = NonZero (k) which = Gather <axis = 0> (z, i0) "
        "row = Gather <axis = 0> (z, i1) s = Gather (h, row) f = Cast <to = 1> (which) g = Unsqueeze (f, a1) "
        "q = Mul (s, g) t = Unsqueeze (row, minus) o = Mul (h, zero) "
        'u = ScatterND <reduction = "add"> (o, t, q) p = Tanh (u) y0 = ReduceMean <keepdims = 0> (p) '
        "y = Reshape (y0, minus)"
    ),
    "rows as elements": (f"{ROWS} e = Exp (s) f = Reshape (e, minus) y = ReduceMean <keepdims = 1> (f)"),
    "joined": (
        f"{ROWS} p = Tanh (s) q = Concat <axis = 1> (s, p) o = ReduceMean <axes = [0], keepdims = 0> (q) "
        "y = ReduceSumSquare <keepdims = 1> (o)"
    ),
    "unique": "q = Round (h) u = Unique (q) e = Exp (u) s = ReduceSum <keepdims = 1> (e) " + LOSS,
    "unique in order": "q = Round (h) u = Unique <sorted = 0> (q) e = Exp (u) s = ReduceMean <keepdims = 1> (e) "
    + LOSS,
    "unique of data": "q = Round (x) u = Unique (q) e = Exp (u) s = ReduceSum <keepdims = 1> (e) " + LOSS,
    "unique positions": (
        "q = Round (x) u, f, i, c = Unique (q) g = Cast <to = 1> (f) d = Cast <to = 1> (c) e = Exp (u) p = Mul (e, g) "
        "o = Mul (p, d) s = ReduceSum <keepdims = 1> (o) " + LOSS
    ),
    "unique positions in order": (
        "q0 = Round (x) q = Reshape (q0, minus) u, f, i, c = Unique <sorted = 0> (q) g = Cast <to = 1> (f) "
        "d = Cast <to = 1> (c) e = Exp (u) "
        "p = Mul (e, g) o = Mul (p, d) s = ReduceSum <keepdims = 1> (o) " + LOSS
    ),
    "unique and back": (
        "q = Round (x) u, f, i = Unique (q) e = Exp (u) b4 = Gather (e, i) t = Shape (x) r = Reshape (b4, t) "
        "p = MatMul (r, w) y0 = ReduceMean <keepdims = 0> (p) y = Reshape (y0, minus)"
    ),
    "unique in order and back": (
        "q0 = Round (x) q = Reshape (q0, minus) u, f, i = Unique <sorted = 0> (q) e = Exp (u) "
        "b4 = Gather (e, i) t = Shape (x) "
        "r = Reshape (b4, t) p = MatMul (r, w) y0 = ReduceMean <keepdims = 0> (p) y = Reshape (y0, minus)"
    ),
    "boxes": (
        "k0 = Unsqueeze (h, a0) g = Gather <axis = 2> (k0, four) a = Transpose <perm = [0, 2, 1]> (k0) "
        "p = NonMaxSuppression (g, a, three, limit, zero1) j = Gather <axis = 1> (p, i2) s = Gather (h, j) "
        "e = Exp (s) y0 = ReduceMean <keepdims = 0> (e) y = Reshape (y0, minus)"
    ),
    "scores of boxes": (
        "k0 = Unsqueeze (h, a0) g = Gather <axis = 2> (k0, four) a = Transpose <perm = [0, 2, 1]> (k0) "
        "p = NonMaxSuppression (g, a, three, limit, zero1) t = Gather <axis = 1> (p, turn) s = GatherND (k0, t) "
        "e = Exp (s) o = ReduceSum <keepdims = 0> (e) f = Shape (s) c = Cast <to = 1> (f) y = Div (o, c)"
    ),
    "expanded": (  # as torch 2.14 writes h[h[:, 0] > 0]
        f"{ROWS} e = Max (r) f = Shape (e) o = Expand (r, f) i = Unsqueeze (o, a1) j = Concat <axis = -1> (i) "
        "d = GatherND (h, j) l = CastLike (two, d) c = CastLike (r, two) m = Unsqueeze (c, a1) "
        "n = Mul (d, m) p = Mul (n, l) y0 = ReduceMean <keepdims = 0> (p) y = Reshape (y0, minus)"
    ),
    "positions": (
        f"{ROWS} f = Cast <to = 1> (r) c = Unsqueeze (f, a1) p = Mul (s, c) "
        "y0 = ReduceSum <keepdims = 0> (p) y = Reshape (y0, minus)"
    ),
}
WEIGHTS["d4"] = np.arange(4, dtype=np.float32) / 4
X = np.random.default_rng(2).standard_normal((6, 4)).astype(np.float32)


def wanted(text: str, x: np.ndarray, target: np.ndarray) -> float:
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in WEIGHTS.items())
    y = np.asarray(ReferenceEvaluator(proto).run(None, {"x": x})[0], np.float64)
    return float(np.square(y - target).mean())


def recipe(**others):
    return Recipe(loss="mse", train=("w",), **others)


@pytest.mark.unit
@pytest.mark.parametrize("sizes", [{}, {"n": 6}], ids=["free", "fixed"])
@pytest.mark.parametrize("name", MODELS)
def test_numbers_and_gradients_are_those_of_selected_elements(name, sizes):
    text, target = model(MODELS[name]), np.full((1,), 10, np.float32)
    trainer = trainer_of(source(text, WEIGHTS), recipe(sizes=sizes))
    for x in (X, -X, X[::-1].copy()):
        found = float(np.ravel(trainer.train_step(x, target)[0])[0])
        assert found == pytest.approx(wanted(text, x, target), rel=2e-5), name
    assert max(differences(trainer, X, target).values()) < 1e-5


@pytest.mark.unit
@pytest.mark.parametrize(
    "name", ["of columns whose number is free", "a mixture of experts", "added to elements"]
)
def test_numbers_and_gradients_are_the_same_where_axes_are_inputs(name):
    text, target = model(MODELS[name]), np.full((1,), 10, np.float32)
    trainer = trainer_of(source(text, WEIGHTS, opset=20), recipe())
    for x in (X, X[:3]):
        found = float(np.ravel(trainer.train_step(x, target)[0])[0])
        assert found == pytest.approx(wanted(text, x, target), rel=2e-5), name
    assert max(differences(trainer, X, target).values()) < 1e-5


@pytest.mark.unit
@pytest.mark.parametrize(
    "name",
    ["sum", "assigned", "rows assigned", "rows assigned by elements", "log is finite"],
)
def test_a_mask_that_is_false_everywhere_selects_nothing(name):
    text, target = model(MODELS[name]), np.full((1,), 10, np.float32)
    nothing = {**WEIGHTS, "w": -np.abs(WEIGHTS["w"])}
    trainer = trainer_of(source(text, nothing), recipe())
    found = float(np.ravel(trainer.train_step(np.abs(X), target)[0])[0])
    if "assigned" in name:
        assert found == pytest.approx(float(np.square((np.abs(X) @ nothing["w"]).mean() - 10)), rel=1e-5)
    else:
        assert found == 100.0 and not np.abs(trainer.gradients["w"]).max()


@pytest.mark.parametrize(
    "name", ["mean", "rows", "assigned", "compress", "count", "unique and back", "unique in order", "boxes"]
)
def test_devices_compute_the_same(name, tmp_path):
    text, target = model(MODELS[name]), np.full((1,), 10, np.float32)
    write_artifacts(made_of(source(text, WEIGHTS), recipe(optimizer="sgd")), tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    optimizer = Optimizer(tmp_path / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(0.0001)
    trainer = trainer_of(source(text, WEIGHTS), recipe(optimizer="sgd"))
    trainer.learning_rate = 0.0001
    rolled = np.roll(X, -int((X @ WEIGHTS["w"])[:, 0].argmax()), 0)  # the mask is true for the first row
    for rows in (6, 3, 5):
        x = rolled[:rows]
        assert float(module(x, target)) == pytest.approx(float(trainer.train_step(x, target)[0]), rel=1e-5)
        for one in (optimizer.step, module.lazy_reset_grad, trainer.optimizer_step, trainer.lazy_reset_grad):
            one()
    np.testing.assert_allclose(state.parameters["w"].data, trainer.parameters["w"], rtol=1e-5, atol=1e-6)


REFUSED = {
    "an output": (f"{MASK} y = Identity (s)", "output 'y': its size depends on data"),
    "by number": (
        f"{MASK} y = Gather (s, a0)",
        r"node '.*' \(Gather, opset 17\): the size of its input 's' depends on data, a mask, and it cannot read that "
        r"\(it takes elements by their number among those selected\). Reduce the selected elements before it",
    ),
    "another mask": (
        f"{MASK} k2 = Less (h, zero) z2 = NonZero (k2) t2 = Transpose <perm = [1, 0]> (z2) s2 = GatherND (h, t2) "
        "p = Mul (s, s2) y = ReduceSum <keepdims = 1> (p)",
        "its inputs are selected by different masks",
    ),
    "a sum over them": (
        f"{ROWS} st = Transpose <perm = [1, 0]> (s) p = MatMul (st, s) y = ReduceSum (p)",
        "multiplies",
    ),
    "expanded over others": (
        f"{ROWS} f = Shape (s) c = Unsqueeze (s, a0) e = Expand (c, f) y = ReduceSum (e)",
        "it has other sizes there",
    ),
    "expanded to as many as another mask": (
        f"{ROWS} no = Not (k) kf = Reshape (no, minus) kc = Cast <to = 7> (kf) n = ReduceSum <keepdims = 1> (kc) "
        "c = Concat <axis = 0> (n, three) e = Expand (s, c) y = ReduceSum (e)",
        "its shape is not that of a value which the same mask selects",
    ),
    "a slice of them": (f"{MASK} c = Slice (s, a0, a1, a0) y = ReduceSum (c)", "by their number among those"),
    "added elsewhere": (
        f"{MASK} k2 = Less (h, zero) z2 = NonZero (k2) t2 = Transpose <perm = [1, 0]> (z2) "
        'u = ScatterND <reduction = "add"> (h, t2, s) y = ReduceSum (u)',
        "it adds elsewhere than it selects",
    ),
    "no rule": (f"{MASK} c = CumSum (s, i0) y = ReduceSum (c)", "CumSum, opset 17.*cannot read that. Reduce"),
    "of a selection": (
        f"{ROWS} k2 = Greater (s, zero) z2 = NonZero (k2) y = ReduceSum (z2)",
        "Combine the masks",
    ),
    "boxes without a bound": (
        "k0 = Unsqueeze (h, a0) g = Gather <axis = 2> (k0, four) a = Transpose <perm = [0, 2, 1]> (k0) "
        "n = ArgMax <axis = 0, keepdims = 0> (h) m1 = Gather (n, a0) p = NonMaxSuppression (g, a, m1) "
        "f = Cast <to = 1> (p) y = ReduceSum (f)",
        r"NonMaxSuppression, opset 17\): the most boxes of a class must be a constant",
    ),
    "unique slices": (
        "u = Unique <axis = 0> (h) y = ReduceSum (u)",
        r"Unique, opset 17\): it compares whole slices.*Number the slices",
    ),
}


@pytest.mark.unit
@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_the_true_size_is_refused_by_node(name):
    body, reason = REFUSED[name]
    with pytest.raises(Unsupported, match=reason):
        artifacts_of(source(model(body, shape="k"), WEIGHTS), recipe(), registry())


@pytest.mark.unit
def test_selections_by_what_cannot_be_made_are_refused_for_that_reason():
    body = "p = Add (h, two4) k = Greater (p, zero) z = NonZero (k) y = ReduceSum (z)"
    with pytest.raises(Unsupported, match=r"\(Add, opset 17\): cannot broadcast"):
        artifacts_of(source(model(body), WEIGHTS | {"two4": np.ones(4, np.float32)}), recipe(), registry())


@pytest.mark.unit
def test_outputs_that_the_loss_does_not_need_are_left_out():
    text = f"m (float[n,4] x) => (float[n,3] h, int64[2,k] z, float[o] s) {{ h = MatMul (x, w) {MASK} }}"
    made = artifacts_of(source(text, WEIGHTS), recipe(), registry())
    assert made.notes[0].startswith("z, s: left out, as the loss does not need it.")
    assert not {"NonZero", "ArgMax"} & {node.op_type for node in made.evaluation.nodes}
    with pytest.raises(Unsupported, match="output 'z': its size depends on data"):
        artifacts_of(source(text, WEIGHTS), recipe(outputs=("z",)), registry())
