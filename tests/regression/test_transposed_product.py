"""A Transpose that one product writes for another: attention whose keys have no bias. Folded into both, nothing wrote
the keys."""

from __future__ import annotations

import numpy as np

from minbuild.ir import Checkpoint, ElementType, Graph, Node, Parameter, TensorType, TrainingArtifacts
from minbuild.ops import registry
from minbuild.passes.lowering.lower import lower
from minbuild.passes.rewrite.fold_transposes import fold_transposes

REGISTRY = registry()


def test_what_a_product_writes_transposed_is_read_as_it_is() -> None:
    nodes = (
        Node("MatMul", "", 13, "keys", ("x", "w"), ("k",), {}),
        Node("Transpose", "", 13, "turn", ("k",), ("turned",), {"perm": (0, 2, 1)}),
        Node("MatMul", "", 13, "scores", ("x", "turned"), ("y",), {}),
    )
    inputs = {"x": TensorType(ElementType.FLOAT, (2, 5, 4))}
    weights = {"w": np.ones((4, 4), np.float32)}
    graph = Graph("training_model.onnx", nodes, inputs, {}, ("y",), weights)
    trained = Parameter("trained", ElementType.FLOAT, (1,), True, None)
    program = lower(TrainingArtifacts(graph, None, None, Checkpoint((trained,)), {}), REGISTRY, {})
    folded = fold_transposes(program.procedures[0], REGISTRY)
    assert [call.op for call in folded.calls] == ["minbuild:Contraction", ":MatMul"]
    assert folded.calls[0].outputs == folded.calls[1].inputs[1:] == ("turned",)
