"""ONNX's LinearAttention and CausalConvWithState over many steps: a loop with the numbers of their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import trainers
from authored import source

from minbuild.authoring import Recipe, artifacts_of
from minbuild.ir import TrainingArtifacts
from minbuild.ops import registry
from minbuild.planning.plan import peak_bytes
from minbuild.planning.plan_encoding import encode_plan
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.training.library import TRAIN

REGISTRY = registry()
STEPS, BATCH, HEADS, KEYS, VALUES = 20, 2, 2, 3, 4
RULES = ("linear", "gated", "delta", "gated_delta")
_EXTRA = {"linear": "", "gated": ", , g", "delta": ", , , b", "gated_delta": ", , g, b"}
OPSET = 27


def artifacts(rule: str, steps: int | str = STEPS, domain: str = "") -> TrainingArtifacts:
    """Projections of an input, causally convolved, lead to the operator, and its result to an output. `domain` stands
    before the names of operators."""
    random = np.random.default_rng(1)
    sizes = {"q": 2 * HEADS * KEYS, "k": HEADS * KEYS, "v": HEADS * VALUES, "g": HEADS, "b": HEADS}
    used = [n for n in sizes if n in "qkv" or f" {n}" in _EXTRA[rule]]
    lines = [f"{n}_all = MatMul (c, W{n})" for n in used]
    lines += [f"{n} = {'Identity' if n in 'qkv' else 'Sigmoid'} ({n}_all)" for n in used if n != "g"]
    lines += ["g_one = Softplus (g_all) g = Neg (g_one)"] if "g" in used else []
    text = f"""
        m (float[{BATCH},{steps},5] x) => (float[{BATCH},{2 * HEADS * VALUES}] out) {{
            turned = Transpose <perm = [0, 2, 1]> (x)
            conv, kept = {domain}CausalConvWithState <activation = "silu"> (turned, filter, bias)
            c = Transpose <perm = [0, 2, 1]> (conv)
            {" ".join(lines)}
            y, state = {domain}LinearAttention
                <q_num_heads = {2 * HEADS}, kv_num_heads = {HEADS}, update_rule = "{rule}"> (q, k, v{_EXTRA[rule]})
            out = ReduceMean <keepdims = 0> (y, axis)
        }}"""
    weights = {f"W{n}": random.standard_normal((5, sizes[n])).astype(np.float32) * 0.4 for n in used}
    weights |= {"filter": random.standard_normal((5, 1, 4)).astype(np.float32) * 0.5}
    weights |= {"bias": random.standard_normal(5).astype(np.float32) * 0.1}
    model = source(text, {**weights, "axis": np.array([1])}, 20 if domain else OPSET)
    return artifacts_of(model, Recipe(loss="mse", optimizer="sgd"), REGISTRY)


def batch(steps: int = STEPS) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(2)
    shapes = (BATCH, steps, 5), (BATCH, 2 * HEADS * VALUES)
    return tuple(random.standard_normal(s).astype(np.float32) for s in shapes)


def loss_of(rule: str, weights: dict[str, np.ndarray], x: np.ndarray, target: np.ndarray) -> float:
    """The definition of both operators, step by step in double precision."""
    x = x.astype(np.float64)
    padded = np.concatenate([np.zeros((BATCH, 3, 5)), x], axis=1)
    c = sum(padded[:, i : i + x.shape[1]] * weights["filter"][:, 0, i] for i in range(4)) + weights["bias"]
    c = c / (1 + np.exp(-c))
    one = {n: c @ w for n, w in weights.items() if n.startswith("W")}
    parts = {
        n: one[f"W{n}"].reshape(BATCH, -1, h, d)
        for n, h, d in (("q", 2 * HEADS, KEYS), ("k", HEADS, KEYS), ("v", HEADS, VALUES))
    }
    state, made = np.zeros((BATCH, HEADS, KEYS, VALUES)), []
    for t in range(x.shape[1]):
        q, k, v = (parts[n][:, t] for n in "qkv")
        if "gated" in rule:
            state = state * np.exp(-np.log1p(np.exp(one["Wg"][:, t])))[:, :, None, None]
        if "delta" in rule:
            v = v - np.einsum("bhkv,bhk->bhv", state, k)
            v = v / (1 + np.exp(-one["Wb"][:, t]))[:, :, None]
        state = state + k[..., None] * v[:, :, None]
        read = np.repeat(state, 2, axis=1)
        made.append(np.einsum("bhkv,bhk->bhv", read, q).reshape(BATCH, -1) / np.sqrt(KEYS))
    return float(np.mean((np.mean(made, axis=0) - target) ** 2))


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_a_loop_with_the_gradients_of_its_definition(rule):
    made = artifacts(rule)
    assert [n.op_type for n in made.training.nodes].count("Scan") == 2
    trainer = ReferenceTrainer(made)
    weights = {p.name: np.asarray(p.data, np.float64) for p in made.checkpoint.parameters}
    loss = float(np.ravel(trainer.train_step(*batch())[0])[0])
    np.testing.assert_allclose(loss, loss_of(rule, weights, *batch()), rtol=1e-6)
    random = np.random.default_rng(3)
    for name, gradient in trainer.gradients.items():
        way = random.standard_normal(gradient.shape)
        ahead, back = (
            loss_of(rule, {**weights, name: weights[name] + s * way}, *batch()) for s in (1e-5, -1e-5)
        )
        scale = np.linalg.norm(gradient) * np.linalg.norm(way)  # the operator itself computes in float
        assert abs((gradient * way).sum() - (ahead - back) / 2e-5) < 1e-6 * scale, name


def test_onnx_runtimes_own_operators_are_those_of_onnx():
    results = []
    for domain in ("", "com.microsoft."):
        trainer = ReferenceTrainer(artifacts("gated_delta", domain=domain))
        results.append((trainer.train_step(*batch())[0], dict(trainer.gradients)))
    (loss, gradients), (own_loss, own) = results
    np.testing.assert_array_equal(loss, own_loss)
    for name, gradient in gradients.items():
        np.testing.assert_array_equal(gradient, own[name], err_msg=name)


@pytest.mark.parametrize("steps", [STEPS, "T"])
def test_built_trainers_compute_the_rule_with_everything(steps, tmp_path):
    made = artifacts("gated_delta", steps)
    plan = trainers.plan_of(made, REGISTRY)
    assert plan.loops
    library = trainers.library_of(trainers.contents_of([plan]), REGISTRY, tmp_path)
    parameters = {p.name: np.asarray(p.data) for p in made.checkpoint.parameters}
    session = trainers.session_of(library, plan, parameters)
    trainer = ReferenceTrainer(made)
    for count in (STEPS,) if steps == STEPS else (STEPS, 7, 32):
        feeds = batch(count)
        trainer.lazy_reset_grad()
        (loss,) = session.run(TRAIN, list(feeds))[:1]
        np.testing.assert_allclose(np.ravel(loss), np.ravel(trainer.train_step(*feeds)[0]), rtol=1e-5)
        for name, gradient in trainer.gradients.items():
            scale = np.abs(gradient).max()
            np.testing.assert_allclose(
                session.gradient(name), gradient, rtol=0, atol=2e-5 * scale, err_msg=name
            )
        session.lazy_reset_grad()


def test_plans_do_not_grow_with_steps_and_memory_does_linearly():
    sizes = []
    for steps in (32, 128):
        plan = trainers.plan_of(artifacts("gated_delta", steps), REGISTRY)
        sizes.append((len(encode_plan(plan, {})), peak_bytes(plan, {})[0]))
    (small, little), (large, much) = sizes
    assert large <= small + 64
    assert much < 4.2 * little
