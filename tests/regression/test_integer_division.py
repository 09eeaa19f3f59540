"""ONNX Runtime stops the whole program at an integer division by zero, or of the smallest number by -1."""

from __future__ import annotations

import numpy as np
import pytest
import trainers

from minbuild.ops import registry
from minbuild.ops.core.definition import INTEGERS, TestCase

REGISTRY = registry()


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    contents = trainers.everything_of({"arithmetic", "modulo"}, REGISTRY)
    return trainers.library_of(contents, REGISTRY, tmp_path_factory.mktemp("division"))


@pytest.mark.parametrize("element", INTEGERS, ids=lambda e: e.label)
def test_no_operands_stop_a_division(element, library):
    smallest = np.iinfo(element.dtype).min
    other = -1 if smallest else 1
    a = np.array([7, 0, smallest, smallest], element.dtype)
    b = np.array([0, 0, 0, other], element.dtype)
    wanted = {"Div": [0, 0, 0, smallest], "Mod": [0, 0, 0, 0]}
    for name, numbers in wanted.items():
        one = trainers.one_node(REGISTRY.ops[f":{name}"], TestCase(name, (a, b)))
        found = trainers.run(library, trainers.plan_of(one.artifacts, REGISTRY), one)["y0"]
        np.testing.assert_array_equal(found, np.array(numbers, element.dtype))
