"""Every operator's own cases, through lowering, planning and a compiled library, against its reference.

`pytest -k Gemm` builds only the kernels that Gemm's cases need."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import ml_dtypes
import numpy as np
import pytest
import trainers

from minbuild.errors import Unsupported
from minbuild.ir import ElementType, Plan
from minbuild.ops import registry
from minbuild.ops.core.definition import Op, TestCase

REGISTRY = registry()
OPS = tuple(op for _, op in sorted(REGISTRY.ops.items()) if op.cases is not None and op.reference is not None)
PRECISIONS = {"float": np.float32, "double": np.float64}
HALVES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
ACCUMULATING = tuple(op for op in OPS if op.accumulates)
UPDATING = tuple(op for op in REGISTRY.ops.values() if op.mutates)

each_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.key.lstrip(":"))
each_half = pytest.mark.parametrize("dtype", HALVES.values(), ids=HALVES)
each_precision = pytest.mark.parametrize("dtype", PRECISIONS.values(), ids=PRECISIONS)


@cache
def cases(key: str) -> tuple[TestCase, ...]:
    """The same numbers for every test of an operator."""
    make = REGISTRY.ops[key].cases
    assert make is not None
    return tuple(make(np.random.default_rng(2024)))


@cache
def planned(
    key: str, index: int, dtype: type[np.floating], gradients: bool = False
) -> tuple[trainers.OneNode, Plan]:
    op, case = REGISTRY.ops[key], cases(key)[index]
    one = trainers.one_node(op, case, dtype)
    if gradients:
        shapes = {n: y.shape for n, y in trainers.expected(op, case, dtype).items() if _gathers(op, n, y)}
        element = next(e for e in (ElementType.FLOAT, ElementType.DOUBLE) if e.dtype == dtype)
        one = trainers.with_gradients(one, shapes, element)
    return one, trainers.plan_of(one.artifacts, REGISTRY)


def _gathers(op: Op, name: str, array: np.ndarray) -> bool:
    """Whether the kernel can add this output to a gradient: those are real numbers."""
    return name[0] == "y" and int(name[1:]) in op.accumulates and array.dtype.kind == "f"


@pytest.fixture(scope="session")
def full(request, tmp_path_factory):
    """Every kernel for every type and feature, of the files that the chosen tests need."""
    items = [i for i in request.session.items if "full" in getattr(i, "fixturenames", ())]
    chosen = {i.callspec.params["op"].key: i.callspec.params["op"] for i in items}
    stems = {"accumulate", "cast", "copy"}
    for op in chosen.values():
        wanted = [(index, np.float32) for index in range(len(cases(op.key)))]
        wanted += [(index, dtype) for index in _real_cases(op.key) for dtype in HALVES.values()]
        for index, dtype in wanted:
            try:
                stems |= {k.stem for k in planned(op.key, index, dtype)[1].kernels}
            except Unsupported:
                continue  # its own test says so
    return trainers.library_of(
        trainers.everything_of(stems, REGISTRY), REGISTRY, tmp_path_factory.mktemp("full")
    )


@each_precision
@each_op
def test_operator_computes_its_reference(op, dtype, full):
    wrong = []
    for index, case in enumerate(cases(op.key)):
        try:
            one, plan = planned(op.key, index, dtype)
        except Unsupported as error:
            if dtype == np.float64 and "no kernel for double" in str(error):
                pytest.skip("no kernel for double")
            raise
        found = trainers.run(full, plan, one)
        for name, wanted in trainers.expected(op, case, dtype).items():
            problem = trainers.disagreement(found[name], wanted, case.ulps)
            if problem:
                wrong.append(f"{case.name}, {name}: {problem}")
    assert not wrong, "\n".join(wrong)


def _real_cases(key: str) -> tuple[int, ...]:
    """The first, a middle and the last case with real numbers among the inputs; not where rounding them puts them
    on the other side of a jump, unless there are no others."""
    real = [
        i
        for i, case in enumerate(cases(key))
        if any(x is not None and x.size and x.dtype.kind == "f" for x in case.inputs)
    ]
    found = [i for i in real if cases(key)[i].smooth] or real
    return tuple(sorted({found[0], found[len(found) // 2], found[-1]})) if found else ()


@each_half
@each_op
def test_operator_works_on_halves(op, dtype, full):
    """Operators without a kernel for them get float copies, so each answer is as good as one rounding of it."""
    wrong = []
    for index in _real_cases(op.key):
        case = cases(op.key)[index]
        try:
            one, plan = planned(op.key, index, dtype)
        except Unsupported as error:
            if any(f"({updating.title}, " in str(error) for updating in UPDATING):
                pytest.skip("what a kernel changes stays in its own type")
            raise
        found = trainers.run(full, plan, one)
        for name, wanted in trainers.expected(op, case, dtype).items():
            problem = trainers.disagreement(found[name], wanted, case.ulps, dtype)
            if problem:
                wrong.append(f"{case.name}, {name}: {problem}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("op", ACCUMULATING, ids=lambda op: op.name)
def test_operator_fills_gradient_buffers(op, full):
    """The first run after a reset replaces what is in the buffers, the second adds the same again."""
    wrong = []
    for index, case in enumerate(cases(op.key)):
        once = {n: y for n, y in trainers.expected(op, case).items() if _gathers(op, n, y)}
        if not once:
            continue
        one, plan = planned(op.key, index, np.float32, gradients=True)
        assert not any(k.stem == "accumulate" for k in plan.kernels), "the operator's own kernel should add"
        session = trainers.session_of(full, plan, one.state)
        session.lazy_reset_grad()
        for times in (1, 2):
            session.run(0, one.feeds)
            for name, wanted in once.items():
                found = session.gradient(trainers.GRADIENT_OF + name)
                problem = trainers.disagreement(found, wanted * times, 2 * case.ulps)
                if problem:
                    wrong.append(f"{case.name}, {name}, run {times}: {problem}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("which", [0, -1], ids=["first", "last"])
def test_trimmed_build_computes_the_same_bits(which, tmp_path_factory):
    """One case of every operator, on a library of just the kernels and features that these cases use."""
    samples = {op.key: planned(op.key, range(len(cases(op.key)))[which], np.float32) for op in OPS}
    contents = trainers.contents_of(plan for _, plan in samples.values())
    folder = tmp_path_factory.mktemp("trimmed")
    trimmed = trainers.library_of(contents, REGISTRY, folder)
    features = trainers.everything_of({k.stem for k in contents.kernels}, REGISTRY).features
    whole = trainers.library_of(replace(contents, features=features, symbols=True), REGISTRY, folder)
    for key, (one, plan) in samples.items():
        small, large = trainers.run(trimmed, plan, one), trainers.run(whole, plan, one)
        for name in large:
            assert small[name].tobytes() == large[name].tobytes(), (key, name)
