"""Parameters that an exporter merged for equal initial values train apart; those shared on purpose do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from authored import source

from minbuild.authoring import Recipe, artifacts_of
from minbuild.authoring.merged_parameters import with_merged_parameters_apart
from minbuild.ops import registry

pytestmark = pytest.mark.unit
RANDOM = np.random.default_rng(0)
W = {name: RANDOM.standard_normal((4, 4)).astype(np.float32) for name in ("v", "w")}
ZERO, ONE = np.zeros(4, np.float32), np.ones(4, np.float32)


def apart(text: str, weights: dict[str, np.ndarray]) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """The inputs of every node, and the notes."""
    graph, notes = with_merged_parameters_apart(source(text, weights).graph)
    return [node.inputs for node in graph.nodes], notes


def test_a_bias_of_two_layers_becomes_two() -> None:
    """As Keras writes layers, with conversions between product and bias."""
    text = """g (float[n, 4] x) => (float[n, 4] y) {
        a = MatMul(x, v)  b = Cast<to = 1>(a)  c = Add(b, zero)
        d = Relu(c)  e = MatMul(d, w)  y = Add(e, zero) }"""
    inputs, notes = apart(text, {**W, "zero": ZERO})
    assert inputs[2] == ("b", "zero") and inputs[5] == ("e", "zero.1")
    assert len(notes) == 1 and notes[0].startswith("zero: of parameters with equal initial values")


def test_it_trains_so() -> None:
    text = """g (float[n, 4] x) => (float[n, 4] y) {
        a = MatMul(x, v)  b = Add(a, zero)  c = Relu(b)  d = MatMul(c, w)  y = Add(d, zero) }"""
    model = source(text, {**W, "zero": ZERO})
    made = artifacts_of(model, Recipe(loss="mse"), registry())
    assert {p.name for p in made.checkpoint.parameters if p.trainable} == {"v", "w", "zero", "zero.1"}
    kept = artifacts_of(model, Recipe(loss="mse", tolerant=True), registry())  # as ONNX Runtime does it
    assert {p.name for p in kept.checkpoint.parameters if p.trainable} == {"v", "w", "zero"}


def test_a_bias_that_is_reshaped_before_it_is_added_becomes_two() -> None:
    """As Keras writes biases of layers whose channels are last."""
    text = """g (float[n, 4] x) => (float[n, 4] y) {
        s = Constant<value_ints = [1, 4]>()  r = Identity(zero)
        a = MatMul(x, v)  p = Reshape(zero, s)  b = Add(a, p)  c = Relu(b)
        q = Reshape(r, s)  d = Add(c, q)  y = MatMul(d, w) }"""
    inputs, notes = apart(text, {**W, "zero": ZERO})
    assert inputs[1] == ("zero",) and inputs[3][0] == "zero.1" and len(notes) == 1


def test_normalisations_follow_the_weight_behind_them() -> None:
    text = """g (float[n, 4] x) => (float[n, 4] y) {
        a = LayerNormalization(x, one, zero)  b = MatMul(a, v)  c = Relu(b)
        d = LayerNormalization(c, one, zero)  y = MatMul(d, w) }"""
    inputs, notes = apart(text, {**W, "zero": ZERO, "one": ONE})
    assert inputs[0] == ("x", "one", "zero")
    assert inputs[3] == ("c", "one.1", "zero.1") and "one" in notes[0] and "zero" in notes[0]


def test_running_statistics_become_two() -> None:
    kernel = {n: RANDOM.standard_normal((4, 4, 1, 1)).astype(np.float32) for n in ("v", "w")}
    text = """g (float[n, 4, 2, 2] x) => (float[n, 4, 2, 2] y) {
        a = Conv(x, v)  b = BatchNormalization(a, one, zero, zero, one)
        c = Conv(b, w)  y = BatchNormalization(c, one, zero, zero, one) }"""
    inputs, _ = apart(text, {**kernel, "zero": ZERO, "one": ONE})
    assert inputs[1][1:] == ("one", "zero", "zero", "one")
    assert inputs[3][1:] == ("one.1", "zero.1", "zero.1", "one.1")


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        # A layer that is used twice shares its weight as well.
        ("a = MatMul(x, v) b = Add(a, zero) c = MatMul(b, v) y = Add(c, zero)", {"v": W["v"], "zero": ZERO}),
        # Values that differ are not those of chance.
        ("a = MatMul(x, v) b = Add(a, some) c = MatMul(b, w) y = Add(c, some)", {**W, "some": W["v"][0]}),
        # Beside no weight it is not known what belongs together.
        ("a = Add(x, zero) y = Mul(a, zero)", {"zero": ZERO}),
        ("a = MatMul(x, v) y = Add(a, zero)", {"v": W["v"], "zero": ZERO}),
    ],
)
def test_what_belongs_together_stays(text: str, weights: dict[str, np.ndarray]) -> None:
    graph = source(f"g (float[n, 4] x) => (float[n, 4] y) {{ {text} }}", weights).graph
    assert with_merged_parameters_apart(graph) == (graph, ())


def test_names_that_are_taken_are_not_taken_again() -> None:
    text = """g (float[n, 4] x) => (float[n, 4] y) {
        a = MatMul(x, v)  b = Add(a, zero)  c = MatMul(b, w)  y = Add(c, zero) }"""
    graph = source(text, {**W, "zero": ZERO}).graph
    first, second, third, last = graph.nodes
    nodes = (first, second, replace(third, outputs=("zero.1",)), replace(last, inputs=("zero.1", "zero")))
    found, _ = with_merged_parameters_apart(replace(graph, nodes=nodes))
    assert found.nodes[3].inputs == ("zero.1", "zero.2")
