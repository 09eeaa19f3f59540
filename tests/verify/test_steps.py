"""Results of the runner for single steps, as they are read and judged: limits, names of memory, depths of sums."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minbuild.errors import VerificationFailed
from minbuild.ir import ElementType, Kernel, Plan, Routine, Step
from minbuild.ir.dims import symbol
from minbuild.ir.plan import PlanTensor
from minbuild.planning.compiled_model import CompiledModel
from minbuild.reference.synthetic_data import inputs_of, seeded_batch
from minbuild.toolchain import host_target
from minbuild.verify import steps as proof
from minbuild.verify.differential import PACES
from minbuild.verify.step_deviation import deviation_of, sentence
from minbuild.verify.step_script import Execution, Output, StepScript, Trace, step_order, step_script

pytestmark = pytest.mark.unit

FLOAT, DOUBLE, INT64, RAW = ElementType.FLOAT, ElementType.DOUBLE, ElementType.INT64, 0
PER_TERM = 2.0**-23 * 2**12  # of the bound, where inputs that were rounded moved an element by 1


def output(values: list[float], element: ElementType = FLOAT, exact: bool = False, slot: int = 0) -> Output:
    data = np.array(values, element.dtype)
    movement = None if exact else np.ones(len(values), np.float32)
    return Output(slot, element, memoryview(data.tobytes()), movement)


def step_of(model: CompiledModel, function: str) -> tuple[StepScript, Execution]:
    """A script of one step that runs `function`."""
    whole = step_script(model, model.checkpoint)
    execution = next(e for e in whole.executions if e.kernel.function == function)
    return StepScript(whole.script, (execution,)), execution


def follow(model: CompiledModel, monkeypatch: pytest.MonkeyPatch, found: list[float], **header: int) -> Any:
    """What follow_steps makes of an answer on one step of Relu, which had zeros on this machine."""
    steps, execution = step_of(model, "relu")
    row = model.plan.kernels.index(execution.kernel)
    said = struct.pack(
        "<IIii", header.get("row", row), 1, header.get("place", -1), header.get("offset", 0)
    ) + struct.pack("<I", 4 * len(found))
    said += np.array(found, np.float32).tobytes()
    monkeypatch.setattr(proof, "watch", lambda *given, **named: said[: header.get("length", len(said))])
    trace = Trace(steps, ((output([0.0] * len(found)),),))
    library: Any = SimpleNamespace(kernels=model.plan.kernels)
    toolchain: Any = None
    return proof.follow_steps(trace, model, library, host_target(), toolchain)


def relu_size(model: CompiledModel) -> int:
    _, execution = step_of(model, "relu")
    shape = model.plan.tensors[execution.step.args[0]].shape
    return math.prod(execution.sizes.get(str(d), d) for d in shape)  # type: ignore[call-overload]


def test_a_step_may_be_off_by_rounding_only(model: CompiledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound of Relu has 32 + 1 terms."""
    values = [0.0] * relu_size(model)
    assert follow(model, monkeypatch, values) == (1, None)
    values[2] = 0.99 * 33 * PER_TERM
    count, worst = follow(model, monkeypatch, values)
    assert count == 1 and worst.units == pytest.approx(0.99) and worst.element == 2
    values[3] = -1.01 * 33 * PER_TERM
    with pytest.raises(
        VerificationFailed, match=r"element 3 is -0\.0.*expected 0, which is 1\.01 times what"
    ):
        follow(model, monkeypatch, values)


@pytest.mark.parametrize(
    ("place", "name"),
    [(0, "the session's memory"), (1, "the plan"), (2, "the checkpoint"), (3, "input 0"), (5, "input 2")],
)
def test_memory_that_a_step_may_not_change_is_named(
    model: CompiledModel, monkeypatch: pytest.MonkeyPatch, place: int, name: str
) -> None:
    with pytest.raises(
        VerificationFailed, match=f"neither an output nor scratch of it: byte 1,234 of {name}\\."
    ):
        follow(model, monkeypatch, [0.0] * relu_size(model), place=place, offset=1234)


def test_answers_about_other_steps_are_refused(model: CompiledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [0.0] * relu_size(model)
    other = next(i for i, k in enumerate(model.plan.kernels) if k.function == "gemm")
    with pytest.raises(VerificationFailed, match="gemm<float> ran in place of step .*relu<float>"):
        follow(model, monkeypatch, values, row=other)
    with pytest.raises(VerificationFailed, match="the runner ended before step .*relu<float>"):
        follow(model, monkeypatch, values, length=15)


# ------------------------------------------------------------------------------------------------ deviations


def hand_made(model: CompiledModel, *args: tuple[int, bool, tuple[int | str, ...]]) -> tuple[Execution, Plan]:
    """A step with these arguments: element, whether it is written, shape; batch is 4."""
    kernel = Kernel("own", "own", ("T",), tuple((int(e), written, False) for e, written, _ in args), 0)
    step = Step(0, tuple(range(len(args))), (), 0, "node")
    tensors = tuple(
        PlanTensor(0, 0, FLOAT, tuple(symbol(d) if isinstance(d, str) else d for d in shape))
        for _, _, shape in args
    )
    return Execution("train", 3, step, kernel, {"batch": 4}), replace(model.plan, tensors=tensors)


def bound(execution: Execution, plan: Plan, ours: Output) -> float:
    """The bound of an element that moved by 1."""
    values = np.frombuffer(ours.data, ours.element.dtype)
    found = deviation_of(execution, ours, output([*(values[:-1]), 1.0], ours.element), plan)
    assert found is not None
    return found.bound


@pytest.mark.parametrize("arguments", [3, 4])
def test_the_bound_grows_with_the_depth_of_sums(model: CompiledModel, arguments: int) -> None:
    """A product of [batch, 9] and [9, 2], with and without a bias that is there."""
    all_of = (
        (FLOAT, True, ("batch", 2)),
        (FLOAT, False, ("batch", 9)),
        (FLOAT, False, (9, 2)),
        (FLOAT, False, (2,)),
    )
    execution, plan = hand_made(model, *all_of[:arguments])
    assert bound(execution, plan, output([0.0] * 8)) == pytest.approx(PER_TERM * (32 + 9))
    absent = replace(execution, step=replace(execution.step, args=(0, 1, 2, -1)[:arguments]))
    assert bound(absent, plan, output([0.0] * 8)) == pytest.approx(PER_TERM * (32 + 9))


@pytest.mark.parametrize("beside", [INT64, RAW])
def test_a_step_in_double_precision_has_its_rounding(model: CompiledModel, beside: int) -> None:
    """Also where it reads indices, or words of any kind: these have no precision and no sums."""
    execution, plan = hand_made(
        model, (DOUBLE, True, ("batch",)), (DOUBLE, False, ("batch",)), (beside, False, (99,))
    )
    assert bound(execution, plan, output([0.0] * 4, DOUBLE)) == pytest.approx(2.0**-52 * 2**12 * 33)


@pytest.mark.parametrize(
    ("ours", "theirs", "units"),
    [
        ([1.0, math.nan], [1.0, math.nan], None),  # the same bits
        ([0.0, math.nan], [-0.0, -math.nan], 0.0),  # others, of the same value
        ([1.0, 2.0], [1.0, math.nan], math.inf),
        ([1.0, math.nan], [1.0, 2.0], math.inf),
        ([1.0, math.inf], [1.0, math.inf], None),
        ([1.0, math.inf], [1.0, 5.0], math.inf),
    ],
)
def test_a_number_is_not_near_none(
    model: CompiledModel, ours: list[float], theirs: list[float], units: float | None
) -> None:
    execution, plan = hand_made(model, (FLOAT, True, (2,)), (FLOAT, False, (2,)))
    found = deviation_of(execution, output(ours), output(theirs), plan)
    assert (found.units if found else None) == units


def test_what_is_moved_has_the_same_bits(model: CompiledModel) -> None:
    execution, plan = hand_made(model, (FLOAT, True, (2,)), (FLOAT, False, (2,)))
    exact = output([0.0, 1.0], exact=True)
    found = deviation_of(execution, exact, output([-0.0, 1.0], exact=True), plan)
    assert found is not None and found.units == math.inf and found.element == 0
    assert sentence(found).endswith("element 0 is -0, expected 0, and rounding has no part in it.")
    near = deviation_of(execution, output([0.0, 1.0]), output([0.0, 1.5]), plan)
    assert near is not None and sentence(near).endswith(
        f"which is {near.units:.3g} times what rounding allows."
    )


# ---------------------------------------------------------------------------------------------------- scripts


@pytest.mark.parametrize(("samples", "order"), [(3, [0, 1, 0, 1, 0, 1, 2, 3, 3, 3, 4]), (1, [0, 1, 2, 3, 4])])
def test_every_loop_runs_once_per_sample(model: CompiledModel, samples: int, order: list[int]) -> None:
    steps = tuple(Step(0, (), (), 0, f"node {i}", loop) for i, loop in enumerate((0, 2, 0, 1, 0)))
    routine = Routine("train", steps, (), (), (), symbol("batch"))
    assert [*step_order(routine, model.plan, {"batch": samples})] == order


def test_gentler_batches_are_the_same_numbers_scaled(model: CompiledModel) -> None:
    """By powers of two, so that rounding is the same."""
    inputs, at = inputs_of(model.program), {"batch": 3}
    for pace in PACES:
        usual, scaled = (seeded_batch(inputs, {}, at, 0, scale)["input"] for scale in (1.0, pace.scale))
        assert np.array_equal(usual * np.float32(pace.scale), scaled)
        assert math.frexp(pace.scale)[0] == 0.5
    assert [p.scale for p in PACES] == sorted((p.scale for p in PACES), reverse=True)
