"""Every gradient rule, run by a compiled library in double precision, against finite differences of the operator.

`pytest -k Gemm` builds only the kernels that Gemm's gradient needs."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import trainers
from gradients import Gradients, backward_graph, is_smooth

from minbuild.ir import Plan
from minbuild.ops import registry

REGISTRY = registry()
# What draws random numbers has no reference: test_random.py. These know shapes from the node before them:
# test_second_gradients.py.
_BEHIND_OTHERS = {":AveragePoolGrad", ":MaxPoolGrad"}
# These round everywhere, so that their gradient is no derivative: tests/authoring/test_dynamic_quantization.py,
# tests/frontend/test_float8.py.
_STRAIGHT_THROUGH = {"minbuild:DynamicFakeQuant", "minbuild:RoundFloat8"}
OPS = tuple(
    op
    for key, op in sorted(REGISTRY.ops.items())
    if op.gradient is not None
    and (op.reference is not None or op.decompose is None)
    and key not in _BEHIND_OTHERS | _STRAIGHT_THROUGH
)
TOLERANCE = 1e-7


@cache
def applications(key: str) -> tuple[tuple[trainers.OneNode, Gradients, Plan], ...]:
    """Every case of an operator at which it is differentiable, as a plan."""
    op = REGISTRY.ops[key]
    assert op.cases is not None, f"{op.title}: a gradient rule without cases"
    random = np.random.default_rng(77)
    chosen = [case for case in op.cases(np.random.default_rng(2024)) if is_smooth(op, case)]
    assert chosen, f"{op.title}: no case at which it is differentiable"
    made = [backward_graph(op, case, random) for case in chosen]
    return tuple((one, wanted, trainers.plan_of(one.artifacts, REGISTRY)) for one, wanted in made)


@pytest.fixture(scope="session")
def gradient_kernels(request, tmp_path_factory):
    """Every kernel for every type and feature, of the files that the chosen tests need."""
    items = [i for i in request.session.items if "gradient_kernels" in getattr(i, "fixturenames", ())]
    keys = {i.callspec.params["op"].key for i in items if "op" in i.callspec.params}
    stems = {k.stem for key in keys for _, _, plan in applications(key) for k in plan.kernels}
    contents = trainers.everything_of(stems, REGISTRY)
    return trainers.library_of(contents, REGISTRY, tmp_path_factory.mktemp("full"))


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_gradient_is_that_of_the_operator(op, gradient_kernels):
    wrong = []
    random = np.random.default_rng(5)
    for one, wanted, plan in applications(op.key):
        # A rule without any gradient says that they are zero: nothing to run.
        found = trainers.run(gradient_kernels, plan, one) if wanted.found else {}
        wrong += wanted.problems(found, random, TOLERANCE)
    assert not wrong, "\n".join(wrong)
