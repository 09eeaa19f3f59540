"""Native arithmetic of halves: the bits that its roundings give, and errors within what these allow."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import trainers
from half_products import CHAIN, native_product

from minbuild.ops import registry
from minbuild.ops.core.definition import TestCase
from minbuild.planning.plan_encoding import encode_plan
from minbuild.training.library import TRAIN, Library, Session

REGISTRY = registry()
TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
SHAPES = ((1, 1, 1), (8, 16, 16), (7, 33, 130), (19, 70, 301), (9, 65, 15))
each_type = pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)

Product = Callable[[np.ndarray, np.ndarray], np.ndarray]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    contents = trainers.everything_of(["half_contraction"], REGISTRY)
    return trainers.library_of(contents, REGISTRY, tmp_path_factory.mktemp("halves"))


def product(library: Library, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    case = TestCase("product", (a, b), {"equation": "ab,bc->ac"})
    one = trainers.one_node(REGISTRY.ops["minbuild:HalfContraction"], case)
    plan = trainers.plan_of(one.artifacts, REGISTRY)
    return Session(library, encode_plan(plan, {}), None).run(TRAIN, one.feeds)[0]


def operands(dtype: type, m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(m * n * k)
    return random.standard_normal((m, k)).astype(dtype), random.standard_normal((k, n)).astype(dtype)


@each_type
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_every_sum_is_rounded_as_the_instructions_do(library, dtype, m, n, k):
    a, b = operands(dtype, m, n, k)
    found = product(library, a, b)
    assert (found.view(np.uint32) == native_product(a, b).view(np.uint32)).all()
    # Each product of a chain is rounded once for each sum it is in: half a unit of float16, or two units of float for
    # the two sums that are rounded to odd.
    exact = a.astype(np.float64) @ b.astype(np.float64)
    most = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    unit = CHAIN * 2.0**-11 + k * 2.0**-24 if dtype == np.float16 else 2 * k * 2.0**-23
    assert (np.abs(found - exact) <= unit * most).all()


def test_chains_of_float16_overflow_and_underflow_as_float16_does(library):
    a = np.full((1, 4), 200.0, np.float16)
    b = np.array([[400.0, 2.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]], np.float16)
    found = product(library, a, b)[0]
    assert np.isinf(found[0]) and found[1] == 1000
    tiny = np.full((1, 1), 2.0**-13, np.float16)
    assert product(library, tiny, tiny)[0, 0] == 0  # 2^-26 is less than half of the smallest number


def test_sums_of_bfloat16_have_the_range_of_float(library):
    large = np.full((1, 1), 2.0**60, ml_dtypes.bfloat16)
    assert product(library, large, large)[0, 0] == np.float32(2.0**120)
