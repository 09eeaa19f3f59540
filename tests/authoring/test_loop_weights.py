"""Weights that are dequantised in front of a loop whose body reads them are read in place, as those inside of it."""

from __future__ import annotations

import numpy as np
import pytest
from authored import source
from beside_interpreter import farthest
from planned_models import compiled

from minbuild.authoring import Recipe, Source, artifacts_of
from minbuild.authoring.loop_weights import with_weights_in_loops
from minbuild.ir import TrainingArtifacts
from minbuild.ops import registry

STEPS, BATCH, WIDTH, HIDDEN = 20, 2, 3, 64
random = np.random.default_rng(0)
ARRAYS = {
    "W": (random.standard_normal((WIDTH, HIDDEN)) / 2).astype(np.float32),
    "q": random.integers(-127, 127, (HIDDEN, HIDDEN)).astype(np.int8),
    "s": np.float32(0.002),
    "v": random.uniform(0.5, 2, HIDDEN).astype(np.float32) / 1000,
    "z": np.zeros((), np.int8),
    "start": np.zeros((BATCH, HIDDEN), np.float32),
    **{"most": np.array(STEPS), "yes": np.array(True)},
}
STEP = "a = MatMul (x_t, W) b = MatMul (h, {}) c = Add (a, b) n = Tanh (c)"
SCAN = """
    last, {outputs}all = Scan <num_scan_inputs = 1, body = round
            (float[2,64] h, {more}float[2,3] x_t) => (float[2,64] n, {result}float[2,64] y) {{
        {step} y = Identity (n) {pass}
    }}> (start, {state}x)
    mean = ReduceMean <axes = [0], keepdims = 0> (all)
    out = Add (mean, last)"""
LOOP = (
    """
    out = Loop (most, yes, start) <body = round (int64 i, bool going, float[2,64] h) => (bool on, float[2,64] n) {
        x_t = Gather <axis = 0> (x, i) """
    + STEP.format("R")
    + """ on = Identity (going)
    }>"""
)


def scan(read: str = "R", state: str = "") -> str:
    """A Scan whose body reads `read` from around it, or as a `state` that it passes on."""
    parts = {"outputs": "same, ", "more": "float[64,64] k, ", "result": "k2, ", "pass": "k2 = Identity (k)"}
    given = {**parts, "state": f"{state}, "} if state else dict.fromkeys((*parts, "state"), "")
    return SCAN.format(step=STEP.format("k" if state else read), **given)


DEQUANTISED = "R = DequantizeLinear (q, s, z)"
FORMS = {
    "read by a scan": f"{DEQUANTISED} {scan()}",
    "a state of a scan": f"{DEQUANTISED} {scan(state='R')}",
    "transposed": f"D = DequantizeLinear <axis = 0> (q, v) R = Transpose <perm = [1, 0]> (D) {scan()}",
    "read by a loop": f"{DEQUANTISED} {LOOP}",
    "read by two loops": f"{DEQUANTISED} {scan()} {LOOP} out = Add (one, two)".replace(
        "out = Add", "one = Add", 1
    ).replace("out = Loop", "two = Loop"),
}
X, T = (random.standard_normal(s).astype(np.float32) for s in ((STEPS, BATCH, WIDTH), (BATCH, HIDDEN)))


def model_of(body: str) -> Source:
    text = f"m (float[{STEPS},2,3] x) => (float[2,64] out) {{ {body} }}"
    return source(text, {n: np.asarray(a) for n, a in ARRAYS.items() if f"{n})" in body or f"{n}," in body})


def artifacts(body: str) -> TrainingArtifacts:
    return artifacts_of(model_of(body), Recipe("mse", optimizer="sgd", train=("W",)), registry())


def test_the_matrix_stands_in_no_arena_and_trainers_compute_what_their_graphs_say(tmp_path):
    made = {name: artifacts(body) for name, body in FORMS.items()}
    assert max(farthest(made, dict.fromkeys(made, [(X, T)]), tmp_path).values()) < 1e-6
    for name, each in made.items():
        model = compiled(each, registry())
        kernels = {k.function for k in model.plan.kernels}
        assert "dequantize_product" in kernels and "dequantize" not in kernels, name
        assert len(model.plan.constants) < 2 * HIDDEN * HIDDEN, name


@pytest.mark.unit
@pytest.mark.parametrize(
    "body",
    [
        f"{DEQUANTISED} {scan()} more = ReduceSum <keepdims = 0> (R)",
        f"{DEQUANTISED} {scan()}".replace("MatMul (h, R)", "Mul (h, R)"),
        f"r = Identity (x) t = ReduceMax <keepdims = 0> (r) R = DequantizeLinear (q, t, z) {scan()}",
        scan("W"),
    ],
    ids=["read outside", "no product", "a scale of data", "float"],
)
def test_other_nodes_stay(body):
    graph = model_of(body).graph
    assert with_weights_in_loops(graph) is graph
