"""QAttention, which ONNX Runtime's quantizer writes for fused attention layers, becomes float products that compute the
same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from authored import differences, operators
from beside_interpreter import farthest
from onnx import TensorProto, helper
from quantizer_models import MICROSOFT, RANDOM, adapted, fake_quantised, numbers, proto_of, scales, source_of

from minbuild.authoring import Recipe, artifacts_of
from minbuild.errors import Unsupported
from minbuild.ops import registry
from minbuild.reference.interpreter import ReferenceTrainer

BATCH, PLACES, WIDTH, HEADS, HEAD = 3, 5, 6, 2, 4
HIDDEN = HEADS * HEAD
FORMS = {  # if inputs are quantised dynamically; scales of a column; mask; attributes; opset
    "plain": (False, False, "", {}, 17),
    "dynamic": (True, True, "", {}, 13),
    "masked": (True, False, "mask", {"mask_filter_value": -50.0}, 11),
    "lengths": (False, True, "lengths", {}, 17),
    "causal": (True, False, "", {"unidirectional": 1}, 21),
    "causal, masked, scaled": (False, False, "mask", {"unidirectional": 1, "scale": 0.25}, 17),
}
MASK = np.arange(PLACES) < np.array([[5], [3], [1]])


def constants(columns: bool) -> dict[str, np.ndarray]:
    across = (3 * HIDDEN,) if columns else ()
    return {
        **{"w": numbers(np.int8, WIDTH, 3 * HIDDEN), "ws": scales(*across), "wz": np.zeros(across, np.int8)},
        "b": RANDOM.standard_normal(3 * HIDDEN).astype(np.float32),
        **{"s": np.float32(0.03), "z": np.uint8(120)},
        "head": RANDOM.standard_normal((HIDDEN, 2)).astype(np.float32),
    }


def model(form: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    dynamic, columns, mask, flags, opset = FORMS[form]
    given = constants(columns)
    scale = "x.s x.z" if dynamic else "s z"
    head = (
        [("DynamicQuantizeLinear", "x", "x.q x.s x.z", {})]
        if dynamic
        else [("QuantizeLinear", "x s z", "x.q", {})]
    )
    if mask == "lengths":
        reads, inputs = ("there axes", {}) if opset >= 13 else ("there", {"axes": [1]})
        head += [("Cast", "mask", "there", {"to": TensorProto.INT32})]
        head += [("ReduceSum", reads, "lengths", {"keepdims": 0, **inputs})]
        given["axes"] = np.array([1])
    reads = f"x.q w b {scale.split()[0]} ws {mask or '-'} {scale.split()[1]} wz"
    nodes = [
        *head,
        (f"{MICROSOFT}:QAttention", reads, "a", {"num_heads": HEADS, **flags}),
        ("MatMul", "a head", "y", {}),
    ]
    used = set(" ".join(n[1] for n in nodes).split())
    proto = proto_of(
        nodes, {n: a for n, a in given.items() if n in used}, ((PLACES, WIDTH), (PLACES, 2)), opset
    )
    if mask:
        proto.graph.input.append(helper.make_tensor_value_info("mask", TensorProto.INT32, ["batch", PLACES]))
    return proto, given


def expected(x: np.ndarray, form: str, given: dict[str, np.ndarray]) -> np.ndarray:
    """In double precision."""
    dynamic, _, mask, flags, _ = FORMS[form]
    if dynamic:
        real = fake_quantised(x.astype(np.float64))
    else:
        real = np.clip(np.rint(x.astype(np.float64) / given["s"]) + 120, 0, 255)
        real = (real - 120) * np.float64(given["s"])
    sums = real @ (given["w"].astype(np.float64) * given["ws"]) + given["b"]
    q, k, v = (p.reshape(BATCH, PLACES, HEADS, HEAD).transpose(0, 2, 1, 3) for p in np.split(sums, 3, -1))
    scores = q @ k.transpose(0, 1, 3, 2) * (flags.get("scale") or HEAD**-0.5)
    if mask:
        scores = scores + np.where(MASK, 0, flags.get("mask_filter_value", -10000.0))[:, None, None]
    if flags.get("unidirectional"):
        scores = np.where(np.tri(PLACES, dtype=bool), scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    return (shares @ v).transpose(0, 2, 1, 3).reshape(BATCH, PLACES, HIDDEN) @ given["head"]


def feeds(form: str) -> list[np.ndarray]:
    x = np.random.default_rng(4).standard_normal((BATCH, PLACES, WIDTH)).astype(np.float32)
    return [x, MASK.astype(np.int32)] if FORMS[form][2] else [x]


@pytest.mark.parametrize("form", FORMS)
def test_it_computes_the_attention_of_its_weights(form):
    proto, given = model(form)
    made = adapted(proto)
    assert {"QAttention", "QuantizeLinear", "DynamicQuantizeLinear"}.isdisjoint(operators(made))
    assert {p.name.split(".")[0] for p in made.checkpoint.parameters} == {"w", "head"}
    batch = feeds(form)
    wanted = expected(batch[0], form, given)
    _, found = ReferenceTrainer(made).eval_step(*batch, np.zeros((BATCH, PLACES, 2), np.float32))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_gradients_flow_through_it(form):
    """Behind the quantised input, whose rounding counts as the identity."""
    recipe = Recipe("mse", optimizer="sgd", train=("b", "head"))
    made = artifacts_of(source_of(model(form)[0]), recipe, registry())
    batch = [*feeds(form), np.zeros((BATCH, PLACES, 2), np.float32)]
    assert max(differences(ReferenceTrainer(made), *batch).values()) < 1e-5


def test_trainers_compute_what_their_graphs_say(tmp_path):
    made, batches = {}, {}
    for form in FORMS:
        proto = model(form)[0]
        for value in (*proto.graph.input, *proto.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = BATCH
        made[form] = adapted(proto)
        batches[form] = [[*feeds(form), np.zeros((BATCH, PLACES, 2), np.float32)]]
    # Scores are rounded at some tens, and their differences are exponents.
    assert max(farthest(made, batches, tmp_path).values()) < 4e-6


@pytest.mark.parametrize("flags", [{"do_rotary": 1}, {"num_heads": 5}])
def test_other_forms_are_refused_with_a_cure(flags):
    proto = model("plain")[0]
    node = next(n for n in proto.graph.node if n.op_type == "QAttention")
    kept = [a for a in node.attribute if a.name not in flags]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(n, v) for n, v in flags.items())])
    with pytest.raises(Unsupported, match="QAttention.*Quantise the model as it was exported"):
        adapted(proto)
