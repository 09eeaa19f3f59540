"""ONNX defines Bernoulli by a comparison the wrong way round: its function gives 1 with the probability 1 - p."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from minbuild.training import onnx_backend


def test_bernoulli_gives_one_with_the_given_probability():
    p = np.repeat(np.array([[0.0, 0.1, 0.9, 1.0]], np.float32), 2000, axis=0)
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, p.shape) for n in "py"]
    graph = helper.make_graph([helper.make_node("Bernoulli", ["p"], ["y"])], "g", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])
    (y,) = onnx_backend.prepare(model).run([p])
    np.testing.assert_allclose(y.mean(axis=0), p[0], atol=0.03)
    assert not y[:, 0].any() and y[:, 3].all()
