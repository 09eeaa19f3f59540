"""Operators that move elements: how axes fold, sizes that only the device knows, and indices that name nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import trainers

from minbuild.errors import Unsupported
from minbuild.ir import Checkpoint, Graph, Node, Plan, TensorType, TrainingArtifacts
from minbuild.ir.dims import symbol
from minbuild.ops import registry
from minbuild.ops.core.definition import TestCase
from minbuild.ops.movement.slice import range_of
from minbuild.ops.movement.strided_copy import Along, Axis, call_move, straight, whole
from minbuild.ops.movement.transpose import transposition
from minbuild.planning.plan_encoding import encode_plan
from minbuild.training.library import TRAIN, Library, TrainerError

REGISTRY = registry()
STEMS = (
    "copy",
    "fill",
    "gather",
    "gather_elements",
    "gather_nd",
    "strided_copy",
    "range",
    "reverse_sequence",
    "trilu",
)
BATCH = symbol("batch")


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Library:
    folder = tmp_path_factory.mktemp("movement")
    return trainers.library_of(trainers.everything_of(STEMS, REGISTRY), REGISTRY, folder)


def plan_of(
    operator: str,
    inputs: Sequence[tuple[np.ndarray, bool]],
    attributes: Mapping[str, Any] | None = None,
    free: bool = False,
) -> Plan:
    """One node, on inputs that are constants or fed; where `free`, the first axis of the first one has any size."""
    domain, _, name = operator.rpartition(":")
    names = tuple(f"x{i}" for i in range(len(inputs)))
    types = {n: TensorType(trainers.element_of(x), x.shape) for n, (x, _) in zip(names, inputs, strict=True)}
    if free:
        types["x0"] = TensorType(types["x0"].element, (BATCH, *(types["x0"].shape or ())[1:]))
    constants = {n: x for n, (x, fixed) in zip(names, inputs, strict=True) if fixed}
    node = Node(name, domain, 25, "node", names, ("y",), dict(attributes or {}))
    fed = {n: t for n, t in types.items() if n not in constants}
    graph = Graph("training_model.onnx", (node,), fed, {}, ("y",), constants)
    return trainers.plan_of(
        TrainingArtifacts(graph, None, None, Checkpoint((trainers.TRAINED,)), {}), REGISTRY
    )


# ------------------------------------------------------------------------------------------------ folding


def test_axes_that_stay_together_become_one():
    folded = transposition((2, 3, 4, 5), (0, 2, 3, 1)).folded()
    assert [axis.size for axis in folded.axes] == [2, 20, 3]
    assert folded.order == (0, 2, 1)


def test_axes_of_one_element_vanish():
    folded = transposition((1, 3, 1, 4), (3, 2, 0, 1)).folded()
    assert [axis.size for axis in folded.axes] == [4, 3]


def test_an_axis_that_is_taken_in_part_keeps_those_behind_it():
    part = Axis(2, Along(2), Along(7, 3))
    (axis,) = straight([part, whole(4), whole(5)]).folded().axes
    assert (axis.size, axis.source) == (40, Along(140, 60))


def test_axes_that_go_in_steps_stay_apart():
    movement = straight([whole(2), Axis(3, Along(3), Along(6, 0, 2)), whole(4)])
    assert [axis.size for axis in movement.folded().axes] == [2, 3, 4]


def test_too_many_axes_are_refused_by_number():
    repeated = [part for _ in range(5) for part in (Axis(2, Along(2), None), whole(3))]
    with pytest.raises(Exception, match="along 10 axes"):
        call_move("y", "x", trainers.element_of(np.zeros(1)), straight(repeated))


@pytest.mark.parametrize("shape, perm", [((5, 1, 3), (1, 0, 2)), ((1, 4, 1, 2), (1, 3, 0, 2))])
def test_moving_axes_of_one_element_moves_nothing(shape, perm):
    """A returned view of an input is a copy; nothing is transposed."""
    plan = plan_of("Transpose", [(np.zeros(shape, np.float32), False)], {"perm": perm})
    assert [kernel.stem for kernel in plan.kernels] == ["copy"]


# --------------------------------------------------------------------------------------------- free sizes


@pytest.mark.parametrize(
    "start, end, step",
    [
        (0, -1, 1),
        (1, 2**63 - 1, 1),
        (-3, 2**63 - 1, 1),
        (-1, -(2**63), -1),
        (0, 4, 1),
        (5, 0, -2),
        (-2, 0, -3),
    ],
)
def test_slices_of_a_free_size_are_those_of_python(start, end, step, library):
    limits = [(np.array([n], np.int64), True) for n in (start, end, 0, step)]
    plan = plan_of("Slice", [(np.zeros((6, 2), np.float32), False), *limits], free=True)
    session = trainers.session_of(library, plan, {})
    for batch in (1, 2, 3, 9):
        x = np.arange(2 * batch, dtype=np.float32).reshape(batch, 2)
        wanted = x[start:end:step]
        if wanted.size:
            np.testing.assert_array_equal(session.run(TRAIN, [x])[0], wanted)


def test_a_slice_beyond_a_table_is_refused_by_the_device(library):
    """Positions up to a free size are taken from a table: where it ends, so does what the trainer takes."""
    nodes = (
        Node("Shape", "", 25, "shape", ("x",), ("n",), {"end": 1}),
        Node("Slice", "", 25, "slice", ("table", "zero", "n", "zero"), ("y",), {}),
    )
    table = np.arange(12, dtype=np.float32).reshape(6, 2)
    x = TensorType(trainers.element_of(table), (BATCH,))
    constants = {"table": table, "zero": np.zeros(1, np.int64)}
    graph = Graph("training_model.onnx", nodes, {"x": x}, {}, ("y",), constants)
    artifacts = TrainingArtifacts(graph, None, None, Checkpoint((trainers.TRAINED,)), {})
    session = trainers.session_of(library, trainers.plan_of(artifacts, REGISTRY), {})
    np.testing.assert_array_equal(session.run(TRAIN, [np.zeros(4, np.float32)])[0], table[:4])
    with pytest.raises(TrainerError, match="shapes do not fit"):
        session.run(TRAIN, [np.zeros(7, np.float32)])


def test_ranges_know_what_is_left_of_a_free_size():
    assert range_of(BATCH, 1, 2**63 - 1, 1).size == BATCH - 1
    assert range_of(BATCH, 0, -1, 1).size == BATCH - 1
    assert range_of(BATCH * 2, 0, BATCH, 1).size == BATCH
    assert range_of(7, 10, -100, -3).size == 3
    last = range_of(BATCH * 2, -BATCH, 2**63 - 1, 1)
    assert (last.start, last.size) == (BATCH, BATCH)
    assert range_of(BATCH * 2, BATCH - 3, 2**63 - 1, 1).start == BATCH - 3
    back = range_of(BATCH * 3, -1, -BATCH, -1)
    assert (back.start, back.size) == (BATCH * 3 - 1, BATCH - 1)


def test_slices_count_a_free_size_from_the_end(library):
    nodes = (
        Node("Reshape", "", 25, "flat", ("x", "minus"), ("f",), {}),
        Node("Shape", "", 25, "shape", ("x",), ("n",), {"end": 1}),
        Node("Neg", "", 25, "back", ("n",), ("start",), {}),
        Node("Slice", "", 25, "slice", ("f", "start", "end"), ("y",), {}),
    )
    x = TensorType(trainers.element_of(np.zeros(1)), (BATCH, 3))
    constants = {"minus": np.array([-1], np.int64), "end": np.array([2**63 - 1], np.int64)}
    graph = Graph("training_model.onnx", nodes, {"x": x}, {}, ("y",), constants)
    artifacts = TrainingArtifacts(graph, None, None, Checkpoint((trainers.TRAINED,)), {})
    session = trainers.session_of(library, trainers.plan_of(artifacts, REGISTRY), {})
    for batch in (2, 5, 32):
        values = np.random.default_rng(batch).standard_normal((batch, 3))
        np.testing.assert_array_equal(session.run(TRAIN, [values])[0], values.reshape(-1)[-batch:])


def test_range_counts_to_a_free_size(library):
    nodes = (
        Node("Shape", "", 25, "shape", ("x",), ("n",), {"end": 1}),
        Node("Squeeze", "", 25, "number", ("n",), ("count",), {}),
        Node("Range", "", 25, "range", ("one", "count", "two"), ("y",), {}),
    )
    x = TensorType(trainers.element_of(np.zeros(1)), (BATCH, 2))
    constants = {"one": np.array(1, np.int64), "two": np.array(2, np.int64)}
    graph = Graph("training_model.onnx", nodes, {"x": x}, {}, ("y",), constants)
    artifacts = TrainingArtifacts(graph, None, None, Checkpoint((trainers.TRAINED,)), {})
    session = trainers.session_of(library, trainers.plan_of(artifacts, REGISTRY), {})
    for batch in (2, 5, 8, 32):  # the last fills the memory
        np.testing.assert_array_equal(session.run(TRAIN, [np.zeros((batch, 2))])[0], range(1, batch, 2))
    assert (session.guard == 0xFF).all()


@pytest.mark.parametrize("count", [4096, 4097])
def test_a_long_range_is_made_on_the_device_and_by_the_reference(library, count):
    """A short one is a constant of the plan, as shapes may depend on it."""
    limits = tuple(np.array(n, np.int32) for n in (3, 3 + 2 * count, 2))
    operator, case = REGISTRY.ops[":Range"], TestCase("", limits, constant=frozenset({0, 1, 2}))
    one = trainers.one_node(operator, case)
    plan = trainers.plan_of(one.artifacts, REGISTRY)
    assert (len(encode_plan(plan, {})) > 4 * count) == (count == 4096)
    wanted = np.arange(3, 3 + 2 * count, 2)
    np.testing.assert_array_equal(trainers.run(library, plan, one)["y0"], wanted)
    np.testing.assert_array_equal(trainers.expected(operator, case)["y0"], wanted)


def test_constants_of_a_free_size_are_filled_on_the_device(library):
    nodes = (
        Node("Shape", "", 25, "shape", ("x",), ("n",), {}),
        Node("ConstantOfShape", "", 25, "fill", ("n",), ("y",), {"value": np.array([-7], np.int16)}),
    )
    x = TensorType(trainers.element_of(np.zeros(1)), (BATCH, 3))
    graph = Graph("training_model.onnx", nodes, {"x": x}, {}, ("y",), {})
    artifacts = TrainingArtifacts(graph, None, None, Checkpoint((trainers.TRAINED,)), {})
    plan = trainers.plan_of(artifacts, REGISTRY)
    session = trainers.session_of(library, plan, {})
    for batch in (1, 9):
        (y,) = session.run(TRAIN, [np.zeros((batch, 3))])
        np.testing.assert_array_equal(y, np.full((batch, 3), -7, np.int16))


# ---------------------------------------------------------------------------------- indices out of range


def _array(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize("wrong", [3, -4, 2**31, 2**32, -(2**63), 2**63 - 1])
@pytest.mark.parametrize(
    "operator, inputs, at",
    [
        ("Gather", (_array(3, 2), np.zeros(2, np.int64)), 1),
        ("GatherElements", (_array(3, 2), np.zeros((2, 2), np.int64)), 1),
        ("GatherND", (_array(3, 3), np.zeros((2, 2), np.int64)), 1),
        ("ScatterElements", (_array(3, 2), np.zeros((2, 2), np.int64), _array(2, 2)), 1),
        ("ScatterND", (_array(3, 2), np.zeros((2, 1), np.int64), _array(2, 2)), 1),
        ("com.microsoft:GatherElementsGrad", (_array(2, 2), np.array([3, 2]), np.zeros((2, 2), np.int64)), 2),
        ("com.microsoft:GatherNDGrad", (np.array([3, 2]), np.zeros((2, 1), np.int64), _array(2, 2)), 1),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_an_index_that_names_nothing_is_an_error(operator, inputs, at, wrong, library):
    plan = plan_of(operator, [(x, i != at and x.dtype == np.int64) for i, x in enumerate(inputs)])
    session = trainers.session_of(library, plan, {})
    feeds = [x.copy() for i, x in enumerate(inputs) if i == at or x.dtype != np.int64]
    session.run(TRAIN, feeds)
    next(x for x in feeds if x.dtype == np.int64).flat[-1] = wrong
    with pytest.raises(TrainerError, match="value out of range"):
        session.run(TRAIN, feeds)


@pytest.mark.parametrize("length", [-1, 4, 2**32])
def test_a_sequence_longer_than_the_time_there_is_is_an_error(length, library):
    plan = plan_of("ReverseSequence", [(_array(3, 2), False), (np.zeros(2, np.int64), False)])
    session = trainers.session_of(library, plan, {})
    with pytest.raises(TrainerError, match="value out of range"):
        session.run(TRAIN, [_array(3, 2), np.array([1, length])])


@pytest.mark.parametrize("operator", ["NonZero", "Unique", "NonMaxSuppression"])
def test_sizes_that_depend_on_data_are_refused_with_the_reason(operator):
    with pytest.raises(Unsupported, match="size depends on data"):
        plan_of(operator, [(_array(3), False)] * (2 if operator == "NonMaxSuppression" else 1))
