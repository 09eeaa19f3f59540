"""Convolutions with one filter per channel over images with rows of one vector, which are read where they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import trainers

from minbuild.ops import registry
from minbuild.ops.core.definition import TestCase

KNOWN = registry()
NARROW = "depthwise_conv.narrow"
# Batch, channels, rows and columns; the least that the kernel takes is 3 * 2^17 multiplications per image.
SIZES = ((1, 960, 7, 7), (3, 1200, 8, 5), (2, 1100, 5, 8), (2, 2500, 3, 6), (1, 6400, 1, 7))
ATTRIBUTES = {"kernel_shape": (3, 3), "strides": (1, 1), "pads": (1,) * 4, "dilations": (1, 1)}


def _conv(size: tuple[int, ...], extremes: bool, gradient: bool) -> TestCase:
    """Outputs, or the gradient of the input: both read an image and give one."""
    random = np.random.default_rng(size[1])
    x, w, bias = (random.standard_normal(s) for s in (size, (size[1], 1, 3, 3), size[1:2]))
    if extremes:
        x[0, 1, 0, 0], x[-1, 2, -1, -1], x[0, 0, 0, -1], x[-1, -1, -1, 0] = np.nan, np.inf, -np.inf, np.nan
        w[3, 0, 0, 0], w[4, 0, 2, 1], w[5], bias[6] = np.inf, np.nan, 0, np.inf
    given = ATTRIBUTES | {"group": size[1]}
    if gradient:
        return TestCase("dx", (x, np.zeros_like(x), w), given, outputs=3, absent=frozenset({1, 2}))
    return TestCase("y", (x, w, bias), given)


@pytest.mark.parametrize("operator", [":Conv", "com.microsoft:ConvGrad"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_outputs_have_the_bits_of_other_images(size, operator, tmp_path):
    cases = [_conv(size, extremes, gradient=operator != ":Conv") for extremes in (False, True)]
    ones = [trainers.one_node(KNOWN.ops[operator], case) for case in cases]
    plans = [trainers.plan_of(one.artifacts, KNOWN) for one in ones]
    contents = trainers.contents_of(plans)
    assert NARROW in contents.features
    narrow = trainers.library_of(contents, KNOWN, tmp_path)
    other = trainers.library_of(replace(contents, features=contents.features - {NARROW}), KNOWN, tmp_path)
    for one, plan in zip(ones, plans, strict=True):
        found = trainers.run(narrow, plan, one)
        features = tuple(f for f in plan.features if f != NARROW)
        for name, y in trainers.run(other, replace(plan, features=features), one).items():
            np.testing.assert_array_equal(found[name], y)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_gradients_of_weights_are_rounded_as_sums_of_products(size, tmp_path):
    batch, channels, height, width = size
    random = np.random.default_rng(7)
    dy, x = random.standard_normal((2, *size)).astype(np.float32)
    w = np.zeros((channels, 1, 3, 3), np.float32)
    given = ATTRIBUTES | {"group": channels}
    case = TestCase("dw", (dy, x, w), given, outputs=3, absent=frozenset({0, 2}))
    one = trainers.one_node(KNOWN.ops["com.microsoft:ConvGrad"], case)
    plan = trainers.plan_of(one.artifacts, KNOWN)
    assert NARROW in plan.features
    (found,) = (
        v
        for v in trainers.run(
            trainers.library_of(trainers.contents_of((plan,)), KNOWN, tmp_path), plan, one
        ).values()
        if v.shape == w.shape
    )
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    for row in range(3):
        for column in range(3):
            products = padded[:, :, row : row + height, column : column + width] * dy
            # A product and a sum for each row of a lane, three for its lanes, one for each image.
            bound = np.abs(products).sum((0, 2, 3)) * 2.0**-24 * (height + 4 + batch)
            assert (np.abs(found[:, 0, row, column] - products.sum((0, 2, 3))) <= bound).all()


def test_gradients_of_weights_are_the_same_wherever_an_image_is(tmp_path):
    """The first and the last image of a batch are copied before they are read."""
    size = (3, 960, 7, 7)
    random = np.random.default_rng(3)
    dy, x = random.standard_normal((2, *size)).astype(np.float32)
    w, given = np.zeros((960, 1, 3, 3), np.float32), ATTRIBUTES | {"group": 960}
    library, found = None, []
    for image in range(3):
        flow = np.zeros_like(dy)
        flow[image], order = dy[0], [1, 2]
        order.insert(image, 0)
        case = TestCase("dw", (flow, x[order], w), given, outputs=3, absent=frozenset({0, 2}))
        one = trainers.one_node(KNOWN.ops["com.microsoft:ConvGrad"], case)
        plan = trainers.plan_of(one.artifacts, KNOWN)
        library = library or trainers.library_of(trainers.contents_of((plan,)), KNOWN, tmp_path)
        found += [v for v in trainers.run(library, plan, one).values() if v.shape == w.shape]
    for values in found[1:]:
        np.testing.assert_array_equal(values, found[0])
