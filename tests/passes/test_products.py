"""What becomes part of a matrix product: transpositions, biases and scales around it; and where it must not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
import trainers

from minbuild.frontend.onnx.reader import read_graph
from minbuild.ir import Checkpoint, Procedure, TrainingArtifacts
from minbuild.ir.dims import symbol
from minbuild.ops import registry
from minbuild.ops.core.definition import UnsupportedUse
from minbuild.ops.linear_algebra.contraction import layout_of
from minbuild.ops.linear_algebra.einsum_equation import Equation
from minbuild.passes.lowering.lower import lower
from minbuild.passes.manager import optimize
from minbuild.reference.interpreter import ReferenceTrainer

REGISTRY = registry()
BATCH = symbol("batch")
INPUTS = """float[2,5,3,4] q, float[2,5,3,4] k, float[2,5,6] x, float[7,6] w, float[3,7] v, float[7] c,
    float[7,5] u, float[3,5] r, float[3,1] p, float[7,1] e"""


def artifacts(body: str) -> TrainingArtifacts:
    """A graph over the INPUTS that `body` reads."""
    outputs = ", ".join(f"float {name}" for name in ("y", "z") if f" {name} =" in body)
    opsets = '["": 17, "com.microsoft": 1]'
    constants = "<float half = {0.5}, float[1] four = {4}>"
    text = f"<ir_version: 8, opset_import: {opsets}> m ({INPUTS}) => ({outputs}) {constants} {{{body}}}"
    model = onnx.parser.parse_model(text)
    graph = read_graph(model.SerializeToString(), Path("model.onnx"))
    used = {n for node in graph.nodes for n in node.inputs}
    inputs = {n: t for n, t in graph.inputs.items() if n in used}
    return TrainingArtifacts(replace(graph, inputs=inputs), None, None, Checkpoint(()), {})


def optimized(body: str) -> Procedure:
    return optimize(lower(artifacts(body), REGISTRY, {}), REGISTRY).procedures[0]


def ops(body: str) -> list[str]:
    return [call.op.rpartition(":")[2] for call in optimized(body).calls]


FOLDED = {
    "weight": " t = Transpose <perm = [1, 0]> (w) y = MatMul (x, t)",
    "scores": """ a = Transpose <perm = [0, 2, 1, 3]> (q) b = Transpose <perm = [0, 2, 3, 1]> (k)
                  m = MatMul (a, b) y = Mul (m, half)""",
    "heads": """ a = Transpose <perm = [0, 2, 1, 3]> (q) b = Transpose <perm = [0, 2, 3, 1]> (k)
                 s = MatMul (a, b) t = Transpose <perm = [0, 2, 1, 3]> (s) y = Div (t, four)""",
    "layer": " t = Transpose <perm = [1, 0]> (w) m = MatMul (x, t) y = Add (m, c)",
    "bias first": " t = Transpose <perm = [1, 0]> (w) m = MatMul (x, t) y = Add (c, m)",
    "twice": " a = Transpose (w) b = Transpose (a) d = Transpose (b) y = MatMul (x, d)",
    "fused": " y = com.microsoft.FusedMatMul <transB = 1, alpha = 0.5> (x, w)",
    "gemm": " t = Transpose (u) y = Gemm <transB = 1> (v, t, r)",
    "gemm result": " t = Transpose (w) m = Gemm <transB = 1> (t, v) y = Transpose (m)",
}


@pytest.mark.parametrize("name", FOLDED)
def test_one_product_is_left_and_computes_the_same(name, tmp_path):
    case = artifacts(FOLDED[name])
    assert len(ops(FOLDED[name])) == 1
    random = np.random.default_rng(1)
    feeds = [random.standard_normal(t.shape).astype(np.float32) for t in case.training.inputs.values()]
    plan = trainers.plan_of(case, REGISTRY)
    library = trainers.library_of(trainers.contents_of([plan]), REGISTRY, tmp_path)
    (found,) = trainers.session_of(library, plan, {}).run(0, feeds)
    (wanted,) = ReferenceTrainer(case).train_step(*feeds)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_transpose_that_others_read_stays_for_them():
    found = ops(" t = Transpose (w) y = MatMul (x, t) z = Neg (t)")
    assert sorted(found) == ["Contraction", "Neg", "Transpose"]


def test_a_product_that_others_read_is_not_written_transposed():
    assert ops(" m = MatMul (v, w) y = Transpose (m) z = Neg (m)") == ["MatMul", "Transpose", "Neg"]


NOT_PARTS = {
    "a sum of two products' size": (" m = MatMul (v, u) y = Add (m, r)", ["MatMul", "Add"]),
    "a bias for each row": (" m = MatMul (v, u) y = Add (m, p)", ["MatMul", "Add"]),
    "a product of two tensors": (" m = MatMul (v, u) y = Mul (m, r)", ["MatMul", "Mul"]),
    "what makes the product larger": (" m = MatMul (v, e) y = Add (m, c)", ["MatMul", "Add"]),
}


@pytest.mark.parametrize("name", NOT_PARTS)
def test_what_is_not_a_bias_or_a_scale_stays(name):
    body, wanted = NOT_PARTS[name]
    assert ops(body) == wanted


def test_neighbouring_axes_are_one():
    layout = layout_of(Equation(("abk", "nk"), "abn"), (BATCH, 32, 64), (16, 64))
    assert layout.outer == (BATCH * 32, 16) and layout.inner == (64,)


def test_results_are_written_along_rows():
    """The columns of the matrices are what lies next to each other in the result, whichever operand has them."""
    straight = layout_of(Equation(("abk", "nk"), "abn"), (2, 32, 64), (16, 64))
    exchanged = layout_of(Equation(("nk", "abk"), "abn"), (16, 64), (2, 32, 64))
    assert straight.outer == exchanged.outer == (64, 16)
    assert exchanged.exchanged and not straight.exchanged and straight.orders == exchanged.orders


def test_sizes_that_do_not_fit_are_named():
    for equation, shapes, text in (
        (Equation(("ab", "bc"), "ac"), ((2, 3), (4, 5)), "3 is not 4"),
        (Equation(("ab", "bc"), "ac"), ((2, 3), (4,)), "does not fit 'bc'"),
    ):
        with pytest.raises(UnsupportedUse, match=text):
            equation.extents(shapes)
    for text, ranks in (("ab,bc->ad", (2, 2)), ("ab->a", (3,)), ("ab", (2, 2)), ("a1->a", (2,))):
        with pytest.raises(UnsupportedUse):
            Equation.parse(text, ranks)


def test_labels_tell_how_large_their_free_dimension_is():
    """Rows of scores and their labels are as many, whatever the file calls them."""
    text = """<ir_version: 8, opset_import: ["": 17]>
        m (float[batch,5,3] x, int64[tokens] t) => (float y) <int64[2] shape = {-1, 3}> {
            s = Reshape (x, shape)
            y = SoftmaxCrossEntropyLoss (s, t)
        }"""
    graph = read_graph(onnx.parser.parse_model(text).SerializeToString(), Path("model.onnx"))
    program = lower(TrainingArtifacts(graph, None, None, Checkpoint(()), {}), REGISTRY, {})
    assert program.symbols == ("batch",)
    assert program.procedures[0].values["t"].type.shape == (5 * BATCH,)
