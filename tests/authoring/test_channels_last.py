"""Operators on quantised images with channels last, as ONNX Runtime's optimizer writes them."""

from __future__ import annotations

import numpy as np
import pytest
from authored import operators, stepped
from beside_interpreter import farthest
from quantizer_models import MICROSOFT, RANDOM, adapted, numbers, outputs, proto_of, scales

from minbuild.reference.interpreter import ReferenceTrainer

LAST, FIRST = {"perm": [0, 2, 3, 1]}, {"perm": [0, 3, 1, 2]}
CONV, POOL, MEAN = (f"{MICROSOFT}:QLinear{n}" for n in ("Conv", "AveragePool", "GlobalAveragePool"))
WINDOW = {"kernel_shape": [2, 2], "strides": [2, 2]}


def nodes(last: bool, turned: bool) -> list:
    """Two convolutions, one with a filter for each channel, and pools; with channels `last`, images are `turned` back
    in between, as where an operator has no such form."""
    own = {"channels_last": 1} if last else {}
    head = [("QuantizeLinear", "x x.s x.z", "x.q", {})]
    image, between = ("x.l", "b.l") if last else ("x.q", "b.q")
    if last:
        head.append(("Transpose", "x.q", "x.l", LAST))
    middle = [
        (CONV, f"{image} x.s x.z k k.s k.z c.s c.z k.b", "c.q", {"pads": [1] * 4, **own}),
        (f"{MICROSOFT}:NhwcMaxPool" if last else "MaxPool", "c.q", "m.q", WINDOW),
        (CONV, "m.q c.s c.z d d.s d.z d.r d.y", "d.q", {"group": 4, "pads": [1] * 4, **own}),
        (POOL, "d.q d.r d.y p.s p.z", "b.q", {"kernel_shape": [2, 2], **own}),
    ]
    if last and turned:
        middle += [("Transpose", "b.q", "b.f", FIRST), ("Transpose", "b.f", "b.l", LAST)]
    end = [
        (MEAN, f"{between if turned or not last else 'b.q'} p.s p.z g.s g.z", "g.q", own),
        ("Flatten", "g.q", "f.q", {}),
        ("QLinearMatMul", "f.q g.s g.z v v.s v.z y.s y.z", "y.q", {}),
        ("DequantizeLinear", "y.q y.s y.z", "y", {}),
    ]
    return [*head, *middle, *end]


CONSTANTS = {
    **{"x.s": np.float32(0.02), "x.z": np.uint8(128), "c.s": np.float32(0.05), "c.z": np.uint8(120)},
    **{"d.r": np.float32(0.2), "d.y": np.uint8(117), "p.s": np.float32(0.19), "p.z": np.uint8(119)},
    **{"g.s": np.float32(0.03), "g.z": np.uint8(124), "y.s": np.float32(0.02), "y.z": np.uint8(125)},
    **{"k": numbers(np.int8, 4, 2, 3, 3), "k.s": scales(4), "k.z": np.zeros(4, np.int8)},
    **{"d": numbers(np.int8, 4, 1, 3, 3), "d.s": scales(4), "d.z": np.zeros(4, np.int8)},
    **{"v": numbers(np.int8, 4, 3), "v.s": scales(3), "v.z": np.zeros(3, np.int8)},
    "k.b": RANDOM.integers(-999, 999, 4).astype(np.int32),
}
SHAPES = (2, 8, 8), (3,)
X, T = (RANDOM.standard_normal((5, *shape)).astype(np.float32) for shape in SHAPES)


def artifacts(last: bool, turned: bool = False, opset: int = 21):
    return adapted(proto_of(nodes(last, turned), CONSTANTS, SHAPES, opset))


@pytest.mark.parametrize("opset", [11, 21])
@pytest.mark.parametrize("turned", [False, True])
def test_they_train_as_with_channels_first(turned, opset):
    """Bit for bit, forward and backward."""
    found = []
    for last in (True, False):
        made = artifacts(last, turned, opset)
        trainer, random = ReferenceTrainer(made), np.random.default_rng(2)
        names = [p.name for p in made.checkpoint.parameters]
        assert {n.split(".")[0] for n in names} == set("kv")
        trainer.parameters |= {n: random.standard_normal(trainer.parameters[n].shape) / 8 for n in names}
        assert operators(made).count("Transpose") == 2 * last  # of what the mean makes, and its gradient
        found.append((stepped(trainer, X, T), {n: g.tobytes() for n, g in trainer.gradients.items()}))
    assert found[0] == found[1]
    assert np.unique(outputs(artifacts(True, turned, opset), X, (3,))).size > 5


def test_trainers_compute_what_their_graphs_say(tmp_path):
    proto = proto_of(nodes(last=True, turned=True), CONSTANTS, SHAPES)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = len(X)
    assert farthest({"net": adapted(proto)}, {"net": [(X, T)]}, tmp_path)["net"] < 1e-6
