"""Loops over samples: where the passes make them, that the device computes the same bits with them, and that no plan
makes them endless."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_sets import GOLDEN, trainer
from trainers import contents_of, element_of, library_of, session_of

from minbuild.ir import (
    Checkpoint,
    ElementType,
    Graph,
    Node,
    Parameter,
    Plan,
    Role,
    TensorType,
    TrainingArtifacts,
)
from minbuild.ir.dims import evaluate, symbol
from minbuild.ir.flatbuffers.codec import decode, encode
from minbuild.ops import registry
from minbuild.ops.core.definition import Op, OpContext, TestCase
from minbuild.passes.analysis.aliases import root
from minbuild.passes.invariants import LONGEST_LOOP
from minbuild.passes.lowering.lower import lower
from minbuild.passes.manager import optimize
from minbuild.passes.rewrite import batch_tiling as loops
from minbuild.planning.arena.buffers import tiled_of
from minbuild.planning.plan import build_plan, peak_bytes
from minbuild.planning.plan_encoding import encode_plan, plan_schema
from minbuild.training.library import TRAIN, Session, TrainerError

FLOAT = ElementType.FLOAT
WEIGHTS = {"w1": (8, 3, 3, 3), "w2": (8, 8, 3, 3)}
IMAGE = (3, 24, 24)


def node(op: str, inputs: str, outputs: str, domain: str = "", **attributes: Any) -> Node:
    return Node(
        op, domain, 17, f"{op} {outputs}", tuple(inputs.split(",")), tuple(outputs.split(",")), attributes
    )


def convolutions() -> TrainingArtifacts:
    """loss = sum relu(w2 * relu(w1 * x)), with gradients of both weights as ORT writes them. The second convolution
    leaves a quarter of what the first one makes."""
    pads: dict[str, Any] = {"pads": (1, 1, 1, 1)}
    strided: dict[str, Any] = {"pads": (1, 1, 1, 1), "strides": (2, 2)}
    microsoft = "com.microsoft"
    nodes = [
        node("Conv", "x,w1", "a", **pads),
        node("Relu", "a", "r"),
        node("Conv", "r,w2", "b", **strided),
        node("Relu", "b", "c"),
        node("ReduceSum", "c", "loss", keepdims=0),
        node("Shape", "c", "shape"),
        node("Expand", "one,shape", "dc"),
        node("ReluGrad", "dc,c", "db", microsoft),
        node("ConvGrad", "db,r,w2", "dr,dw2", microsoft, **strided),
        node("ReluGrad", "dr,r", "da", microsoft),
        node("ConvGrad", "da,x,w1", ",dw1", microsoft, **pads),
    ]
    inputs = {"x": TensorType(FLOAT, (symbol("batch"), *IMAGE))}
    for name, shape in WEIGHTS.items():
        buffer = f"{name}_grad.accumulation.buffer"
        inputs |= {n: TensorType(FLOAT, shape) for n in (name, buffer)}
        nodes.append(
            node("InPlaceAccumulatorV2", f"{buffer},d{name},lazy_reset_grad", f"{name} done", microsoft)
        )
    inputs["lazy_reset_grad"] = TensorType(ElementType.BOOL, (1,))
    outputs = ("loss", *(f"{name} done" for name in WEIGHTS))
    graph = Graph("training_model.onnx", tuple(nodes), inputs, {}, outputs, {"one": np.array(1, np.float32)})
    random = np.random.default_rng(1)
    parameters = tuple(
        Parameter(n, FLOAT, s, True, random.standard_normal(s).astype(np.float32)) for n, s in WEIGHTS.items()
    )
    return TrainingArtifacts(graph, None, None, Checkpoint(parameters), {})


def plan_with(least_gain: int, monkeypatch: pytest.MonkeyPatch, fixed: dict[str, int] | None = None) -> Plan:
    monkeypatch.setattr(loops, "LEAST_GAIN", least_gain)
    operators = registry()
    return build_plan(optimize(lower(convolutions(), operators, fixed or {}), operators), operators)


def looped(monkeypatch: pytest.MonkeyPatch, fixed: dict[str, int] | None = None) -> Plan:
    return plan_with(8, monkeypatch, fixed)


def plain(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """No gain is ever enough."""
    return plan_with(0, monkeypatch)


def test_gradients_between_layers_take_the_room_of_one_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    with_loops, without = looped(monkeypatch), plain(monkeypatch)
    assert with_loops.loops
    assert not without.loops
    map_bytes = 8 * 24 * 24 * 4
    (small, _), (large, _) = (peak_bytes(p, {"batch": 32}) for p in (with_loops, without))
    assert large - small >= 20 * map_bytes
    train = with_loops.routines[0]
    (end,) = (i for i, step in enumerate(train.steps) if step.loop)
    inside = train.steps[end + 1 - train.steps[end].loop : end + 1]
    walking = [
        with_loops.tensors[a] for step in inside for a in step.args if with_loops.tensors[a].per_sample
    ]
    assert {t.shape[0] for t in walking} == {1}
    assert train.samples == symbol("batch")


def test_the_validator_is_given_the_bytes_of_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "LEAST_GAIN", 8)
    program = optimize(lower(convolutions(), registry(), {}), registry())
    (train,) = (p for p in program.procedures if p.loops)
    walked = {root(train.alias, name) for name, value in train.values.items() if value.sample}
    tiled = tiled_of(train)
    assert tiled and set(tiled) == {n for n in walked if train.values[n].role is Role.TEMPORARY}
    for size in tiled.values():
        assert evaluate(size, {"batch": 7}) == 7 * evaluate(size, {"batch": 1}) > 0


def test_a_fixed_batch_loops_too(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = looped(monkeypatch, {"batch": 6})
    assert plan.loops
    assert plan.routines[0].samples == 6


def test_the_same_bits_with_loops_and_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two steps that accumulate, then one that replaces, at several sizes of the batch in turn."""
    plans = looped(monkeypatch), plain(monkeypatch)
    library = library_of(contents_of(plans), registry(), tmp_path)
    state = {p.name: p.data for p in convolutions().checkpoint.parameters if p.data is not None}
    sessions = [session_of(library, plan, state) for plan in plans]
    random = np.random.default_rng(2)
    for batch, reset in ((5, False), (32, False), (1, True), (7, False)):
        x = random.standard_normal((batch, *IMAGE)).astype(np.float32)
        found = []
        for session in sessions:
            if reset:
                session.lazy_reset_grad()
            found.append(session.run(TRAIN, [x]) + [np.array(session.gradient(name)) for name in WEIGHTS])
        for one, other in zip(*found, strict=True):
            np.testing.assert_array_equal(one, other)
            assert np.abs(one).max() > 0


# --------------------------------------------------------------------------------------------- damaged plans


@pytest.fixture
def damaged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, str, int, int], int]:
    """Sets one member of the plan's tables, counted from the step that ends the loop, and runs it: the status."""
    plan = looped(monkeypatch)
    library = library_of(contents_of([plan]), registry(), tmp_path)
    data = encode_plan(plan, {"batch": 4})

    def status(vector: str, member: str, offset: int, value: int) -> int:
        tables = decode(plan_schema(), data)
        changed = tables[vector].copy()
        (end,) = np.flatnonzero(tables["steps"]["loop"])
        changed[member][offset + (end if vector == "steps" else 0)] = value
        session = Session(library, encode(plan_schema(), tables | {vector: changed}), None)
        try:
            session.run(TRAIN, [np.ones((4, *IMAGE), np.float32)])
        except TrainerError as error:
            return error.status
        return 0

    return status


@pytest.mark.parametrize("inner", [1, 2])
def test_loops_within_loops_are_refused(damaged: Callable[..., int], inner: int) -> None:
    assert damaged("steps", "loop", -1, inner) != 0


def test_a_loop_longer_than_its_graph_ends(damaged: Callable[..., int]) -> None:
    damaged("steps", "loop", 0, 255)


def test_rounds_beyond_the_batch_are_refused(
    damaged: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = decode(plan_schema(), encode_plan(looped(monkeypatch), {"batch": 4}))
    large = int(np.argmax(np.where(tables["exprs"]["op"] == 0, tables["exprs"]["a"], -1)))
    assert damaged("graphs", "samples", 0, large) != 0


def test_rounds_that_nobody_counts_are_one(damaged: Callable[..., int]) -> None:
    assert damaged("graphs", "samples", 0, 65535) == 0


# ------------------------------------------------------------------------------------- what operators promise


def _promising() -> list[Op]:
    return [op for _, op in sorted(registry().ops.items()) if op.batched_inputs and op.cases and op.reference]


@pytest.mark.parametrize("op", _promising(), ids=lambda op: op.key)
def test_samples_are_computed_alone(op: Op) -> None:
    """The reference on one sample after the other gives what it gives on all, or parts that add up to it."""
    tried = sum(_is_sample_by_sample(op, case) for case in op.cases(np.random.default_rng(3)))  # type: ignore[misc]
    assert tried > 0


def _is_sample_by_sample(op: Op, case: TestCase) -> bool:
    types = tuple(x if x is None else TensorType(element_of(x), x.shape) for x in case.inputs)
    ctx = OpContext(case.attributes, types, (None,) * len(types), max(op.since))
    assert op.batched_inputs and op.reference
    results = _all_results(op, case, case.inputs)
    rank, count = results[0].ndim, results[0].shape[0] if results[0].ndim else 1
    walking = {
        i
        for i in op.batched_inputs(ctx)
        if (x := case.inputs[i]) is not None and count > 1 and x.ndim == rank and x.shape[0] == count
    }
    broadcast = [i for i in op.batched_inputs(ctx) if i not in walking and case.inputs[i] is not None]
    if not walking or any(case.inputs[i].ndim == rank and case.inputs[i].shape[0] != 1 for i in broadcast):  # type: ignore[union-attr]
        return False
    parts = []
    for s in range(count):
        one = (x[s : s + 1] if i in walking and x is not None else x for i, x in enumerate(case.inputs))
        parts.append(_all_results(op, case, tuple(one)))
    for i in range(1 if op.split is None else 2):
        pieces = [part[i] for part in parts]
        joined = np.sum(pieces, 0) if i in op.batch_sums else np.concatenate(pieces)
        np.testing.assert_allclose(joined, results[i], rtol=1e-12, atol=1e-12)
    return True


def _all_results(op: Op, case: TestCase, inputs: tuple[np.ndarray | None, ...]) -> list[np.ndarray]:
    assert op.reference
    answer = op.reference(case.attributes, *inputs)
    return [np.asarray(x) for x in (answer if isinstance(answer, tuple) else (answer,))]


def test_divided_calls_make_every_output_once() -> None:
    """Of ConvGrad, in an order in which dx comes last."""
    op = registry().ops["com.microsoft:ConvGrad"]
    artifacts = convolutions()
    procedure = lower(artifacts, registry(), {}).procedures[0]
    call = next(c for c in procedure.calls if c.op == op.key)
    call = replace(call, outputs=("dr", "dw2", "db2"), accumulate=frozenset({1, 2}))
    types = tuple(procedure.values[n].type for n in call.inputs)
    assert op.split
    calls = op.split(call, OpContext(call.attributes, types, (None,) * 3, 1))
    assert [[n for n in c.outputs if n] for c in calls] == [["db2"], ["dw2"], ["dr"]]
    assert [bool(c.accumulate) for c in calls] == [True, True, False]


def test_the_longest_loop_is_what_a_step_of_the_plan_can_count() -> None:
    steps = decode(plan_schema(), trainer(GOLDEN / "dense").data)["steps"]
    assert np.iinfo(steps.dtype["loop"]).max == LONGEST_LOOP
