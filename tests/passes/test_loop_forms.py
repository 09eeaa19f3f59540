"""Loops, and Scans along other axes: they stay loops, with the numbers of their unrolled rounds."""

from __future__ import annotations

import numpy as np
import pytest
import trainers
from authored import differences, source, stepped
from built_loops import check_built

from minbuild.authoring import Recipe, artifacts_of
from minbuild.errors import Unsupported
from minbuild.ir import TrainingArtifacts
from minbuild.ops import registry
from minbuild.planning.plan_encoding import encode_plan
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.training.library import TRAIN

REGISTRY = registry()
ROUNDS, BATCH, WIDTH, HIDDEN = 20, 2, 3, 4
LIMIT = 6.0  # of the sum of magnitudes that ends the loop `early`
RECIPE = Recipe(loss="mse", optimizer="sgd")

_CELL = """
            a = MatMul (x_t, W)
            b = MatMul (h, R)
            c = Add (a, b)
            n = Tanh (c)"""
# A counted loop that takes its slices by its number, with a scan output.
COUNTED = f"""
    m (float[T,2,3] x) => (float[2,4] out) {{
        whole = Shape <start = 0, end = 1> (x)
        most = Squeeze (whole)
        last, all = Loop (most, yes, start) <body = round (int64 i, bool going, float[2,4] h) =>
                (bool on, float[2,4] n, float[2,4] y) {{
            x_t = Gather (x, i)
            {_CELL}
            y = Mul (n, n)
            on = Identity (going)
        }}>
        mean = ReduceMean <axes = [0], keepdims = 0> (all)
        out = Add (mean, last)
    }}"""
# Its number is also a factor, and its slices stand along another axis.
NUMBERED = """
    m (float[2,T,3] x) => (float[2,4] out) {
        whole = Shape <start = 1, end = 2> (x)
        last = Loop (whole, , start) <body = round (int64 i, bool going, float[2,4] h) =>
                (bool on, float[2,4] n) {
            x_t = Gather <axis = 1> (x, i)
            a = MatMul (x_t, W)
            f = Cast <to = 1> (i)
            part = Mul (f, small)
            wide = Mul (h, part)
            b = MatMul (wide, R)
            c = Add (a, b)
            n = Tanh (c)
            on = Identity (going)
        }>
        out = Identity (last)
    }"""
# The form that torch exports `while_loop` in: no limit, and a counter of its own.
COUNTER = f"""
    m (float[T,2,3] x) => (float[2,4] out) {{
        count, last = Loop ( , yes, zero, start) <body = round (int64 i, bool going, int64 k, float[2,4] h) =>
                (bool on, int64 k2, float[2,4] n) {{
            k2 = Add (k, one)
            row = Unsqueeze (k, first)
            rows = Gather (x, row)
            x_t = Squeeze (rows, first)
            {_CELL}
            on = Less (k2, twenty)
        }}>
        out = Identity (last)
    }}"""
# Axes other than 0, one of them from the last slice on.
AXES = f"""
    m (float[2,T,3] x) => (float[2,4] out) {{
        last, all, more = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1],
            scan_output_axes = [-1, 1], scan_output_directions = [0, 1],
            body = round (float[2,4] h, float[2,3] x_t) => (float[2,4] n, float[2,4] y, float[2,4] z) {{
            {_CELL}
            y = Mul (n, n)
            z = Mul (n, h)
        }}> (start, x)
        mean = ReduceMean <axes = [-1], keepdims = 0> (all)
        sum = ReduceSum <keepdims = 0> (more, first)
        both = Add (mean, sum)
        out = Add (both, last)
    }}"""
# States that trade places.
SWAPPED = f"""
    m (float[T,2,3] x) => (float[2,4] out) {{
        left, right = Scan <num_scan_inputs = 1,
            body = round (float[2,4] h, float[2,4] g, float[2,3] x_t) => (float[2,4] h2, float[2,4] n) {{
            {_CELL}
            h2 = Identity (g)
        }}> (start, start, x)
        out = Sub (left, right)
    }}"""
# States that start from one value, and whose last ones nobody reads.
SHARED = f"""
    m (float[T,2,3] x) => (float[2,4] out) {{
        left, right, all = Scan <num_scan_inputs = 1,
            body = round (float[2,4] h, float[2,4] g, float[2,3] x_t) => (float[2,4] n, float[2,4] h2, float[2,4] y) {{
            {_CELL}
            h2 = Mul (g, n)
            y = Add (n, h2)
        }}> (start, start, x)
        out = ReduceMean <axes = [0], keepdims = 0> (all)
    }}"""
# A loop that ends early, with slices by its number, and a loop of another length behind it.
EARLY = f"""
    m (float[T,2,3] x) => (float[2,4] out) {{
        largest = ReduceMax <keepdims = 0> (start)
        begins = Less (largest, limit)
        count, last = Loop (twenty, begins, zero, start) <body = round (int64 i, bool going, int64 k, float[2,4] h) =>
                (bool on, int64 k2, float[2,4] g) {{
            k2 = Add (k, one)
            x_t = Gather (x, i)
            {_CELL}
            more = Mul (n, grows)
            g = Add (h, more)
            size = ReduceL1 <keepdims = 0> (g)
            on = Less (size, limit)
        }}>
        parts = Reshape (x, folded)
        second, all = Scan <num_scan_inputs = 1,
            body = other (float[2,4] s, float[1,3] p) => (float[2,4] s2, float[2,4] q) {{
            f = MatMul (p, W)
            u = Mul (s, f)
            s2 = Tanh (u)
            q = Identity (s2)
        }}> (last, parts)
        mean = ReduceMean <axes = [0], keepdims = 0> (all)
        out = Add (mean, last)
    }}"""
# Loops over the first slices of a tensor, as many as data say: by a condition, as torch exports it, or by the limit.
WHILE = f"""
    m (float[T,2,3] x, int64 length) => (float[2,4] out) {{
        begins = Less (zero, length)
        count, last = Loop ( , begins, zero, start) <body = round (int64 i, bool going, int64 k, float[2,4] h) =>
                (bool on, int64 k2, float[2,4] n) {{
            k2 = Add (k, one)
            x_t = Gather (x, k)
            {_CELL}
            on = Less (k2, length)
        }}>
        out = Identity (last)
    }}"""
LENGTH = f"""
    m (float[T,2,3] x, int64 length) => (float[2,4] out) {{
        out = Loop (length, , start) <body = round (int64 i, bool going, float[2,4] h) => (bool on, float[2,4] n) {{
            x_t = Gather (x, i)
            {_CELL}
            on = Identity (going)
        }}>
    }}"""
BOTH = f"""
    m (float[T,2,3] x, int64[1] length) => (float[2,4] out) {{
        out = Loop (length, yes, start) <body = round (int64 i, bool going, float[2,4] h) => (bool on, float[2,4] n) {{
            x_t = Gather (x, i)
            {_CELL}
            size = ReduceL1 <keepdims = 0> (n)
            on = Less (size, huge)
        }}>
    }}"""
OF_DATA = {"while": WHILE, "length": LENGTH, "both": BOTH}
MODELS = {
    "counted": COUNTED,
    "numbered": NUMBERED,
    "counter": COUNTER,
    "axes": AXES,
    "swapped": SWAPPED,
    "shared": SHARED,
    "early": EARLY,
}
CONSTANTS = {
    "yes": np.array(True),
    "zero": np.array(0),
    "one": np.array(1),
    "twenty": np.array(ROUNDS),
    "first": np.array([0]),
    "folded": np.array([-1, 1, 3]),
    "limit": np.array(LIMIT, np.float32),
    "grows": np.array(0.3, np.float32),
    "small": np.array(0.1, np.float32),
    "huge": np.array(1e9, np.float32),
}


def artifacts(name: str, rounds: int | str = ROUNDS) -> TrainingArtifacts:
    random = np.random.default_rng(1)

    def weight(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) * 0.5).astype(np.float32)

    weights = {"W": weight(WIDTH, HIDDEN), "R": weight(HIDDEN, HIDDEN), "start": weight(BATCH, HIDDEN)}
    text = (MODELS | OF_DATA)[name].replace("T,", f"{rounds},")
    constants = {**CONSTANTS, "first": np.array([1 if name == "axes" else 0])}
    used = {
        n: a
        for n, a in (weights | constants).items()
        if f" {n}," in text or f"{n})" in text or f"({n}" in text
    }
    return artifacts_of(source(text, used, 18 if "axes)" in text else 17), RECIPE, REGISTRY)


def batch(name: str, rounds: int = ROUNDS) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(2)
    shape = (BATCH, rounds, WIDTH) if "[2,T,3]" in MODELS[name] else (rounds, BATCH, WIDTH)
    return tuple(random.standard_normal(s).astype(np.float32) for s in (shape, (BATCH, HIDDEN)))


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_unrolled_rounds(name, monkeypatch):
    looped = artifacts(name)
    assert [n.op_type for n in looped.training.nodes].count("Scan") == (4 if name == "early" else 2)
    defined = [out for node in looped.training.nodes for out in node.outputs if out]
    assert len(defined) == len(set(defined))
    found = ReferenceTrainer(looped)
    stepped(found, *batch(name))
    monkeypatch.setattr("minbuild.frontend.onnx.loops.LEAST_ROUNDS", 2 * ROUNDS + 1)
    unrolled = artifacts(name)
    assert not any(n.op_type in ("Loop", "Scan") for n in unrolled.training.nodes)
    expected = ReferenceTrainer(unrolled)
    stepped(expected, *batch(name))
    assert set(found.gradients) == set(expected.gradients)
    for each, gradient in expected.gradients.items():
        np.testing.assert_allclose(found.gradients[each], gradient, rtol=1e-10, atol=1e-12, err_msg=each)
    assert max(differences(ReferenceTrainer(looped), *batch(name)).values()) < 1e-6


@pytest.mark.parametrize("rounds", [ROUNDS, "T"])
@pytest.mark.parametrize("name", MODELS)
def test_built_loops_compute_what_the_graphs_say(name, rounds, tmp_path):
    made = artifacts(name, rounds)
    plan = trainers.plan_of(made, REGISTRY)
    assert plan.loops
    loops = 2 if name == "early" else 1
    assert len(encode_plan(plan, dict.fromkeys(plan.symbols, ROUNDS))) < 4096 * loops
    assert plan.loops == (3 if name == "early" else 2)
    bounded = rounds == ROUNDS or name in ("counter", "early")
    counts = (ROUNDS, ROUNDS) if bounded else (ROUNDS, 1, 32)
    check_built(made, plan, REGISTRY, tmp_path, (batch(name, count) for count in counts))


def test_rounds_behind_the_end_do_not_run(tmp_path):
    made = artifacts("early")
    plan = trainers.plan_of(made, REGISTRY)
    train = next(r for r in plan.routines if r.name == "train")
    guards = [s for s in train.steps if plan.kernels[s.kernel].function == "skip_round"]
    assert len(guards) == 2  # forward and back
    x, _ = batch("early")
    weights = {p.name: np.asarray(p.data, np.float64) for p in made.checkpoint.parameters}
    state, ran = weights["start"], 0
    while ran < ROUNDS and (not ran or np.abs(state).sum() < LIMIT):
        state = state + 0.3 * np.tanh(x[ran] @ weights["W"] + state @ weights["R"])
        ran += 1
    assert 2 < ran < ROUNDS - 2


def stepped_by_hand(made: TrainingArtifacts, x: np.ndarray, count: int, target: np.ndarray):
    """The loss after `count` rounds in double precision, and the gradient of its first state and weights."""
    weights = {p.name: np.asarray(p.data, np.float64) for p in made.checkpoint.parameters}
    states = [weights["start"]]
    for x_t in x[:count].astype(np.float64):
        states.append(np.tanh(x_t @ weights["W"] + states[-1] @ weights["R"]))
    error = states[-1] - target
    gradients = {name: np.zeros_like(w) for name, w in weights.items()}
    flow = 2 * error / error.size
    for t in reversed(range(count)):
        inner = flow * (1 - states[t + 1] ** 2)
        gradients["W"] += x[t].T @ inner
        gradients["R"] += states[t].T @ inner
        flow = inner @ weights["R"].T
    gradients["start"] = flow
    return np.mean(error**2), gradients


@pytest.mark.parametrize("rounds", [ROUNDS, 5, "T"])
@pytest.mark.parametrize("name", OF_DATA)
def test_slices_bound_loops_whose_length_is_data(name, rounds, tmp_path):
    """As many rounds as data say, from none on, with one plan, and no rounds behind them."""
    made = artifacts(name, rounds)
    plan = trainers.plan_of(made, REGISTRY)
    most = rounds if isinstance(rounds, int) else 24
    contents = trainers.contents_of([plan])
    library = trainers.library_of(contents, REGISTRY, tmp_path)
    parameters = {p.name: np.asarray(p.data) for p in made.checkpoint.parameters}
    session = trainers.session_of(library, plan, parameters)
    random = np.random.default_rng(2)
    x, target = (
        random.standard_normal(s).astype(np.float32) for s in ((most, BATCH, WIDTH), (BATCH, HIDDEN))
    )
    for count in (most, 3, 1, 0):
        length = np.full((1,) if name == "both" else (), count, np.int64)
        loss, gradients = stepped_by_hand(made, x, count, target)
        trainer = ReferenceTrainer(made)
        feeds = (x, length, target)
        np.testing.assert_allclose(np.ravel(trainer.train_step(*feeds)[0])[0], loss, rtol=1e-6)
        session.lazy_reset_grad()
        (found,) = session.run(TRAIN, list(feeds))[:1]
        np.testing.assert_allclose(np.ravel(found), loss, rtol=1e-5)
        for each, gradient in gradients.items():
            np.testing.assert_allclose(trainer.gradients[each], gradient, rtol=1e-6, atol=1e-8, err_msg=each)
            np.testing.assert_allclose(session.gradient(each), gradient, rtol=1e-4, atol=1e-5, err_msg=each)


def test_loops_without_any_bound_are_refused_with_a_cure():
    text = WHILE.replace("x_t = Gather (x, k)", "x_t = Identity (row)").replace(
        "begins =", "row = ReduceMean <axes = [0], keepdims = 0> (x) begins ="
    )
    weights = {n: np.ones(s, np.float32) for n, s in (("W", (3, 4)), ("R", (4, 4)), ("start", (2, 4)))}
    model = source(text.replace("T,", "20,"), weights | {"zero": np.array(0), "one": np.array(1)}, 17)
    with pytest.raises(Unsupported, match="no limit.*compare a counter.*slice of its number"):
        artifacts_of(model, RECIPE, REGISTRY)
    text = text.replace("Loop ( ,", "Loop (length,")
    model = source(text.replace("T,", "20,"), weights | {"zero": np.array(0), "one": np.array(1)}, 17)
    with pytest.raises(Unsupported, match="depends on data.*slice of its number"):
        artifacts_of(model, RECIPE, REGISTRY)
