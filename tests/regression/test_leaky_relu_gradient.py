"""ONNX Runtime takes the gradient of LeakyRelu from the sign of its output, which a negative alpha turns around."""

from __future__ import annotations

import numpy as np

from minbuild.ir import TensorType
from minbuild.ops import registry
from minbuild.ops.core.definition import FLOAT, OpContext
from minbuild.ops.core.graph_builder import GradientBuilder


def test_gradient_looks_at_the_input_where_the_output_has_another_sign():
    ops = registry().ops
    forward, backward = ops[":LeakyRelu"], ops["com.microsoft:LeakyReluGrad"]
    assert forward.reference and forward.gradient and backward.reference
    x = np.array([-2.0, 3.0])
    for alpha in (0.5, -0.5):
        arrays = {"x": x, "y": forward.reference({"alpha": alpha}, x), "dy": np.ones(2)}
        ctx = OpContext({"alpha": alpha}, (TensorType(FLOAT, (2,)),), (None,), 16)
        b = GradientBuilder(ctx, ("x",), ("y",), ("dy",), {0}, "backward")
        forward.gradient(b)
        (made,) = b.nodes
        gradient = backward.reference(made.attributes, *(arrays[n] for n in made.inputs))
        np.testing.assert_array_equal(gradient, [alpha, 1.0])
