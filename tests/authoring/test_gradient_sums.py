"""Contributions to one gradient: each is added to the sum of those before as soon as it exists."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from minbuild.frontend.artifacts import load_artifacts
from minbuild.training.artifacts import LossType, generate_artifacts

READERS = 5


def model() -> onnx.ModelProto:
    """y = sum of h w_i, where h = relu(x v) has several readers."""
    random = np.random.default_rng(2)
    names = ["v", *(f"w{i}" for i in range(READERS))]
    weights = [numpy_helper.from_array(random.standard_normal((4, 4)).astype(np.float32), n) for n in names]
    nodes = [helper.make_node("MatMul", ["x", "v"], ["p"]), helper.make_node("Relu", ["p"], ["h"])]
    nodes += [helper.make_node("MatMul", ["h", f"w{i}"], [f"y{i}"]) for i in range(READERS)]
    nodes.append(helper.make_node("Sum", [f"y{i}" for i in range(READERS)], ["y"]))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in "xy")
    graph = helper.make_graph(nodes, "readers", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_at_most_two_contributions_are_alive(tmp_path):
    generate_artifacts(model(), loss=LossType.MSELoss, artifact_directory=tmp_path)
    alive, most = set[str](), 0
    for node in load_artifacts(tmp_path).training.nodes:
        alive -= set(node.inputs)
        alive |= {n for n in node.outputs if n.startswith("h_grad")}
        most = max(most, len(alive))
    assert most == 2
