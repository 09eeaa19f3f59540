"""Sequences between nodes: graphs that have them compute what onnx's own interpreter computes, without them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from authored import differences, source, trainer_of, uniform
from onnx.reference import ReferenceEvaluator

from minbuild.authoring import Recipe
from minbuild.errors import Unsupported
from minbuild.frontend.onnx.reader import read_model
from minbuild.ir import Checkpoint, TrainingArtifacts
from minbuild.ops import registry
from minbuild.passes.lowering.lower import lower
from minbuild.reference.interpreter import ReferenceTrainer

pytestmark = pytest.mark.unit

X, W = uniform((4, 6), (4, 6))
POSITIONS = "one = Constant <value = int64 {1}> () last = Constant <value = int64 {-1}> ()"
BODIES = {
    "joined": "s = SequenceConstruct (x, w, x) y = ConcatFromSequence <axis=1> (s)",
    "stacked": "s = SequenceConstruct (x, w) y = ConcatFromSequence <axis=-1, new_axis=1> (s)",
    "chosen": "s = SequenceConstruct (x, w) t = Identity (s) y = SequenceAt (t, one)",
    "inserted": """e = SequenceEmpty () a = SequenceInsert (e, x) b = SequenceInsert (a, w, last)
        c = SequenceInsert (b, x) y = ConcatFromSequence <axis=0> (c)""",
    "erased": """s = SequenceConstruct (x, w, x) t = SequenceErase (s, one) u = SequenceErase (t)
        n = SequenceLength (s) m = Cast <to=1> (n) z = ConcatFromSequence <axis=0> (u) y = Mul (z, m)""",
    "split": """sizes = Constant <value = int64[3] {1, 2, 3}> () s = SplitToSequence <axis=1> (x, sizes)
        a = SequenceAt (s, last) b = SequenceAt (s, one) y = Concat <axis=1> (a, b)""",
}


def model_of(body: str, opset: int) -> onnx.ModelProto:
    text = f"m (float[4,6] x, float[4,6] w) => (float y) {{ {POSITIONS} {body} }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("name", BODIES)
def test_what_is_read_computes_the_same(name, opset):
    model = model_of(BODIES[name], opset)
    graph = read_model(model, Path("model.onnx"))
    assert not [n.op_type for n in graph.nodes if "Sequence" in n.op_type]
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": X, "w": W})
    found = ReferenceTrainer(TrainingArtifacts(graph, None, None, Checkpoint(()), {})).train_step(X, W)[0]
    np.testing.assert_array_equal(np.asarray(found, np.float32), wanted)


@pytest.mark.parametrize(
    "body",
    [
        "s = SplitToSequence <axis=1> (x) y = ConcatFromSequence <axis=0> (s)",
        "n = Size (x) s = SequenceConstruct (x, w) k = ReduceMax (x) p = Cast <to=7> (k) y = SequenceAt (s, p)",
        "s = SequenceConstruct (x) y = SequenceAt (s, one)",
        "s = SequenceEmpty () t = SequenceErase (s) n = SequenceLength (t) y = Cast <to=1> (n)",
        "y = SequenceConstruct (x)",
    ],
    ids=["pieces", "position", "beyond", "empty", "output"],
)
def test_what_only_a_run_could_tell_is_refused(body):
    graph = read_model(model_of(body, 17), Path("model.onnx"))
    assert any("Sequence" in n.op_type for n in graph.nodes)
    with pytest.raises(Unsupported, match="Sequence"):
        lower(TrainingArtifacts(graph, None, None, Checkpoint(()), {}), registry(), {})


def test_gradients_flow_through_them():
    text = """m (float[n,6] x) => (float[n,12] y) {
        a = Mul (x, w) s = SequenceConstruct (a, x, a) t = SequenceErase (s, one)
        y = ConcatFromSequence <axis=1> (t) }"""
    model = source(text, {"w": W[0], "one": np.array(1)})
    made = trainer_of(model, Recipe("mse"))
    assert max(differences(made, X, np.zeros((4, 12), np.float32)).values()) < 1e-6
