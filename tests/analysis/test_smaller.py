"""Phases, live tensors at the peak, leave-one-out and suggestions: all from real builds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from case_sets import GOLDEN
from shared_library import shared_library
from trainers import plan_of
from training_models import node, regression, single

from minbuild import assets
from minbuild.analysis.measure import build_report, persistent_of
from minbuild.analysis.target_result import TargetResult, WhatIfResults
from minbuild.analysis.whatif.leave_one_out import LeaveOneOut
from minbuild.analysis.whatif.suggestions import MOST, SuggestionBuilds, SuggestionPlanner
from minbuild.codegen.library_builder import TrimmedAndFull, build_checked
from minbuild.codegen.sources import emit_sources
from minbuild.errors import BadInput
from minbuild.ir.size_report import ModelReport, Named, Row, Suggestion, TargetReport
from minbuild.ops import registry
from minbuild.options.build_options import BuildOptions
from minbuild.options.plan_options import PlanOptions
from minbuild.planning import phases as module
from minbuild.planning.arena.layout import aligned, buffer_sizes
from minbuild.planning.compile import compile_model
from minbuild.planning.compiled_model import CompiledModel, with_components
from minbuild.planning.kernel_selection import ExtraRequirements, contents_of
from minbuild.planning.phases import step_phases, uses_of
from minbuild.toolchain import find_toolchain, host_target

FREE, FIXED = "dense", "dense_fixed"


def planned(name: str, parts: tuple[str, ...] = ()) -> CompiledModel:
    return with_components(compile_model(GOLDEN / name, {}, {}), parts)


@pytest.fixture(scope="module")
def model() -> CompiledModel:
    return planned(FREE)


@pytest.fixture(scope="module")
def target(model: CompiledModel) -> TargetReport:
    contents = contents_of([model])
    library = build_checked(contents, model.registry, host_target(), find_toolchain())
    facts = ModelReport(
        "m", "0", (), (), model.arenas, persistent_of(model.plan), len(model.plan_bytes), 0, 0, 0
    )
    costs = LeaveOneOut(contents, model.registry, host_target(), find_toolchain()).saved()
    pair = TrimmedAndFull(host_target(), library, library)
    result = TargetResult(pair, what_if=WhatIfResults(leave_one_out=costs))
    return build_report(facts, {}, [result], uses_of([(model.artifacts, model.plan)])).targets[0]


# -------------------------------------------------------------------------------------------------- the arena


@pytest.mark.parametrize("name", [FREE, FIXED])
def test_what_is_alive_adds_up_to_the_bound(name: str) -> None:
    model = planned(name)
    for routine, arena in zip(model.plan.routines, model.arenas, strict=True):
        assert sum(tensor.bytes for tensor in arena.live) == arena.lower_bound <= arena.peak
        sizes = dict(zip(routine.buffers, buffer_sizes(routine.buffers, model.largest), strict=True))
        for step in range(len(routine.steps)):
            there = sum(aligned(size) for b, size in sizes.items() if b.first <= step <= b.last)
            assert there <= arena.lower_bound
        if arena.live:
            assert arena.node == routine.steps[arena.step].node
            makers = {step.node for step in routine.steps[: arena.step + 1]}
            assert {tensor.node for tensor in arena.live} <= makers


# --------------------------------------------------------------------------------------------------- phases


def test_smaller_batches_take_what_a_session_made_for_them_takes(model: CompiledModel) -> None:
    assert [(s.symbol, s.size) for s in model.smaller] == [("batch", 1), ("batch", 8)]
    for smaller in model.smaller:
        made = compile_model(GOLDEN / FREE, {}, {"batch": smaller.size})
        assert smaller.arena == max(arena.peak for arena in made.arenas)
        assert [s.size for s in made.smaller] == [s for s in (1, 8) if s < smaller.size]
    assert not planned(FIXED).smaller


def test_steps_come_in_the_order_of_their_phases(model: CompiledModel) -> None:
    routines = {routine.name: routine for routine in model.plan.routines}
    train = step_phases(model.artifacts, routines["train"])
    assert set(train) == {"forward", "loss", "backward"}
    assert sorted(train, key=module.ORDER.index) == list(train)
    assert train.count("loss") == 1 and "CrossEntropy" in routines["train"].steps[train.index("loss")].node
    assert set(step_phases(model.artifacts, routines["eval"])) == {"evaluation"}
    assert set(step_phases(model.artifacts, routines["optimize"])) == {"optimizer"}


def test_a_model_that_carries_its_own_training(tmp_path: Path) -> None:
    """Its one graph computes gradients and updates what it trains."""
    step = [node("Mul", "lr dW", "u"), node("Sub", "W u", "W1")]
    artifacts = regression(step, "W=W1", {"lr": single(0.1)}).artifacts(tmp_path)
    routine = next(r for r in plan_of(artifacts, registry()).routines if r.name == "train")
    phases = step_phases(artifacts, routine)
    assert [s.node for s, phase in zip(routine.steps, phases, strict=True) if phase == "optimizer"] == [
        "Sub of W1"
    ]
    assert phases.count("forward") == 2 and phases.count("loss") == 3
    assert sorted(phases, key=module.ORDER.index) == list(phases)


def test_phases_add_up_to_the_file(target: TargetReport) -> None:
    assert sum(phase.bytes for phase in target.phases) == target.trimmed.file
    found = {phase.title: phase for phase in target.phases}
    assert found["Optimizer"].owners == ("adamw", "clip_grad_norm")
    assert found["Shared by forward and backward"].bytes > 0
    assert not found["Runtime"].phases and "session" in found["Runtime"].owners
    assert "Evaluation" not in found  # its kernels are those of training


def test_a_kernel_counts_for_its_phases_alone() -> None:
    uses = module.Uses(
        {"relu": frozenset(("forward", "backward"))},
        {"relu<int64_t>": frozenset(("forward",)), "relu_grad<float>": frozenset(("backward",))},
    )
    symbols = (Named(("relu<long>",), 10), Named(("relu_grad<float>",), 20), Named(("table",), 3))
    rows = (
        Row("operator", "relu", 40, (), (), (), symbols),
        Row("shared", "dot (dot.h)", 5, ("relu",), (), (), ()),
        Row("operator", "conv", 7, (), (), (), ()),
        Row("overhead", "headers", 9, (), (), (), ()),
    )
    found = {phase.title: (phase.bytes, phase.owners) for phase in module.phases_of(rows, uses)}
    assert found == {
        "Forward": (10, ("relu",)),
        "Backward": (20, ("relu",)),
        "Not used by the models": (7, ("conv",)),
        "Shared by forward and backward": (15, ("relu", "dot (dot.h)")),
        "Headers": (9, ("headers",)),
    }


def test_without_a_way_to_tell_the_loss_its_last_node_is_the_loss(model: CompiledModel, monkeypatch) -> None:
    def cannot(*given: object) -> None:
        raise BadInput("cannot be told")

    routine = next(r for r in model.plan.routines if r.name == "train")
    before = step_phases(model.artifacts, routine)
    monkeypatch.setattr(module, "default_outputs", cannot)
    assert step_phases(model.artifacts, routine) == before


# ---------------------------------------------------------------------------------------------- operators


def test_a_removed_operator_takes_what_only_it_needs_with_it(target: TargetReport) -> None:
    operators = {row.name: row for row in target.rows if row.kind == "operator"}
    assert operators["gemm"].leave_one_out and all(
        row.leave_one_out is not None for row in operators.values()
    )
    own_shared = sum(r.bytes for r in target.rows if r.kind == "shared" and r.users == ("gemm",))
    assert (
        operators["gemm"].leave_one_out > operators["gemm"].bytes + own_shared // 2 > operators["gemm"].bytes
    )
    assert all(row.leave_one_out is None for row in target.rows if row.kind != "operator")


# ------------------------------------------------------------------------------------------------- advice


def advice(model: CompiledModel, extra: ExtraRequirements = ExtraRequirements()) -> Mapping[str, Suggestion]:  # noqa: B008 (frozen)
    contents = contents_of([model], extra)
    advisor = SuggestionPlanner((model,), contents, extra, BuildOptions())
    found = SuggestionBuilds(advisor, advisor.candidates(), host_target(), find_toolchain()).suggestions()
    assert all(a.saves > 0 for a in found)
    assert sorted(found, key=lambda a: -a.saves) == list(found)
    return {a.title: a for a in found}


@pytest.fixture
def all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Advice that is not only the best of it."""
    monkeypatch.setattr("minbuild.analysis.whatif.suggestions.MOST", 99)


def test_advice_is_short(model: CompiledModel) -> None:
    schema = json.loads((assets.root("schemas") / "report.schema.json").read_text("utf-8"))
    assert len(advice(model)) == MOST == schema["$defs"]["target"]["properties"]["suggestions"]["maxItems"]


@pytest.mark.usefixtures("all_of_it")
def test_advice_is_what_following_it_saves(model: CompiledModel) -> None:
    found = advice(model)
    file = size(model, contents_of([model]))
    (symbol, largest), *_ = model.largest.items()

    fixed = compile_model(GOLDEN / FREE, dict(model.largest), {})
    told = next(a for a in found.values() if a.how.startswith("--dim"))
    assert f"--dim {symbol}={largest}" in told.how
    assert told.file == file - size(fixed, contents_of([fixed])) > 0
    assert told.model == len(model.plan_bytes) - len(fixed.plan_bytes)

    half = compile_model(GOLDEN / FREE, {}, {name: value // 2 for name, value in model.largest.items()})
    told = next(a for a in found.values() if a.how.startswith("--max-dim"))
    assert told.ram == peak(model) - peak(half) > 0 and told.file == told.model == 0

    told = {a.how: a for a in found.values()}
    for build_options in (
        BuildOptions(file_io="off"),
        BuildOptions(checkpoint_writing="off"),
        BuildOptions(error_messages="codes"),
    ):
        ((option, value),) = build_options.changed.items()
        smaller = size(model, contents_of([model], build_options=build_options))
        assert told[f"--{option.replace('_', '-')} {value}"].file == file - smaller > 0
    rest = ("train", "optimize")
    trains = compile_model(GOLDEN / FREE, {}, {}, options=PlanOptions(graphs=rest))
    smaller = size(trains, contents_of([trains]))
    evaluates = told["--graphs train,optimize"]
    assert evaluates.file == file - smaller >= 0 and evaluates.model > 0


def size(model: CompiledModel, contents) -> int:
    sources = emit_sources(contents, model.registry)
    return len(shared_library(sources))


def peak(model: CompiledModel) -> int:
    return max(arena.peak for arena in model.arenas)


def test_advice_leaves_out_what_saves_nothing() -> None:
    found = advice(planned(FIXED))
    assert not any(a.how.startswith(("--dim", "--max-dim")) for a in found.values())


@pytest.mark.usefixtures("all_of_it")
def test_advice_drops_what_was_asked_for() -> None:
    model = planned(FIXED, ("properties",))
    found = advice(model, ExtraRequirements(include=("Resize",)))
    assert found["without the component properties"].file > 0
    extra = found["without operators that these models do not need"]
    assert extra.file > found["without the component properties"].file


@pytest.mark.usefixtures("all_of_it")
def test_without_rollback_a_session_has_no_copy(model: CompiledModel) -> None:
    assert 0 < advice(model)["no rollback of failed calls"].ram <= model.plan.rollback_bytes


@pytest.mark.usefixtures("all_of_it")
def test_without_evaluation_the_plan_is_smaller(tmp_path: Path, model: CompiledModel) -> None:
    told = advice(model)["training without evaluation"]
    for path in (GOLDEN / FREE).iterdir():
        if path.is_file() and path.name != model.artifacts.evaluation.source:  # type: ignore[union-attr]
            (tmp_path / path.name).write_bytes(path.read_bytes())
    alone = compile_model(tmp_path, {}, {})
    assert told.model == len(model.plan_bytes) - len(alone.plan_bytes) > 0
