"""Inputs of one number that are fixed, and the branches of a model that follow from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from minbuild.authoring import Recipe, Source, artifacts_of
from minbuild.errors import BadInput, Unsupported
from minbuild.frontend.onnx.reader import read_graph
from minbuild.ops import registry
from minbuild.reference.interpreter import ReferenceTrainer

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
# Weights are Constant nodes of the branches; at four columns only the first branch has shapes that fit.
RATES = """
    <ir_version: 8, opset_import: ["" : 17]>
    m (float[n,4] x, int64 rate) => (float[n,1] y) <int64 high = {16000}> {
        same = Equal (rate, high)
        y = If (same) <
            then_branch = fast () => (float[n,1] a) {
                w = Constant <value = float[4,1] {1, 2, 3, 4}> ()
                v = Constant <value = float[1,1] {0.5}> ()
                h = MatMul (x, w)
                a = MatMul (h, v)
            },
            else_branch = slow () => (float[n,1] b) {
                u = Constant <value = float[OTHER,1] {1, 2, 3, 4}> ()
                b = MatMul (x, u)
            }>
    }"""


def source_of(other: int) -> Source:
    values = ", ".join(map(str, range(1, other + 1)))
    text = RATES.replace("{1, 2, 3, 4}> ()\n                b", f"{{{values}}}> ()\n                b")
    model = onnx.parser.parse_model(text.replace("OTHER", str(other)))
    graph = read_graph(model.SerializeToString(), Path("model.onnx"))
    return Source(graph, 17, Path("model.onnx"))


def recipe_of(**sizes: int) -> Recipe:
    return Recipe(loss="mse", optimizer="sgd", train=("last:1",), sizes=sizes)


def test_a_fixed_input_chooses_a_branch_and_its_layers_are_the_models():
    made = artifacts_of(source_of(3), recipe_of(rate=16000), registry())
    assert [p.name for p in made.checkpoint.parameters if p.trainable] == ["y/then_branch/v"]
    assert "rate" not in made.training.inputs
    assert not any(node.op_type == "If" for node in made.training.nodes)
    trainer, target = ReferenceTrainer(made), np.ones((2, 1), np.float32)
    wanted = X.astype(np.float64) @ [[1], [2], [3], [4]] * 0.5
    assert float(trainer.train_step(X, target)[0]) == pytest.approx(((wanted - 1) ** 2).mean())


def test_the_refusal_of_a_branch_says_which_input_to_fix():
    with pytest.raises(Unsupported, match=r"--dim rate=\.\.\. \(inputs of one whole number: rate\)"):
        artifacts_of(source_of(3), recipe_of(), registry())


def test_weights_in_both_branches_train_where_the_condition_depends_on_data():
    recipe = Recipe(loss="mse", optimizer="sgd")
    made = artifacts_of(source_of(4), recipe, registry())
    assert sorted(p.name for p in made.checkpoint.parameters if p.trainable) == ["u", "v", "w"]
    target = np.ones((2, 1), np.float32)
    for rate, moved in ((16000, {"v", "w"}), (8000, {"u"})):
        trainer = ReferenceTrainer(made)
        trainer.train_step(X, np.array(rate), target)
        assert {n for n, gradient in trainer.gradients.items() if gradient.any()} == moved


def test_a_name_that_is_neither_a_dimension_nor_a_whole_number_is_refused():
    with pytest.raises(BadInput, match=r"--dim rates=16000: .*no such free dimension.*rate"):
        artifacts_of(source_of(4), recipe_of(rates=16000), registry())


LIMIT = """
    <ir_version: 8, opset_import: ["" : 17]>
    m (float[n,4] x, float limit) => (float[n,1] y) <float[4,1] w = {1, 2, 3, 4}> {
        low = Less (x, limit)
        zero = Sub (x, x)
        kept = Where (low, x, zero)
        y = MatMul (kept, w)
    }"""


def test_a_real_number_is_fixed_by_the_name_of_its_input():
    model = onnx.parser.parse_model(LIMIT)
    graph = read_graph(model.SerializeToString(), Path("model.onnx"))
    made = artifacts_of(Source(graph, 17, Path("model.onnx")), recipe_of(limit=0), registry())
    assert "limit" not in made.training.inputs
    target = np.ones((2, 1), np.float32)
    wanted = np.where(X < 0, X, 0).astype(np.float64) @ [[1], [2], [3], [4]]
    assert float(ReferenceTrainer(made).train_step(X, target)[0]) == pytest.approx(((wanted - 1) ** 2).mean())


def test_inputs_of_several_real_numbers_are_not_fixed():
    with pytest.raises(BadInput, match="no such free dimension"):
        artifacts_of(source_of(4), recipe_of(x=1), registry())
