"""Gradients through operators that ONNX defines by others: taken apart, they are the derivatives of the whole."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from authored import source

from minbuild.authoring import Recipe, make_artifacts
from minbuild.authoring.autodiff.gradcheck import checked_gradients
from minbuild.frontend.checkpoint import read_checkpoint
from minbuild.frontend.onnx.function_inlining import is_function
from minbuild.ir import Node
from minbuild.ops import registry

pytestmark = pytest.mark.unit

OPSET = 28
# Nodes that make `y` of parameters w, v, u and the input x, [1, 2, 4, 6]; their shapes; and other constants.
_IMAGE, _WORDS = (1, 2, 4, 6), (2, 4, 6)
APPLICATIONS = {
    "Attention": (
        "y = Attention <is_causal = 1> (w, v, u)",
        {"w": _IMAGE, "v": _IMAGE, "u": _IMAGE},
    ),
    "Attention of groups, capped": (
        "y = Attention <q_num_heads = 4, kv_num_heads = 2, softcap = 2.0> (w, v, u)",
        {"w": (1, 4, 12), "v": (1, 5, 6), "u": (1, 5, 6)},
    ),
    "CastLike": ("y = CastLike (w, x)", {"w": _IMAGE}),
    "CausalConvWithState": (
        'y, state = CausalConvWithState <activation = "silu"> (w, v, u)',
        {"w": (2, 3, 7), "v": (3, 1, 4), "u": (3,)},
    ),
    "CenterCropPad": (
        "size = Constant <value = int64[2] {3, 9}> () y = CenterCropPad <axes = [2, 3]> (w, size)",
        {"w": _IMAGE},
    ),
    "FlexAttention": ("y = ai.onnx.preview.FlexAttention (w, v, u)", {"w": _IMAGE, "v": _IMAGE, "u": _IMAGE}),
    "LinearAttention": (
        'y, state = LinearAttention <q_num_heads = 2, kv_num_heads = 2, update_rule = "linear"> (w, v, u)',
        {"w": _WORDS, "v": _WORDS, "u": _WORDS},
    ),
    "RotaryEmbedding": (
        "y = RotaryEmbedding (w, v, u)",
        {"w": _IMAGE, "v": (1, 4, 3), "u": (1, 4, 3)},
    ),
    "Shrink": ("y = Shrink <lambd = 0.3, bias = 0.1> (w)", {"w": _IMAGE}),
}


@pytest.mark.parametrize("name", APPLICATIONS)
def test_functions_have_the_gradients_of_their_parts(name):
    text, shapes = APPLICATIONS[name]
    random = np.random.default_rng(8)
    weights = {n: random.standard_normal(shape) for n, shape in shapes.items()}
    graph = f"m (double[1,2,4,6] x) => (double l) {{ {text} s = Sin (y) l = ReduceMean <keepdims = 0> (s) }}"
    made = make_artifacts(source(graph, weights, OPSET), Recipe(optimizer="none"))
    assert {p.name for p in read_checkpoint(made.files["checkpoint"]).parameters} == set(weights)
    assert checked_gradients(made)


_NO_REALS = {
    "BlackmanWindow",
    "DynamicQuantizeLinear",
    "HammingWindow",
    "HannWindow",
}  # from real numbers to them
_ELSEWHERE = {"SequenceMap"}  # test_sequence_nodes.py


def test_every_function_of_onnx_is_among_them():
    schemas = {s.name: s for s in onnx.defs.get_all_schemas() if s.domain in ("", "ai.onnx.preview")}
    tested = {name.split()[0] for name in APPLICATIONS}
    for name, schema in schemas.items():
        node = Node(name, schema.domain, schema.since_version, name, (), ("y",), {})
        if registry().find(schema.domain, name) is None and is_function(node):
            assert name in tested | _NO_REALS | _ELSEWHERE
