"""The deviation of a step's outputs from those of another run, in units of the rounding that its inputs allow."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from minbuild.ir import ElementType, Plan
from minbuild.ir.dims import evaluate
from minbuild.ir.size_report import StepDeviation
from minbuild.verify.rounding import bounds, depth_of
from minbuild.verify.step_script import Execution, Output


def sentence(d: StepDeviation) -> str:
    """Where a step is off, and by how much."""
    return (
        f"{step_name(d.graph, d.step, d.kernel, d.node)} computes something else than on this machine with the same "
        f"inputs: argument {d.output}, element {d.element} is {d.found:.9g}, expected {d.expected:.9g}, "
        + (
            f"which is {d.units:.3g} times what rounding allows."
            if d.bound
            else "and rounding has no part in it."
        )
    )


def step_name(graph: str, number: int, kernel: str, node: str) -> str:
    """Step `number` of `graph`, which runs `kernel` for `node`, as messages name it."""
    return f"step {number} of {graph} ({kernel} of node '{node}')"


def deviation_of(execution: Execution, ours: Output, theirs: Output, plan: Plan) -> StepDeviation | None:
    """The worst element of an output of `execution`, a step of `plan`: `ours` has the values of this machine, `theirs`
    those of the run compared with it. None where all bits are the same."""
    if ours.data == theirs.data:
        return None
    kind = ours.element.dtype
    expected, found = np.frombuffer(ours.data, kind), np.frombuffer(theirs.data, kind)
    a, b = expected.astype(np.float64), found.astype(np.float64)
    if ours.movement is None:
        bound = np.zeros(a.shape)
        off = np.where(expected.view(f"u{kind.itemsize}") == found.view(f"u{kind.itemsize}"), 0.0, np.inf)
    else:
        bound = _bound(execution, ours, expected, plan)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(invalid="ignore", divide="ignore"):
            off = np.where(same, 0.0, np.abs(a - b) / bound)
        off = np.where(np.isnan(off), np.inf, off)
    at = int(off.argmax())
    return StepDeviation(
        *(execution.graph, execution.number, execution.kernel.symbol, execution.step.node, ours.slot, at),
        *(float(off[at]), float(b[at]), float(a[at]), float(bound[at])),
    )


def _bound(execution: Execution, output: Output, expected: np.ndarray, plan: Plan) -> np.ndarray:
    assert output.movement is not None
    step, sizes = execution.step, execution.sizes
    shapes = {slot: _shape(plan, arg, sizes) for slot, arg in enumerate(step.args) if arg >= 0}
    reals = {
        slot for slot, (number, _, _) in enumerate(execution.kernel.args) if _real(number) and slot in shapes
    }
    written = {slot for slot, (_, writes, _) in enumerate(execution.kernel.args) if writes}
    depth = depth_of([prod(shapes[s]) for s in reals & written], [prod(shapes[s]) for s in reals - written])
    doubles = all(execution.kernel.args[s][0] == ElementType.DOUBLE for s in reals)
    shape = shapes[output.slot]
    return bounds(
        output.element, expected.reshape(shape), output.movement.reshape(shape), depth, doubles
    ).reshape(-1)


def _real(number: int) -> bool:
    return number in ElementType._value2member_map_ and ElementType(number).is_real


def _shape(plan: Plan, arg: int, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate(d, sizes) for d in plan.tensors[arg].shape)
