"""Times of operators: every step that runs has one, and bytes are those of the arena."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from commands import SMALL, Command
from commands import command_fixture as command_fixture
from report_pages import schema

from minbuild.codegen.library_builder import BuiltLibrary
from minbuild.errors import VerificationFailed
from minbuild.planning.compiled_model import CompiledModel
from minbuild.toolchain import find_toolchain, host_target
from minbuild.verify import operator_times as times
from minbuild.verify.differential import PACES
from minbuild.verify.step_script import GRAPHS, step_order

RECORD = np.dtype([("row", "<u4"), ("nanoseconds", "<u8")])


def reply_to(model: CompiledModel, took: list[int]) -> bytes:
    """The reply of a program to a script of a round for each of `took`, the nanoseconds of every step in it."""
    routines = {routine.name: routine for routine in model.plan.routines}
    records = []
    rounds = iter(took)
    now = 0
    for action in times.timed_script(model, PACES[0], len(took)).actions:
        if action.verb == "eval":  # a round begins
            now = next(rounds)
        graph = GRAPHS.get(action.verb)
        if graph is not None:
            steps = routines[graph].steps
            records += [
                (steps[i].kernel, now) for i in step_order(routines[graph], model.plan, model.largest)
            ]
    return np.array([3000, 100], "<u8").tobytes() + np.array(records, RECORD).tobytes()


def test_every_step_counts_with_its_fastest_run(model: CompiledModel, good: BuiltLibrary) -> None:
    script = times.timed_script(model, PACES[0], 3)
    found = times.read_times(reply_to(model, [9, 5, 7]), script, model, good, "here")
    assert found.runs == 3 and found.peak == 30
    for routine in model.plan.routines:
        assert found.graphs[routine.name].tolist() == [5.0] * len(routine.steps)


def test_times_of_other_steps_are_refused(model: CompiledModel, good: BuiltLibrary) -> None:
    script = times.timed_script(model, PACES[0], 1)
    reply = bytearray(reply_to(model, [9]))
    for short in (reply[:8], reply[: 16 + 12]):
        with pytest.raises(VerificationFailed, match=r"here: .*Please report this text\."):
            times.read_times(bytes(short), script, model, good, "here")
    reply[16] ^= 1
    with pytest.raises(VerificationFailed, match="here: other steps ran than those of graph eval"):
        times.read_times(bytes(reply), script, model, good, "here")


def test_live_bytes_reach_the_lower_bound_of_the_arena(model: CompiledModel) -> None:
    for routine, arena in zip(model.plan.routines, model.arenas, strict=True):
        live = times.live_bytes(routine, model.largest)
        assert len(live) == len(routine.steps) and max(live) == arena.lower_bound
        assert live[arena.step] == arena.lower_bound


def test_products_are_counted(model: CompiledModel) -> None:
    """The first product of the training graph: outputs times depth."""
    plan = model.plan
    routine = next(r for r in plan.routines if r.name == "train")
    counts = [times.multiplications(s, plan, model.registry, model.largest) for s in routine.steps]
    for step, count in zip(routine.steps, counts, strict=True):
        assert (count > 0) == (plan.kernels[step.kernel].function == "gemm")
    first = next(i for i, count in enumerate(counts) if count)
    batch = model.largest["batch"]
    weights = {
        plan.tensors[p.tensor].shape for p in plan.parameters if len(plan.tensors[p.tensor].shape) == 2
    }
    assert counts[first] in {batch * a * b for a, b in weights}  # type: ignore[operator]


def test_every_operator_of_a_real_run_has_a_time(model: CompiledModel, good: BuiltLibrary) -> None:
    found = times.time_library({"net": model}, good, host_target(), find_toolchain())
    assert found.timing.reason == "" and found.timing.runs >= 5 and found.timing.peak_gflops > 0
    assert {name for name, _ in found.timing.graphs} == {routine.name for routine in model.plan.routines}
    assert all(milliseconds > 0 for _, milliseconds in found.timing.graphs)
    run = {model.plan.kernels[step.kernel].stem for routine in model.plan.routines for step in routine.steps}
    assert set(found.operators) == run
    assert all(each.milliseconds + each.eval_milliseconds > 0 for each in found.operators.values())
    assert [name for name, each in found.operators.items() if each.gflops] == ["gemm"]
    graphs = dict(found.timing.graphs)
    total = sum(each.milliseconds for each in found.operators.values())
    assert total == pytest.approx(graphs["train"] + graphs["optimize"], abs=1e-5)


def test_what_cannot_be_measured_has_a_reason(
    model: CompiledModel, good: BuiltLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> bytes:
        raise VerificationFailed("here: it crashed.")

    monkeypatch.setattr(times, "time_steps", crash)
    found = times.time_library({"net": model}, good, host_target(), find_toolchain())
    assert found.timing.reason == "here: it crashed." and not found.operators


def test_the_command_reports_times_only_on_request(minbuild: Command, tmp_path: Path) -> None:
    for option in ("--time", "--no-time"):
        said = minbuild("reduce", SMALL, "--out", tmp_path / option, "--no-analysis", option)
        assert said.code == 0, said.err
    timed, plain = (
        json.loads((tmp_path / option / "report" / "report.json").read_text("utf-8"))
        for option in ("--time", "--no-time")
    )
    jsonschema.validate(timed, schema())
    (target,) = timed["targets"]
    assert target["timing"]["target"] == str(host_target()) and target["timing"]["graphs"]["train"] > 0
    rows = [row for row in target["rows"] if row["kind"] == "operator"]
    assert all("milliseconds" in row and row["live_bytes"] >= 0 for row in rows)
    page = (tmp_path / "--time" / "report" / "report.html").read_text("utf-8")
    assert "Time and memory of operators" in page and '"milliseconds":' in page
    del target["timing"]
    for row in target["rows"]:
        for name in ("milliseconds", "eval_milliseconds", "gflops", "live_bytes"):
            row.pop(name, None)
    assert timed == plain
