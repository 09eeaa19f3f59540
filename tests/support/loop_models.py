"""Models with Scans that stay loops, as training artifacts, and batches for them."""

from __future__ import annotations

import numpy as np
from authored import source

from minbuild.authoring import Recipe, artifacts_of
from minbuild.ir import TrainingArtifacts
from minbuild.ops import registry

REGISTRY = registry()
ROUNDS, BATCH, WIDTH, HIDDEN = 20, 2, 3, 4
RECIPE = Recipe(loss="mse", optimizer="sgd")

ELMAN = """
    m (float[T,2,3] x) => (float[2,4] out) {
        last, all = Scan <num_scan_inputs = 1, body = round
                (float[2,4] h, float[2,3] x_t) => (float[2,4] n, float[2,4] y) {
            a = MatMul (x_t, W)
            b = MatMul (h, R)
            c = Add (a, b)
            d = Add (c, B)
            n = Tanh (d)
            y = Identity (n)
        }> (start, x)
        mean = ReduceMean <axes = [0], keepdims = 0> (all)
        out = Add (mean, last)
    }"""
# Two states, one of which is also the other's, a slice of no state, and rounds from the last to the first.
GATED = """
    m (float[T,2,3] x) => (float[2,4] out) {
        last, other, all, more = Scan <num_scan_inputs = 1,
            scan_input_directions = [1], scan_output_directions = [0, 1],
            body = round (float[2,4] h, float[2,4] c, float[2,3] x_t) =>
                (float[2,4] h2, float[2,4] c2, float[2,4] y, float[2,4] z) {
            a = Gemm (x_t, W, B)
            b = MatMul (h, R)
            s = Add (a, b)
            gate = Sigmoid (s)
            new = Tanh (s)
            kept = Mul (gate, c)
            c2 = Add (kept, new)
            soft = Softplus (c2)
            h2 = Mul (soft, gate)
            y = Identity (h)
            z = Sub (c2, h)
        }> (start, start, x)
        mean = ReduceMean <axes = [0], keepdims = 0> (all)
        sum = ReduceSum <keepdims = 0> (more, axes)
        some = Add (mean, last)
        both = Add (some, sum)
        out = Add (both, other)
    }"""
# A state that decays by what every round computes from its slice, as in Mamba, with no product of it.
DECAY = """
    m (float[T,2,3] x) => (float[2,4] out) {
        proj = MatMul (x, W)
        rates = MatMul (x, V)
        last, all = Scan <num_scan_inputs = 2, body = round (float[2,4] h, float[2,4] u, float[2,4] r) =>
                (float[2,4] n, float[2,4] y) {
            soft = Softplus (r)
            rate = Mul (soft, B)
            decay = Exp (rate)
            kept = Mul (h, decay)
            n = Add (kept, u)
            y = Mul (n, u)
        }> (start, proj, rates)
        out = ReduceMean <axes = [0], keepdims = 0> (all)
    }"""
# A state that gradients read before and after every round, and that no round has as a slice.
BOTH_ENDS = """
    m (float[T,2,3] x) => (float[2,4] out) {
        last, all = Scan <num_scan_inputs = 1, body = round (float[2,4] h, float[2,3] x_t) =>
                (float[2,4] n, float[2,4] y) {
            a = MatMul (x_t, W)
            b = MatMul (h, R)
            c = Add (a, b)
            n = Tanh (c)
            y = Mul (n, a)
        }> (start, x)
        mean = ReduceMean <axes = [0], keepdims = 0> (all)
        out = Add (mean, last)
    }"""
# Two layers, of which one runs from the last to the first.
LAYERS = """
    m (float[T,2,3] x) => (float[2,4] out) {
        p = MatMul (x, W)
        last, all = Scan <num_scan_inputs = 1, body = round (float[2,4] h, float[2,4] p_t) =>
                (float[2,4] n, float[2,4] y) {
            b = MatMul (h, R)
            c = Add (p_t, b)
            n = Tanh (c)
            y = Mul (n, B)
        }> (start, p)
        end, more = Scan <num_scan_inputs = 1, scan_input_directions = [1], body = round
                (float[2,4] g, float[2,4] y_t) => (float[2,4] m, float[2,4] z) {
            d = Mul (g, y_t)
            e = Sigmoid (d)
            m = Add (e, y_t)
            z = Mul (m, m)
        }> (last, all)
        mean = ReduceMean <axes = [0], keepdims = 0> (more)
        out = Add (mean, end)
    }"""
# A long short-term memory with one gate: only the next round reads the cells behind their tanh.
CELLS = """
    m (float[T,2,3] x) => (float[2,4] out) {
        last, other, all = Scan <num_scan_inputs = 1, body = round
                (float[2,4] h, float[2,4] c, float[2,3] x_t) => (float[2,4] h2, float[2,4] c2, float[2,4] y) {
            a = Gemm (x_t, W, B)
            b = MatMul (h, R)
            s = Add (a, b)
            gate = Sigmoid (s)
            new = Tanh (s)
            kept = Mul (gate, c)
            c2 = Add (kept, new)
            squashed = Tanh (c2)
            h2 = Mul (squashed, gate)
            y = Identity (h2)
        }> (start, start, x)
        out = ReduceMean <axes = [0], keepdims = 0> (all)
    }"""
# States that take each other's place, one that is a slice and one that no round reads, with stacks both ways.
EXCHANGED = """
    m (float[T,2,3] x) => (float[2,4] out) {
        p = MatMul (x, W)
        one, two, three, four, all, more = Scan <num_scan_inputs = 1, scan_output_directions = [1, 0], body = round
                (float[2,4] a, float[2,4] b, float[2,4] c, float[2,4] d, float[2,4] p_t) =>
                (float[2,4] a2, float[2,4] b2, float[2,4] c2, float[2,4] d2, float[2,4] y, float[2,4] z) {
            a2 = Identity (b)
            r = MatMul (a, R)
            b2 = Tanh (r)
            c2 = Identity (p_t)
            s = Add (b2, c)
            d2 = Sigmoid (s)
            y = Mul (s, a)
            z = Identity (d2)
        }> (start, start, start, start, p)
        mean = ReduceMean <axes = [0], keepdims = 0> (all)
        sum = ReduceMean <axes = [0], keepdims = 0> (more)
        some = Add (mean, one)
        both = Add (some, four)
        third = Add (both, three)
        out = Add (third, sum)
    }"""
MODELS = {
    **{"elman": ELMAN, "gated": GATED, "decay": DECAY, "both ends": BOTH_ENDS, "layers": LAYERS},
    **{"cells": CELLS, "exchanged": EXCHANGED},
}


def artifacts(name: str, rounds: int | str = ROUNDS) -> TrainingArtifacts:
    random = np.random.default_rng(1)

    def weight(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) * 0.5).astype(np.float32)

    weights = {"W": weight(WIDTH, HIDDEN), "V": weight(WIDTH, HIDDEN), "R": weight(HIDDEN, HIDDEN)}
    weights |= {"B": -abs(weight(HIDDEN)), "start": weight(BATCH, HIDDEN)}
    text = MODELS[name].replace("T,", f"{rounds},")
    used = {n: a for n, a in weights.items() if n in text}
    model = source(text, {**used, **({"axes": np.array([0])} if "axes)" in text else {})})
    return artifacts_of(model, RECIPE, REGISTRY)


def batch(rounds: int = ROUNDS) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(2)
    return tuple(
        random.standard_normal(s).astype(np.float32) for s in ((rounds, BATCH, WIDTH), (BATCH, HIDDEN))
    )
