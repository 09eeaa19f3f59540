"""Activations that exporters write as several nodes train as one operator, with the same gradients."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from authored import differences, source

from minbuild.authoring import Recipe, artifacts_of
from minbuild.ir import TrainingArtifacts
from minbuild.ops import registry
from minbuild.reference.interpreter import ReferenceTrainer

OPERATORS = registry()
TOLERANCE = 1e-6  # of central differences with a step of 1e-5
NUMBERS = {
    "half": 0.5,
    "one": 1.0,
    "three": 3.0,
    "two": 2.0,
    "root": math.sqrt(2),
    "inverse": math.sqrt(0.5),
    "linear": math.sqrt(2 / math.pi),
    "cubic": 0.044715,
    "quick": 1.702,
}
FORMS = {
    "torch gelu": (
        "Gelu",
        "d = Div(x, root) e = Erf(d) o = Add(e, one) m = Mul(x, o) y = Mul(m, half)",
    ),
    "gelu of a product": (
        "Gelu",
        "d = Mul(inverse, x) e = Erf(d) o = Add(one, e) h = Mul(x, half) y = Mul(h, o)",
    ),
    "tanh gelu": (
        "FastGelu",
        "p = Pow(x, three) c = Mul(p, cubic) s = Add(x, c) l = Mul(s, linear) t = Tanh(l) o = Add(t, one) "
        "h = Mul(half, x) y = Mul(h, o)",
    ),
    "tanh gelu of products": (
        "FastGelu",
        "p = Mul(x, x) q = Mul(p, x) c = Mul(cubic, q) s = Add(c, x) l = Mul(linear, s) t = Tanh(l) o = Add(one, t) "
        "m = Mul(x, o) y = Mul(half, m)",
    ),
    "swish": ("QuickGelu", "s = Sigmoid(x) y = Mul(s, x)"),
    "quick gelu": ("QuickGelu", "q = Mul(x, quick) s = Sigmoid(q) y = Mul(x, s)"),
}
OTHERS = {
    "another number": "d = Div(x, two) e = Erf(d) o = Add(e, one) m = Mul(x, o) y = Mul(m, half)",
    "another factor": "d = Div(x, root) e = Erf(d) o = Add(e, one) m = Mul(x, o) y = Mul(m, two)",
    "a part read twice": "s = Sigmoid(x) m = Mul(s, x) y = Add(m, s)",
    "another value": "z = Neg(x) s = Sigmoid(z) y = Mul(s, x)",
}


def artifacts(body: str, **recipe: tuple[str, ...]) -> TrainingArtifacts:
    random = np.random.default_rng(3)
    weights = {
        n: random.standard_normal(shape).astype(np.float32) for n, shape in (("w", (6, 5)), ("v", (5, 3)))
    }
    numbers = {n: np.array(value, np.float32) for n, value in NUMBERS.items() if n in body}
    text = f"net (float[batch, 6] a) => (float[batch, 3] scores) {{ x = MatMul(a, w) {body} scores = MatMul(y, v) }}"
    made = Recipe(loss="cross-entropy", train=("w", "v"), **recipe)
    return artifacts_of(source(text, weights | numbers), made, OPERATORS)


def operators(made: TrainingArtifacts) -> Counter[str]:
    return Counter(node.op_type for node in made.training.nodes)


@pytest.mark.parametrize("name", FORMS)
def test_one_operator_takes_the_place_of_its_parts(name: str) -> None:
    op_type, body = FORMS[name]
    made = artifacts(body)
    found = operators(made)
    gradient = f"{op_type}Grad"
    assert found[op_type] == found[gradient] == 1
    assert not found.keys() & {"Erf", "Tanh", "Sigmoid", "Pow", "Mul", "Div", "Exp"}
    assert made.evaluation is not None and op_type not in {n.op_type for n in made.evaluation.nodes}
    random = np.random.default_rng(5)
    apart = differences(ReferenceTrainer(made), random.standard_normal((4, 6)), random.integers(0, 3, 4))
    assert max(apart.values()) < TOLERANCE, apart


@pytest.mark.parametrize("name", OTHERS)
def test_what_only_looks_alike_stays(name: str) -> None:
    assert not operators(artifacts(OTHERS[name])).keys() & {"Gelu", "FastGelu", "QuickGelu"}


def test_what_the_caller_reads_stays() -> None:
    body = FORMS["swish"][1]
    assert operators(artifacts(body, outputs=("s",)))["Sigmoid"] == 1
    assert operators(artifacts(body, outputs=("y",)))["QuickGelu"] == 1
