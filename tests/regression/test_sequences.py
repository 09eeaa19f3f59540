"""Models whose exporters split tensors into sequences were refused: there was no operator SplitToSequence."""

from __future__ import annotations

import authored
import numpy as np
import pytest
from authored import differences, operators, source, trainer_of, uniform

from minbuild.authoring import Recipe, artifacts_of
from minbuild.errors import Unsupported
from minbuild.ops import registry

pytestmark = pytest.mark.unit

# How the parts `a` [N,2] and `b` [N,1] of `h` [N,3] are taken, with what makes them.
WAYS = {
    "sizes": "int64[2] sizes = {2, 1}, int64 zero = {0}, int64 last = {-1}"
    "> { h = MatMul(x, w) s = SplitToSequence <axis = 1> (h, sizes) a = SequenceAt(s, zero) b = SequenceAt(s, last)",
    "size": "int64 two = {2}, int64 zero = {0}, int64 one = {1}"
    "> { h = MatMul(x, w) s = SplitToSequence <axis = 1> (h, two) a = SequenceAt(s, zero) b = SequenceAt(s, one)",
    "rows": "int64 zero = {0}, int64 one = {1}, int64[1] axis = {1}> { h = MatMul(x, w)"
    "s = SplitToSequence <axis = 1, keepdims = 0> (h) r = SequenceAt(s, zero) q = SequenceAt(s, one)"
    "t = SequenceConstruct(r, q) a = ConcatFromSequence <axis = 1, new_axis = 1> (t)"
    "b = Unsqueeze(r, axis)",
    "edited": "int64[2] sizes = {2, 1}, int64 zero = {0}> { h = MatMul(x, w)"
    "s = SplitToSequence <axis = 1> (h, sizes) e = SequenceErase(s, zero) b = SequenceAt(e, zero)"
    "i = SequenceInsert(e, b, zero) n = SequenceLength(i) f = Cast <to = 1> (n) c = ConcatFromSequence <axis = 1> (i)"
    "a = Mul(c, f)",
}


def model(way: str, opset: int = 17) -> authored.Source:
    text = f"g (float[N,4] x) => (float[N,2] y) <{WAYS[way]} p = Mul(a, b) y = Tanh(p) }}"
    return source(text, {"w": uniform((4, 3))[0]}, opset)


@pytest.mark.parametrize("way", WAYS)
def test_gradients_flow_through_sequences(way):
    made = trainer_of(model(way), Recipe(loss="mse"))
    x, target = uniform((3, 4), (3, 2))
    found = differences(made, x, target)
    assert found and max(found.values()) < 1e-6


@pytest.mark.parametrize("opset", [11, 13])
def test_sizes_are_an_attribute_before_opset_13(opset):
    artifacts = artifacts_of(model("sizes", opset), Recipe(loss="mse"), registry())
    assert "Split" in operators(artifacts) and "SplitToSequence" not in operators(artifacts)


def test_parts_by_a_computed_number_are_refused():
    text = (
        "g (float[N,4] x, int64 i) => (float[N,2] y) <int64 two = {2}>"
        "{ h = MatMul(x, w) s = SplitToSequence <axis = 1> (h, two) y = SequenceAt(s, i) }"
    )
    with pytest.raises(Unsupported, match="SplitToSequence, opset 17"):
        trainer_of(source(text, {"w": np.ones((4, 4), np.float32)}), Recipe(loss="mse"))
