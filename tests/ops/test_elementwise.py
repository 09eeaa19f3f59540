"""Functions of one element are precise where their results are small, too."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import trainers

from minbuild.ops import registry
from minbuild.ops.core.definition import TestCase

REGISTRY = registry()
COUNT = 20_000
Function = Callable[[np.ndarray], np.ndarray]


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _mish(x: np.ndarray) -> np.ndarray:
    part = np.exp(x) * (np.exp(x) + 2)
    return x * part / (part + 2)


# What to compare with, the smallest and largest magnitude of arguments, whether they are negative too, and the
# largest error in units of the last place.
FUNCTIONS: dict[str, tuple[Function, float, float, bool, float]] = {
    "Exp": (np.exp, 1e-6, 85, True, 1.5),
    "Log": (np.log, 1e-30, 1e30, False, 1.5),
    "Sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 1e-6, 80, True, 3),
    "Tanh": (np.tanh, 1e-6, 20, True, 4),
    "Sin": (np.sin, 1e-6, 1e4, True, 2),
    "Cos": (np.cos, 1e-6, 1e4, True, 2),
    "Tan": (np.tan, 1e-6, 1e4, True, 4),
    "Asin": (np.arcsin, 1e-6, 1, True, 7),
    "Acos": (np.arccos, 1e-6, 1, True, 6),
    "Atan": (np.arctan, 1e-6, 1e6, True, 5),
    "Sinh": (np.sinh, 1e-6, 85, True, 4),
    "Cosh": (np.cosh, 1e-6, 85, True, 4),
    "Asinh": (np.arcsinh, 1e-6, 1e30, True, 4),
    "Acosh": (np.arccosh, 1, 1e30, False, 5),
    "Atanh": (np.arctanh, 1e-6, 0.999, True, 4),
    "Softplus": (_softplus, 1e-6, 80, True, 3),
    "Mish": (_mish, 1e-6, 40, True, 5),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    stems = {REGISTRY.op_stems[f":{name}"] for name in FUNCTIONS}
    return trainers.library_of(
        trainers.everything_of(stems, REGISTRY), REGISTRY, tmp_path_factory.mktemp("functions")
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float", "double"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_result_is_within_its_last_places(name, dtype, library):
    if np.finfo(np.longdouble).eps >= np.finfo(dtype).eps:
        pytest.skip("no more precise numbers to compare with")
    function, low, high, negative, allowed = FUNCTIONS[name]
    random = np.random.default_rng(3)
    x = np.exp(random.uniform(np.log(low), np.log(high), COUNT)).clip(low, high)
    x = (x * np.where(negative & (random.random(COUNT) < 0.5), -1, 1)).astype(dtype)
    one = trainers.one_node(REGISTRY.ops[f":{name}"], TestCase(name, (x,)), dtype)
    found = trainers.run(library, trainers.plan_of(one.artifacts, REGISTRY), one)["y0"]
    wanted = function(x.astype(np.longdouble))
    unit = np.spacing(np.maximum(np.abs(wanted).astype(dtype), np.finfo(dtype).tiny))
    error = np.abs(found.astype(np.longdouble) - wanted) / unit
    worst = int(np.argmax(error))
    assert error[worst] <= allowed, f"{error[worst]:.2f} units at {x[worst]!r}"
