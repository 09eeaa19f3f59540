"""minbuild/verify/rounding.py by its definition, in numbers: a limit that is one percent off, or a depth that counts
one term too few, is another limit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from minbuild.ir import ElementType
from minbuild.verify.rounding import bounds, depth_of

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("outputs", "inputs", "depth"),
    [
        ([12], [12], 1),  # elementwise
        ([1], [100], 100),  # a sum of everything
        ([10], [1000], 100),
        ([6], [12, 8], 4),  # [3, 4] x [4, 2]
        ([6, 2], [12, 8], math.sqrt(12 * 8 / 2)),  # of several outputs the smallest
        ([0], [7], 7),
        ([], [7, 7], 1),
        ([5], [], 1),
        ([4], [4, 9, 16], math.sqrt(16 * 9 / 4)),
    ],
)
def test_depth_is_that_of_sums_and_products(outputs: list[int], inputs: list[int], depth: float) -> None:
    assert depth_of(outputs, inputs) == pytest.approx(depth)


@pytest.mark.parametrize(
    ("element", "last", "doubles", "epsilon"),
    [
        (ElementType.FLOAT, 2.0**-23, False, 2.0**-23),
        (ElementType.DOUBLE, 2.0**-52, True, 2.0**-52),
        (ElementType.FLOAT16, 2.0**-10, False, 2.0**-23),
        (ElementType.BFLOAT16, 2.0**-7, False, 2.0**-23),
        (ElementType.DOUBLE, 2.0**-23, False, 2.0**-23),  # a double that was computed in single precision
    ],
)
@pytest.mark.parametrize("depth", [1.0, 100.0])
def test_bounds_are_movement_by_depth_and_last_places(
    element: ElementType, last: float, doubles: bool, epsilon: float, depth: float
) -> None:
    values, movement = np.array([[1.0, -2.0], [0.0, 8.0]]), np.array([[1.0, 3.0], [5.0, 7.0]])
    wanted = epsilon * 2**12 * (32 + depth) * movement + 4 * last * np.abs(values)
    np.testing.assert_allclose(bounds(element, values, movement, depth, doubles), wanted, rtol=1e-12)


def test_what_moved_little_has_a_part_of_its_row_and_of_the_tensor() -> None:
    movement = np.array([[0.0, 8.0], [0.0, 0.0]])
    found = bounds(ElementType.FLOAT, np.zeros((2, 2)), movement, 1.0, False) / (2.0**-23 * 2**12 * 33)
    np.testing.assert_allclose(found, [[4 / 4, 8], [2 / 16, 2 / 16]])


@pytest.mark.parametrize(
    ("element", "smallest"), [(ElementType.FLOAT, 2.0**-126), (ElementType.DOUBLE, 2.0**-1022)]
)
@pytest.mark.parametrize("depth", [1.0, 100.0])
def test_movement_that_is_no_number_allows_what_is_flushed_to_zero(
    element: ElementType, smallest: float, depth: float
) -> None:
    movement = np.array([np.nan, np.inf, -np.inf])
    found = bounds(element, np.zeros(3), movement, depth, element == ElementType.DOUBLE)
    np.testing.assert_array_equal(found, (1 + depth) * smallest)


def test_bounds_have_the_shape_of_the_values() -> None:
    assert bounds(ElementType.FLOAT, np.zeros((0,)), np.zeros((0,)), 1.0, False).shape == (0,)
    assert bounds(ElementType.FLOAT, np.array(1.0), np.array(0.0), 1.0, False) == 4 * 2.0**-23
