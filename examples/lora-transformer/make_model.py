"""Trains a transformer of two layers to write like everybody, and writes it as model.onnx.

A model exported from PyTorch takes its place: adapters go beside weights of MatMul, whoever wrote the file.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser
from texts import LENGTH, SYMBOLS, everybody, windows

from minbuild.training.api import CheckpointState, Module, Optimizer
from minbuild.training.artifacts import LossType, OptimType, generate_artifacts

WIDTH, HEADS, LAYERS, BATCH, STEPS = 32, 2, 2, 16, 1500

LAYER = """
  {i}_normal = LayerNormalization<axis=-1>({x}, {i}_norm1_weight, {i}_norm1_bias)
  {i}_q = MatMul({i}_normal, {i}_attention_q)
  {i}_k = MatMul({i}_normal, {i}_attention_k)
  {i}_v = MatMul({i}_normal, {i}_attention_v)
  {i}_q_split = Reshape({i}_q, split)
  {i}_k_split = Reshape({i}_k, split)
  {i}_v_split = Reshape({i}_v, split)
  {i}_q_heads = Transpose<perm=[0, 2, 1, 3]>({i}_q_split)
  {i}_k_heads = Transpose<perm=[0, 2, 3, 1]>({i}_k_split)
  {i}_v_heads = Transpose<perm=[0, 2, 1, 3]>({i}_v_split)
  {i}_raw = MatMul({i}_q_heads, {i}_k_heads)
  {i}_scaled = Mul({i}_raw, scale)
  {i}_masked = Add({i}_scaled, mask)
  {i}_weights = Softmax<axis=-1>({i}_masked)
  {i}_mixed = MatMul({i}_weights, {i}_v_heads)
  {i}_turned = Transpose<perm=[0, 2, 1, 3]>({i}_mixed)
  {i}_joined = Reshape({i}_turned, join)
  {i}_attended = MatMul({i}_joined, {i}_attention_o)
  {i}_residual = Add({x}, {i}_attended)
  {i}_normal2 = LayerNormalization<axis=-1>({i}_residual, {i}_norm2_weight, {i}_norm2_bias)
  {i}_wide = MatMul({i}_normal2, {i}_up)
  {i}_active = Relu({i}_wide)
  {i}_narrow = MatMul({i}_active, {i}_down)
  {y} = Add({i}_residual, {i}_narrow)
"""


def weights() -> dict[str, np.ndarray]:
    """Random ones: matrices scaled by their inputs, norms as they begin."""
    random = np.random.default_rng(2)
    found = {
        "embedding": 0.1 * random.standard_normal((len(SYMBOLS), WIDTH)),
        "position": 0.1 * random.standard_normal((LENGTH, WIDTH)),
    }
    for i in range(LAYERS):
        for name, rows, columns in (
            *((f"attention_{part}", WIDTH, WIDTH) for part in "qkvo"),
            ("up", WIDTH, 4 * WIDTH),
            ("down", 4 * WIDTH, WIDTH),
        ):
            found[f"layer{i}_{name}"] = random.standard_normal((rows, columns)) / np.sqrt(rows)
        for norm in ("norm1", "norm2"):
            found[f"layer{i}_{norm}_weight"], found[f"layer{i}_{norm}_bias"] = np.ones(WIDTH), np.zeros(WIDTH)
    found |= {"norm_weight": np.ones(WIDTH), "norm_bias": np.zeros(WIDTH)}
    found["head"] = random.standard_normal((WIDTH, len(SYMBOLS))) / np.sqrt(WIDTH)
    return {name: value.astype(np.float32) for name, value in found.items()}


def transformer(values: dict[str, np.ndarray]) -> onnx.ModelProto:
    """text [batch,LENGTH] -> scores [batch * LENGTH, symbols] of the symbol that follows."""
    body, x = "  e = Gather(embedding, text)\n  x0 = Add(e, position)\n", "x0"
    for i in range(LAYERS):
        body, x = body + LAYER.format(i=f"layer{i}", x=x, y=f"x{i + 1}"), f"x{i + 1}"
    graph = f"""small (int64[batch, {LENGTH}] text) => (float[positions, {len(SYMBOLS)}] scores) {{
{body}
  normal = LayerNormalization<axis=-1>({x}, norm_weight, norm_bias)
  rows = Reshape(normal, flat)
  scores = MatMul(rows, head)
}}"""
    model = helper.make_model(
        parser.parse_graph(graph), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    constants = {
        "split": np.array([0, LENGTH, HEADS, WIDTH // HEADS]),
        "join": np.array([0, LENGTH, WIDTH]),
        "flat": np.array([-1, WIDTH]),
        "scale": np.float32((WIDTH / HEADS) ** -0.5),
        "mask": np.triu(np.full((LENGTH, LENGTH), -1e9, np.float32), 1),
    }
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in (values | constants).items())
    return model


def main() -> None:
    text = everybody()
    model = transformer(weights())
    names = list(weights())
    generate_artifacts(
        model,
        requires_grad=names,
        loss=LossType.CrossEntropyLoss,
        optimizer=OptimType.AdamW,
        artifact_directory="everybody",
    )
    state = CheckpointState.load_checkpoint("everybody/checkpoint")
    module = Module("everybody/training_model.onnx", state, "everybody/eval_model.onnx")
    optimizer = Optimizer("everybody/optimizer_model.onnx", module)
    random, losses = np.random.default_rng(0), []
    for step in range(STEPS):
        optimizer.set_learning_rate(0.006 * (1 - step / STEPS))
        losses.append(float(module(*windows(text, random.integers(0, len(text) - LENGTH - 1, BATCH)))))
        optimizer.step()
        module.lazy_reset_grad()
    print(
        f"for everybody: {len(text):,} symbols, loss {losses[0]:.2f}, then {np.mean(losses[-50:]):.2f} a symbol"
    )
    onnx.save(
        transformer({name: parameter.data.copy() for name, parameter in state.parameters}), "model.onnx"
    )


if __name__ == "__main__":
    main()
