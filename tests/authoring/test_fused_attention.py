"""Attention as ONNX Runtime's optimizers fuse it trains as the products and the softmax that it was."""

from __future__ import annotations

import numpy as np
import pytest
from authored import differences, source, stepped, trainer_of, uniform

from minbuild.authoring import Recipe
from minbuild.errors import Unsupported
from minbuild.ir import Node
from minbuild.passes.lowering.missing_operators import no_operator
from minbuild.reference.interpreter import ReferenceTrainer

pytestmark = pytest.mark.unit
HEADS, WIDTH, QUERIES, KEYS = 2, 6, 3, 4
PLAIN = """
    heads = Constant<value_ints = [0, 0, 2, -1]>()  flat = Constant<value_ints = [0, 0, -1]>()
    q1 = Reshape(q, heads)  q2 = Transpose<perm = [0, 2, 1, 3]>(q1)
    k1 = Reshape(k, heads)  k2 = Transpose<perm = [0, 2, 3, 1]>(k1)
    v1 = Reshape(v, heads)  v2 = Transpose<perm = [0, 2, 1, 3]>(v1)
    scale = Constant<value_float = 0.57735026919>()
    s = MatMul(q2, k2)  s1 = Mul(s, scale)  s2 = Add(s1, hidden)  p = Softmax<axis = -1>(s2)
    o = MatMul(p, v2)  o1 = Transpose<perm = [0, 2, 1, 3]>(o)  y = Reshape(o1, flat) }"""
X, C = uniform((2, QUERIES, WIDTH), (2, KEYS, WIDTH))
WEIGHTS = dict(zip(("wq", "wk", "wv"), uniform(*((WIDTH, WIDTH),) * 3), strict=True))
BIAS = uniform((3 * WIDTH,))[0]
(TARGET,) = uniform((2, QUERIES, WIDTH))
THERE = np.array([[1, 1, 0, 0], [1, 1, 1, 1]], np.int32)
SOME = np.array([[[1, 1, 0, 0], [1, 0, 0, 1], [0, 0, 0, 1]], [[1, 1, 1, 1]] * 3], np.int32)


def addend(there: np.ndarray | None) -> np.ndarray:
    """The addend of the scores, [batch, heads, queries, keys]."""
    zeros = np.zeros((2, HEADS, QUERIES, KEYS), np.float32)
    return zeros if there is None else zeros + np.where(there, 0, -10000).astype(np.float32)


def assert_equal(
    fused: ReferenceTrainer, plain: ReferenceTrainer, hidden: np.ndarray, *mask: np.ndarray
) -> None:
    """Losses and all gradients are the same, but for the precision of Softmax, which ONNX's Attention has in float."""
    own, wanted = stepped(fused, X, C, *mask, TARGET), stepped(plain, X, C, hidden, TARGET)
    assert own == pytest.approx(wanted, rel=1e-6)
    assert set(fused.trained) == set(plain.trained)
    for name in fused.trained:
        np.testing.assert_allclose(fused.gradients[name], plain.gradients[name], rtol=1e-4, atol=1e-7)


def multi_head(attention: str, mask: str = "", hidden: bool = False) -> ReferenceTrainer:
    """A trainer of an attention of `q`, `k` and `v`, with a further input `mask`."""
    given = f", {mask}" if mask else ", float[2, 2, 3, 4] hidden" if hidden else ""
    text = f"""g (float[2, 3, 6] x, float[2, 4, 6] c{given}) => (float[2, 3, 6] y) {{
        bq, bk, bv = Split<axis = 0>(bias)
        q0 = MatMul(x, wq)  k0 = MatMul(c, wk)  v0 = MatMul(c, wv)
        {"" if "bias" in attention else "q = Add(q0, bq)  k = Add(k0, bk)  v = Add(v0, bv)"} {attention}"""
    return trainer_of(source(text, {**WEIGHTS, "bias": BIAS}), Recipe(loss="mse"))


def fused(inputs: str, before: str = "", **attributes: object) -> str:
    written = ", ".join(f"{n} = {v}" for n, v in {"num_heads": HEADS, **attributes}.items())
    return f"{before} y = com.microsoft.MultiHeadAttention<{written}>({inputs}) }}"


@pytest.mark.parametrize(
    ("mask", "array", "there"),
    [
        ("int32[2] mask", np.array([2, 4], np.int32), THERE[:, None, None]),
        ("int32[2, 4] mask", THERE, THERE[:, None, None]),
        ("int32[2, 3, 4] mask", SOME, SOME[:, None]),
    ],
)
def test_masks_hide_keys(mask: str, array: np.ndarray, there: np.ndarray) -> None:
    own = multi_head(fused("q0, k0, v0, bias, mask"), mask)
    assert_equal(own, multi_head(PLAIN, hidden=True), addend(there), array)


def test_scores_take_an_addend() -> None:
    added = uniform((2, HEADS, QUERIES, KEYS))[0]
    own = multi_head(fused("q, k, v, , , hidden", scale=0.57735026919), hidden=True)
    assert_equal(own, multi_head(PLAIN, hidden=True), added, added)


SPLIT = """h = Constant<value_ints = [0, 0, 2, -1]>()
    k1 = Reshape(k, h)  ks = Transpose<perm = [0, 2, 1, 3]>(k1)
    v1 = Reshape(v, h)  vs = Transpose<perm = [0, 2, 1, 3]>(v1)"""
BESIDE = """h = Constant<value_ints = [0, 0, 2, 1, -1]>()
    k1 = Reshape(k, h)  v1 = Reshape(v, h)  kv = Concat<axis = 3>(k1, v1)"""


@pytest.mark.parametrize(("before", "inputs"), [(SPLIT, "q, ks, vs"), (BESIDE, "q, kv")])
def test_keys_are_split_or_beside_values(before: str, inputs: str) -> None:
    own = multi_head(fused(inputs, before))
    assert_equal(own, multi_head(PLAIN, hidden=True), addend(None))


def self_attention(nodes: str, weights: dict[str, np.ndarray]) -> ReferenceTrainer:
    text = f"g (float[2, 4, 6] c) => (float[2, 4, n] y) {{ {nodes} }}"
    return trainer_of(source(text, weights), Recipe(loss="mse"))


def test_attention_projects_its_input() -> None:
    """Values are narrower than keys, and no key is ahead of its query."""
    w, bias, target = uniform((6, 16), (16,), (2, 4, 4))
    weights = {"w": w, "bias": bias}
    own = self_attention(
        "y = com.microsoft.Attention<num_heads = 2, unidirectional = 1, qkv_hidden_sizes = [6, 6, 4]>(c, w, bias)",
        weights,
    )
    causal = "hidden = Constant<value = float[4, 4] {" + ", ".join(
        str(0.0 if key <= query else -10000.0) for query in range(4) for key in range(4)
    )
    plain = self_attention(
        f"""{causal}}}>()  sizes = Constant<value_ints = [6, 6, 4]>()
        a = MatMul(c, w)  b = Add(a, bias)  q, k, v = Split<axis = 2>(b, sizes) {PLAIN.removesuffix("}")}""",
        weights,
    )
    assert stepped(own, C, target) == pytest.approx(stepped(plain, C, target), rel=1e-6)
    for name in own.trained:
        np.testing.assert_allclose(own.gradients[name], plain.gradients[name], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("positions", [np.array([[0, 1, 2], [4, 5, 6]]), np.array([1])])
def test_rotary_embedding(interleaved: int, positions: np.ndarray) -> None:
    """Pairs of elements turn by the angle of their position."""
    w, target, angles = *uniform((6, 8), (2, 3, 8)), np.linspace(0, 3, 14).reshape(7, 2).astype(np.float32)
    tables = {"w": w, "cos": np.cos(angles), "sin": np.sin(angles)}
    text = f"""g (float[2, 3, 6] x, int64[{", ".join(map(str, positions.shape))}] at) => (float[2, 3, 8] y) {{
        q = MatMul(x, w)
        y = com.microsoft.RotaryEmbedding<num_heads = 2, interleaved = {interleaved}>(q, at, cos, sin) }}"""
    trainer = trainer_of(source(text, tables), Recipe(loss="mse", train=("w",), outputs=("y",)))
    rows = positions if positions.size > 1 else positions + np.arange(3)[None]
    turn = np.exp(1j * angles[rows].astype(np.float64))[:, :, None]
    q = (X.astype(np.float64) @ w).reshape(2, 3, 2, 4)
    first, second = (q[..., ::2], q[..., 1::2]) if interleaved else (q[..., :2], q[..., 2:])
    turned = (first + 1j * second) * turn
    wanted = (
        np.stack([turned.real, turned.imag], -1).reshape(2, 3, 8)
        if interleaved
        else np.concatenate([turned.real, turned.imag], -1).reshape(2, 3, 8)
    )
    np.testing.assert_allclose(trainer.eval_step(X, positions, target)[1], wanted, rtol=1e-5, atol=1e-6)
    assert max(differences(trainer, X, positions, target).values()) < 1e-6


@pytest.mark.parametrize(
    ("node", "cure"),
    [
        (
            "y, p, r = com.microsoft.MultiHeadAttention<num_heads = 2>(q, q, q, , , , p0, p0)",
            "use_cache=False",
        ),
        ("y = com.microsoft.MultiHeadAttention<num_heads = 2, unidirectional = 1>(q, c, c)", "as many keys"),
        ("y = com.microsoft.MultiHeadAttention<num_heads = 2>(q, c, c, , m)", r"\[batch, keys\]"),
    ],
)
def test_refusals_give_a_cure(node: str, cure: str) -> None:
    text = f"""g (float[2, 3, 6] x, float[2, 4, 6] c, float[2, 2, 0, 3] p0, int32[8] m) => (float[2, 3, 6] y) {{
        q = MatMul(x, wq)  {node} }}"""
    with pytest.raises(Unsupported, match=cure):
        trainer_of(source(text, {"wq": WEIGHTS["wq"]}), Recipe(loss="mse"))


@pytest.mark.parametrize(
    ("domain", "op_type", "cure"),
    [
        ("com.microsoft.nchwc", "Conv", "ORT_ENABLE_EXTENDED"),
        ("com.ms.internal.nhwc", "Conv", "ORT_ENABLE_EXTENDED"),
        ("com.microsoft", "BiasSplitGelu", "Take the model as it was exported"),
        ("own", "Conv", "--ops-dir"),
        ("ai.onnx.ml", "ZipMap", "'zipmap': False"),
    ],
)
def test_what_an_optimizer_wrote_is_named_as_such(domain: str, op_type: str, cure: str) -> None:
    assert cure in no_operator(Node(op_type, domain, 1, name="n", inputs=("x",), outputs=("y",)))


def test_a_skip_layer_without_a_mean_may_have_a_place_for_it() -> None:
    """As onnxscript's rewriter for ONNX Runtime names all four outputs."""
    text = """g (float[2, 3, 6] x) => (float[2, 3, 6] y) {
        a = MatMul(x, wq)
        b, none, too, c = com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 0.1>(a, x, gamma)  y = Add(b, c) }"""
    trainer = trainer_of(source(text, {"wq": WEIGHTS["wq"], "gamma": uniform((6,))[0]}), Recipe(loss="mse"))
    assert max(differences(trainer, X, TARGET).values()) < 1e-6
