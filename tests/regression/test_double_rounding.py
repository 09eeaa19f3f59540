"""ONNX Runtime makes halves of doubles and of large integers by way of float, and so rounds some of them twice."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import trainers

from minbuild.ir import ElementType
from minbuild.ops import registry
from minbuild.ops.core.definition import TestCase

REGISTRY = registry()
HALF_ULP, A_LITTLE = 2.0**-11, 2.0**-40  # of 1 in float16; what float would lose beside it


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    contents = trainers.everything_of({"cast"}, REGISTRY)
    return trainers.library_of(contents, REGISTRY, tmp_path_factory.mktemp("cast"))


def cast(library, x, to):
    one = trainers.one_node(REGISTRY.ops[":Cast"], TestCase("cast", (x,), {"to": int(to)}), np.float64)
    return trainers.run(library, trainers.plan_of(one.artifacts, REGISTRY), one)["y0"]


def test_double_to_float16(library):
    x = np.array([1 + HALF_ULP, 1 + HALF_ULP + A_LITTLE, 1 + 3 * HALF_ULP - A_LITTLE])
    x = np.concatenate([x, -x, [65519.999999999, 65520.0, 1e300, 2.0**-25 + 2.0**-60, np.nan, -np.inf]])
    with np.errstate(over="ignore"):
        wanted = x.astype(np.float16)
    np.testing.assert_array_equal(cast(library, x, ElementType.FLOAT16), wanted)


def test_double_to_bfloat16(library):
    half_ulp = 2.0**-8
    x = np.array([1 + half_ulp, 1 + half_ulp + A_LITTLE, 1 + 3 * half_ulp, 1 + 3 * half_ulp - A_LITTLE])
    wanted = np.array([1, 1 + 2 * half_ulp, 1 + 4 * half_ulp, 1 + 2 * half_ulp])
    found = cast(library, np.concatenate([x, -x]), ElementType.BFLOAT16)
    np.testing.assert_array_equal(found.astype(np.float64), np.concatenate([wanted, -wanted]))


@pytest.mark.parametrize("to", [ElementType.FLOAT16, ElementType.BFLOAT16])
def test_doubles_that_are_zero_as_float_stay_numbers(library, to):
    """A negative one is minus zero as float, which is not below it."""
    x = np.array([1e-50, 1e-40, 2.0**-150, 5e-324])
    found = cast(library, np.concatenate([x, -x]), to).astype(np.float64)
    assert (np.abs(found) <= 1.01e-40).all()
    np.testing.assert_array_equal(np.signbit(found[found != 0]), np.concatenate([x, -x])[found != 0] < 0)


def test_integers_to_bfloat16(library):
    tie = 257 << 22  # halfway between 256 and 258 times 2^22
    wanted = np.array([256 << 22, 258 << 22], np.float64)
    for element in (ElementType.INT32, ElementType.UINT32, ElementType.INT64, ElementType.UINT64):
        found = cast(library, np.array([tie, tie + 1], element.dtype), ElementType.BFLOAT16)
        assert found.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(found.astype(np.float64), wanted)
