"""ONNX Runtime cannot train LayerNormalization of opset 17 whose node leaves out the optional statistics, as every
exporter writes it: its gradient wants outputs that are not there."""

from __future__ import annotations

import numpy as np
import trainers
from gradients import backward_graph

from minbuild.ops import registry
from minbuild.ops.core.definition import TestCase


def test_layer_normalization_without_statistics_trains(tmp_path):
    operators, random = registry(), np.random.default_rng(3)
    x, scale, bias = random.standard_normal((5, 8)), *random.standard_normal((2, 8))
    op = operators.ops[":LayerNormalization"]
    one, wanted = backward_graph(op, TestCase("one output", (x, scale, bias)), random)
    forward = one.training.nodes[0]
    assert forward.outputs[0] == "y0" and len(forward.outputs) == 3, "the statistics are asked for"
    plan = trainers.plan_of(one.artifacts, operators)
    library = trainers.library_of(trainers.contents_of([plan]), operators, tmp_path)
    assert not wanted.problems(trainers.run(library, plan, one), random, 1e-7)
