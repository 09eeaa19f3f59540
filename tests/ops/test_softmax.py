"""Before opset 13, Softmax went over everything from its axis on."""

from __future__ import annotations

import pytest

from minbuild.ir import ElementType, TensorType
from minbuild.ops.activation.softmax import flat_softmax_grad, softmax, softmax_grad
from minbuild.ops.core.definition import OpContext

X = TensorType(ElementType.FLOAT, (2, 3, 4, 5))


@pytest.mark.parametrize(
    ("op", "version", "attributes", "groups"),
    [
        (softmax, 13, {}, (24, 5, 1)),
        (softmax, 13, {"axis": 1}, (2, 3, 20)),
        (softmax, 11, {}, (2, 60, 1)),
        (softmax, 11, {"axis": 2}, (6, 20, 1)),
        (softmax_grad, 1, {"axis": -2}, (6, 4, 5)),
        (flat_softmax_grad, 1, {"axis": -2}, (6, 20, 1)),
        (flat_softmax_grad, 1, {}, (2, 60, 1)),
    ],
)
def test_axes_by_version(op, version, attributes, groups):
    ctx = OpContext(attributes, (X, X), (None, None), version, ("a", "b"), (X,), ("c",))
    (launch,) = op.lower(ctx)
    assert launch.args[-2].shape == groups
