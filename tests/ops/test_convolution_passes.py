"""Gradients of packed convolutions of small images, which pass alone or several at once: any number of images."""

from __future__ import annotations

import numpy as np
import pytest
import trainers

from minbuild.ops import registry
from minbuild.ops.core.definition import TestCase

pytestmark = pytest.mark.usefixtures("packed_convolutions")

KNOWN = registry()
GRAD = KNOWN.ops["com.microsoft:ConvGrad"]
CHANNELS, FILTERS = {1: 181, 3: 97}, {1: 193, 3: 121}  # by the side of a window
EPSILON = 2.0**-24


def _case(batch: int, size: tuple[int, int], window: int, groups: int) -> TestCase:
    random = np.random.default_rng(batch)
    channels, filters = CHANNELS[window], FILTERS[window]
    images = (batch, groups * filters, *size), (batch, groups * channels, *size)
    shapes = (*images, (groups * filters, channels, window, window))
    attributes = {"kernel_shape": (window,) * 2, "strides": (1, 1), "pads": (window // 2,) * 4}
    attributes |= {"group": groups, "dilations": (1, 1), "auto_pad": "NOTSET"}
    arrays = tuple(random.standard_normal(s).astype(np.float32) for s in shapes)
    return TestCase("gradients", arrays, attributes, outputs=3, absent=frozenset({2}))


@pytest.mark.parametrize("batch", [1, 3, 8, 9, 17])
@pytest.mark.parametrize(
    ("size", "window", "groups"),
    [
        ((7, 7), 3, 1),
        ((6, 10), 3, 1),
        ((14, 14), 3, 1),
        ((9, 14), 1, 1),
        ((8, 16), 1, 1),
        ((14, 14), 1, 1),
        ((8, 16), 1, 2),
    ],
    ids=str,
)
def test_gradients_are_rounded_as_sums_of_products(batch, size, window, groups, tmp_path):
    case = _case(batch, size, window, groups)
    one = trainers.one_node(GRAD, case)
    plan = trainers.plan_of(one.artifacts, KNOWN)
    assert {k.function for k in plan.kernels} == {"conv_packed"} and ("conv.exchanged" in plan.features) == (
        window > 1
    )
    found = trainers.run(trainers.library_of(trainers.contents_of((plan,)), KNOWN, tmp_path), plan, one)
    dy, x, w = case.inputs
    wide = [np.asarray(a, np.float64) for a in (dy, x, w)]
    wanted = GRAD.reference(case.attributes, *wide)
    sizes = GRAD.reference(case.attributes, *(np.abs(a) for a in wide))
    terms = (
        FILTERS[window] * window**2,
        batch * size[0] * size[1],
    )  # of each sum, none of which is rounded more often
    for values, exact, size_of, count in zip((found["y0"], found["y1"]), wanted, sizes, terms, strict=False):
        assert (np.abs(values - exact) <= count * EPSILON * size_of + 1e-30).all()
