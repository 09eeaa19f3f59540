"""Lowering and the passes, on small graphs made by hand."""

from __future__ import annotations

import ast
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from linear_model import BATCH, FLOAT, linear, lowered, node

from minbuild.errors import Unsupported
from minbuild.ir import (
    Procedure,
    TensorType,
    TrainingArtifacts,
)
from minbuild.ops import registry
from minbuild.passes import manager
from minbuild.passes.analysis.aliases import root
from minbuild.passes.analysis.effects import Effects
from minbuild.passes.analysis.schedule import Schedule
from minbuild.passes.lowering.lower import lower
from minbuild.passes.manager import PASSES, optimize
from minbuild.planning.plan import build_plan, peak_bytes

pytestmark = pytest.mark.unit


def optimized(artifacts: TrainingArtifacts) -> Procedure:
    return optimize(lowered(artifacts), registry()).procedures[0]


def test_shapes_stay_symbolic_and_shape_arithmetic_disappears() -> None:
    program = lowered(linear())
    train = program.procedures[0]
    assert program.symbols == ("batch",)
    assert train.values["h"].type == TensorType(FLOAT, (BATCH, 3))
    assert train.values["dy"].type.shape == (BATCH, 3)
    assert ":Shape" not in {call.op for call in train.calls}


def test_fixed_dimensions_leave_no_symbol() -> None:
    program = lower(linear(), registry(), {"batch": 8})
    assert program.symbols == ()
    assert program.procedures[0].values["h"].type.shape == (8, 3)


def test_the_gradient_is_made_in_its_buffer() -> None:
    train = optimized(linear())
    assert "com.microsoft:InPlaceAccumulatorV2" not in {call.op for call in train.calls}
    maker = next(call for call in train.calls if call.outputs[0] == "dw")
    assert maker.accumulate == frozenset({0})
    assert root(train.alias, "w_grad") == "w_grad.accumulation.buffer"


def test_a_gradient_with_another_reader_is_added_behind() -> None:
    train = optimized(linear((node("Relu", "w_grad", "kept"),), ("loss", "kept")))
    ops = [call.op for call in train.calls]
    assert ops.index("minbuild:AddToGradient") == ops.index(":Gemm", 1) + 1
    assert not train.calls[ops.index(":Gemm", 1)].accumulate


def test_relu_overwrites_what_nobody_reads_again() -> None:
    train = optimized(linear())
    assert root(train.alias, "y") == "h"


def test_an_input_is_never_overwritten() -> None:
    train = optimized(linear((node("Relu", "x", "kept"),), ("loss", "kept")))
    assert root(train.alias, "kept") == "kept"


def test_dead_calls_go() -> None:
    train = optimized(linear((node("Relu", "h", "unused"),)))
    assert "unused" not in {name for call in train.calls for name in call.outputs}


def test_everything_unsupported_is_told_at_once() -> None:
    artifacts = linear((node("Fancy", "h", "f"), node("Relu", "f", "g"), node("Plain", "y", "p")))
    with pytest.raises(Unsupported) as caught:
        lowered(artifacts)
    assert [text.split("'")[1] for text in caught.value.findings] == ["Fancy_f", "Plain_p"]


def test_input_sizes_are_numbers_or_names() -> None:
    artifacts = linear()
    odd = {**artifacts.training.inputs, "x": TensorType(FLOAT, (BATCH * 2, 3))}
    with pytest.raises(Unsupported, match=r"input 'x': dimension 0 is 2\*batch"):
        lower(replace(artifacts, training=replace(artifacts.training, inputs=odd)), registry(), {})


def test_passes_say_what_they_did() -> None:
    lines: list[str] = []
    optimize(lowered(linear()), registry(), lines.append)
    assert len(lines) == len(PASSES)
    assert all(each.name in line for each, line in zip(PASSES, lines, strict=True))


def test_the_plan_reaches_its_lower_bound() -> None:
    plan = build_plan(optimize(lowered(linear()), registry()), registry())
    for batch in (1, 5, 32):
        peak, bound = peak_bytes(plan, {"batch": batch})
        assert bound <= peak <= bound * 1.03
    assert [kernel.symbol for kernel in plan.kernels] == sorted(
        (kernel.symbol for kernel in plan.kernels), key=lambda s: s
    )


def test_a_clipped_activation_is_not_kept_for_the_backward_pass() -> None:
    """x -> Clip -> c, read at once and again at the end, where what was clipped is read too."""
    chain = tuple(node("Relu", "c" if i == 0 else f"r{i - 1}", f"r{i}") for i in range(12))
    late = (node("Mul", "r11,c", "m"), node("Add", "m,h", "kept"))
    artifacts = linear((node("Clip", "h,low,high", "c"), *chain, *late), ("loss", "kept"))
    limits = {"low": np.array(0, np.float32), "high": np.array(6, np.float32)}
    graph = replace(artifacts.training, initializers={**artifacts.training.initializers, **limits})
    train = optimized(replace(artifacts, training=graph))
    clips = [call.outputs[0] for call in train.calls if call.op == ":Clip"]
    assert clips == ["c", "c (again)"]
    assert next(call for call in train.calls if call.outputs[0] == "m").inputs == ("r11", "c (again)")


def test_nothing_is_computed_again_when_its_input_is_gone() -> None:
    chain = tuple(node("Relu", "c" if i == 0 else f"r{i - 1}", f"r{i}") for i in range(12))
    artifacts = linear(
        (node("Clip", "z,low,high", "c"), *chain, node("Mul", "r11,c", "kept")), ("loss", "kept")
    )
    limits = {"low": np.array(0, np.float32), "high": np.array(6, np.float32)}
    nodes = (node("Relu", "h", "z"), *artifacts.training.nodes)
    graph = replace(artifacts.training, initializers={**artifacts.training.initializers, **limits})
    order = (nodes[1], nodes[0], *nodes[2:])
    train = optimized(replace(artifacts, training=replace(graph, nodes=order)))
    assert [call.outputs[0] for call in train.calls if call.op == ":Clip"] == ["c"]


def test_of_two_branches_the_wide_one_waits() -> None:
    """A wide result that a sum needs late is made late, from what is narrow and there anyway."""
    chain = tuple(node("Relu", "y" if i == 0 else f"r{i - 1}", f"r{i}") for i in range(4))
    wide = (node("Expand", "y,size", "wide"), *chain, node("Add", "r3,wide", "kept"))
    artifacts = linear(wide, ("loss", "kept"))
    initializers = {**artifacts.training.initializers, "size": np.array([7, 1, 1], np.int64)}
    train = optimized(replace(artifacts, training=replace(artifacts.training, initializers=initializers)))
    outputs = [call.outputs[0] for call in train.calls]
    assert outputs.index("wide") == outputs.index("kept") - 1


def test_a_narrow_result_does_not_wait_for_its_wide_input() -> None:
    chain = tuple(node("Relu", "y" if i == 0 else f"r{i - 1}", f"r{i}") for i in range(4))
    narrow = (node("Relu", "x", "wide"), node("ReduceSum", "wide", "sum", keepdims=0), *chain)
    train = optimized(linear((*narrow, node("Add", "r3,sum", "kept")), ("loss", "kept")))
    outputs = [call.outputs[0] for call in train.calls]
    assert outputs.index("sum") < outputs.index("r0")


def test_a_sum_is_made_again_of_what_is_kept() -> None:
    """s = h + y, read at once and far behind, where both terms are read too."""
    chain = tuple(node("Relu", "s" if i == 0 else f"r{i - 1}", f"r{i}") for i in range(12))
    late = (node("Mul", "r11,s", "m"), node("Add", "m,h", "n"), node("Add", "n,y", "kept"))
    train = optimized(linear((node("Add", "h,y", "s"), *chain, *late), ("loss", "kept")))
    sums = [call.outputs[0] for call in train.calls if call.inputs == ("h", "y")]
    assert sums == ["s", "s (again)"]


def test_what_takes_many_calls_is_kept() -> None:
    """c6 <- ... <- c0 <- h: each is dropped by itself, but one that needs seven calls is not."""
    clips = tuple(node("Clip", f"{'h' if i == 0 else f'c{i - 1}'},low,high", f"c{i}") for i in range(8))
    chain = tuple(node("Relu", "c7" if i == 0 else f"r{i - 1}", f"r{i}") for i in range(12))
    late = (node("Mul", "r11,c7", "m"), node("Add", "m,h", "kept"))
    artifacts = linear((*clips, *chain, *late), ("loss", "kept"))
    limits = {"low": np.array(0, np.float32), "high": np.array(6, np.float32)}
    graph = replace(artifacts.training, initializers={**artifacts.training.initializers, **limits})
    train = optimized(replace(artifacts, training=graph))
    assert not [call for call in train.calls if "again" in call.outputs[0]]


# --------------------------------------------------------------------------------------------- effects


def test_only_effects_asks_what_operators_update() -> None:
    """Whoever else asks `Op.mutates` has a copy of the logic that may drift; lowering makes the aliases from it."""
    allowed = {"passes/analysis/effects.py", "passes/lowering/program_builder.py"}
    package, found = Path(manager.__file__).parents[1], set()
    for path in (*(package / "passes").rglob("*.py"), *(package / "planning").rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        called = {id(each.func) for each in ast.walk(tree) if isinstance(each, ast.Call)}
        for each in ast.walk(tree):
            if isinstance(each, ast.Attribute) and each.attr == "mutates" and id(each) not in called:
                found.add(path.relative_to(package).as_posix())
    assert found == allowed


def test_effects_name_owners_and_updated_inputs() -> None:
    train = lowered(linear()).procedures[0]
    effects = Effects(replace(train, alias={"y": "h"}), registry())
    relu = next(call for call in train.calls if call.op == ":Relu")
    assert (effects.reads(relu), effects.writes(relu)) == ({"h"}, {"h"})
    gather = next(call for call in train.calls if call.op.endswith("InPlaceAccumulatorV2"))
    assert "w_grad.accumulation.buffer" in effects.mutates(gather) and effects.outlives(gather)
    assert not effects.outlives(relu)
    loss = next(call for call in train.calls if call.op == ":ReduceSum")
    assert effects.depends(loss, relu) and not effects.depends(relu, gather)


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=300))
def test_a_schedule_moves_like_a_list(moves: list[tuple[int, int]]) -> None:
    schedule, order = Schedule(12), list(range(12))
    for each, other in moves:
        if each != other:
            schedule.move_before(each, other)
            order.remove(each)
            order.insert(order.index(other), each)
    assert list(schedule) == order
    assert sorted(range(12), key=schedule.key) == order
    behind = [schedule.key_behind(order[0], count) for count in (1, 11, 12)]
    assert behind == [schedule.key(order[1]), schedule.key(order[11]), inf]
