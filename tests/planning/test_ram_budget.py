"""`--ram`: the price of a budget that a plan fits, and the least that is possible where none does."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from case_sets import SHARED
from commands import FREE, Command, command_fixture  # noqa: F401  the fixture `minbuild`
from packed_model import packed_artifacts
from places import GOLDEN

from minbuild.errors import OverBudget
from minbuild.ir import Plan, Program
from minbuild.ir.kernel_choice import KernelChoice
from minbuild.ops import Registry
from minbuild.options.plan_options import PlanOptions, Updates
from minbuild.passes.analysis import call_costs
from minbuild.passes.analysis.call_costs import cached_seconds_of, seconds_of
from minbuild.passes.manager import optimize
from minbuild.planning import compile as compile_module
from minbuild.planning.compile import compile_model
from minbuild.planning.compiled_model import replan
from minbuild.planning.plan import build_plan
from minbuild.planning.ram_budget import ram_of

BERT, DROPOUT = SHARED / "bert_tiny", SHARED / "bert_tiny_dropout"


def test_a_budget_that_fits_changes_nothing() -> None:
    usual = compile_model(FREE, {}, {})
    assert (
        compile_model(FREE, {}, {}, options=PlanOptions(ram=ram_of(usual.plan, usual.largest))).plan_bytes
        == usual.plan_bytes
    )


@pytest.mark.skipif(not BERT.is_dir(), reason="the larger recorded sets are not beside this repository")
@pytest.mark.parametrize("folder", [BERT, DROPOUT], ids=lambda f: f.name)
def test_a_plan_fits_the_budget_and_says_its_price(folder: Path) -> None:
    """In slices of the batch, or with calls that run again where random numbers keep it whole."""
    usual = compile_model(folder, {}, {"batch": 8})
    whole = ram_of(usual.plan, usual.largest)
    budget = usual.plan.persistent_bytes + (whole - usual.plan.persistent_bytes) // 2
    model = compile_model(folder, {}, {"batch": 8}, options=PlanOptions(ram=budget))
    assert model.fitted is not None
    assert ram_of(model.plan, model.largest) == model.fitted.ram <= budget < model.fitted.before == whole
    assert 0 < model.fitted.added_time < 0.4
    sliced = model.fitted.slices is not None
    assert sliced == (folder is BERT) and (model.fitted.repeated > 0) == (not sliced)
    assert replan(model, model.registry).plan_bytes == model.plan_bytes


def test_bytes_without_a_budget_are_those_of_all_kernels_and_threads(tmp_path: Path) -> None:
    """Under a budget, plans choose from kernels with little scratch memory, which nobody gets without one."""
    folder = packed_artifacts(tmp_path)
    usual = compile_model(folder, {}, {}, options=PlanOptions(threads="auto"))
    whole = ram_of(usual.plan, usual.largest)
    with pytest.raises(OverBudget, match=rf"without a budget it is {whole:,}\."):
        compile_model(folder, {}, {}, options=PlanOptions(ram=1, threads="auto"))
    budget = usual.plan.persistent_bytes + (whole - usual.plan.persistent_bytes) // 2
    model = compile_model(folder, {}, {}, options=PlanOptions(ram=budget, threads="auto", ram_curve=True))
    assert model.kernels.scratch is not None and model.fitted is not None and model.fitted.before == whole
    lean = build_plan(optimize(model.program, model.registry), model.registry, model.threads, model.kernels)
    assert ram_of(lean, usual.largest) < whole == model.ram_curve[0].ram


def test_other_kernels_are_a_plan_that_the_budget_changed(tmp_path: Path) -> None:
    folder, options = packed_artifacts(tmp_path), PlanOptions(threads="auto")
    usual = compile_model(folder, {}, {}, options=options)
    whole = ram_of(usual.plan, usual.largest)
    assert usual.usual_ram == 0 and usual.ram_price is None
    model = compile_model(folder, {}, {}, options=replace(options, ram=whole - 1))
    assert model.fitted is None and model.kernels.scratch is not None
    assert model.usual_ram == whole and model.ram_price is not None
    assert model.ram_price.ram == ram_of(model.plan, model.largest) < model.ram_price.unlimited == whole


def test_plans_for_a_budget_have_the_fast_kernels_that_it_has_room_for(tmp_path: Path) -> None:
    folder, fast = packed_artifacts(tmp_path), "winograd_conv_packed"

    def calls(plan: Plan) -> int:
        steps = plan.routines[0].steps
        return sum(plan.kernels[step.kernel].function == fast for step in steps)

    usual = compile_model(folder, {"batch": 16}, {})
    budget = ram_of(usual.plan, {}) * 9 // 10
    model = compile_model(folder, {"batch": 16}, {}, options=PlanOptions(ram=budget))
    assert model.fitted is not None and model.fitted.ram == ram_of(model.plan, {}) <= budget
    lean = replace(model.kernels, scratch=0)
    least = build_plan(model.fitted.program, model.registry, model.threads, lean, model.fitted.search)
    assert calls(model.plan) >= calls(usual.plan) > calls(least)
    assert replan(model, model.registry).plan_bytes == model.plan_bytes


def test_too_little_is_refused_with_the_least(minbuild: Command, tmp_path) -> None:
    said = minbuild("reduce", FREE, "-o", tmp_path / "dist", "--ram", "100 B")
    assert said.code == 5 and not (tmp_path / "dist").exists()
    least = int(re.search(r"takes ([\d,]+) bytes of RAM", said.err)[1].replace(",", ""))
    assert least <= ram_of(compile_model(FREE, {}, {}).plan, {"batch": 32})
    with pytest.raises(OverBudget):
        compile_model(FREE, {}, {}, options=PlanOptions(ram=least - 1))
    assert ram_of(compile_model(FREE, {}, {}, options=PlanOptions(ram=least)).plan, {"batch": 32}) <= least


@pytest.mark.parametrize("name", ["embedding", "residual"])
def test_fused_updates_are_named_where_separate_ones_fit(name: str) -> None:
    """Separate updates allow for slices of the batch (embedding), and for gradients whose memory is not the arena's."""
    folder, fused = GOLDEN / name, Updates(fused=True)
    with pytest.raises(OverBudget) as refused:
        compile_model(folder, {}, {}, options=PlanOptions(ram=1))
    least = int(re.search(r"takes ([\d,]+) bytes of RAM", str(refused.value))[1].replace(",", ""))
    with pytest.raises(
        OverBudget, match=rf"Without --updates fused a plan takes {least:,} bytes, which fits\."
    ):
        compile_model(folder, {}, {}, options=PlanOptions(ram=least, updates=fused))
    with pytest.raises(OverBudget) as refused:
        compile_model(folder, {}, {}, options=PlanOptions(ram=least - 1, updates=fused))
    assert "Without --updates fused" not in str(refused.value)


@pytest.mark.skipif(not DROPOUT.is_dir(), reason="the larger recorded sets are not beside this repository")
def test_fused_updates_are_named_where_they_fit_with_calls_that_run_again(minbuild: Command) -> None:
    """Neither fused updates by themselves fit the budget, nor any plan with separate ones."""
    fused = Updates(fused=True)
    usual = compile_model(DROPOUT, {"batch": 2}, {}, options=PlanOptions(updates=fused))
    budget = ram_of(usual.plan, usual.largest) - 1
    said = minbuild("check", DROPOUT, "--dim", "batch=2", "--ram", str(budget), "--threads", "off")
    hint = r"With --updates fused \(mb_train_and_update, .*\) a plan takes ([\d,]+) bytes, which fits\."
    assert said.code == 5
    (named,) = re.findall(hint, said.err)
    model = compile_model(DROPOUT, {"batch": 2}, {}, options=PlanOptions(ram=budget, updates=fused))
    assert model.fitted is not None and model.fitted.repeated
    assert int(named.replace(",", "")) <= model.fitted.ram <= budget


@pytest.mark.parametrize("ram", [1, 1000, 1943])
def test_no_fused_updates_are_named_for_less_than_what_persists_with_them(ram: int) -> None:
    with pytest.raises(OverBudget) as refused:
        compile_model(GOLDEN / "embedding", {}, {}, options=PlanOptions(ram=ram))
    assert "--updates" not in str(refused.value)


@pytest.mark.parametrize("misses", [False, True])
def test_a_layout_is_searched_for_longer_where_the_search_misses(
    misses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least of a longer search is that of the usual one, where this one finds it."""
    folder, fixed = GOLDEN / "conv", {"batch": 1}
    with pytest.raises(OverBudget) as refused:
        compile_model(folder, fixed, {}, options=PlanOptions(ram=1))
    least = int(re.search(r"takes ([\d,]+) bytes of RAM", str(refused.value))[1].replace(",", ""))

    def build(
        program: Program, registry: Registry, threads: int, kernels: KernelChoice, search: int = 1
    ) -> Plan:
        plan = build_plan(program, registry, threads, kernels, search)
        if search != 1 or not misses:
            return plan
        apart = [[replace(b, first=0, last=len(r.steps) - 1) for b in r.buffers] for r in plan.routines]
        routines = zip(plan.routines, apart, strict=True)
        return replace(plan, routines=tuple(replace(r, buffers=tuple(each)) for r, each in routines))

    monkeypatch.setattr(compile_module, "build_plan", build)
    model = compile_model(folder, fixed, {}, options=PlanOptions(ram=least))
    assert model.fitted is not None and model.fitted.search == (8 if misses else 1)
    assert ram_of(model.plan, model.largest) == model.fitted.ram == least
    monkeypatch.undo()
    assert replan(model, model.registry).plan_bytes == model.plan_bytes


def test_weights_of_all_slices_come_from_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = compile_model(FREE, {}, {"batch": 8})
    budget = ram_of(usual.plan, usual.largest) - 1
    model = compile_model(FREE, {}, {"batch": 8}, options=PlanOptions(ram=budget))
    assert model.fitted is not None and model.fitted.slices is not None
    step, given = model.fitted.program.procedures[0], (model.registry, model.largest)
    assert cached_seconds_of(step, *given) < seconds_of(step, *given)
    before = model.fitted.added_time
    monkeypatch.setattr(call_costs, "CACHE", 0)  # nothing stays in it
    assert cached_seconds_of(step, *given) == seconds_of(step, *given)
    again = compile_model(FREE, {}, {"batch": 8}, options=PlanOptions(ram=budget))
    assert again.fitted is not None and before < again.fitted.added_time
    assert again.plan_bytes == model.plan_bytes


def test_check_names_the_price_of_budgets_and_the_least(minbuild: Command) -> None:
    """Every point of the curve can be had: the last one is the least, and the first one costs nothing."""
    said = minbuild("check", FREE, "--ram", "1GB")
    assert said.code == 0 and "as it is without a budget" in said.out
    points = re.findall(r"^ +([\d,]+) bytes +([\d.]+) times$", said.out, re.M)
    sizes, times = [int(size.replace(",", "")) for size, _ in points], [float(time) for _, time in points]
    assert len(points) > 1 and sizes == sorted(sizes, reverse=True) and times == sorted(times)
    assert times[0] == 1 and sizes[0] == ram_of(compile_model(FREE, {}, {}).plan, {"batch": 32})
    least = minbuild("check", FREE, "--ram", str(sizes[-1]))
    assert (
        least.code == 0
        and f"{sizes[-1]:,} bytes of RAM fit" in least.out
        and "longer by estimate" in least.out
    )
    refused = minbuild("check", FREE, "--ram", str(sizes[-1] - 1))
    assert refused.code == 5 and f"takes {sizes[-1]:,} bytes of RAM" in refused.err
    assert refused.err.startswith(f"Planning {FREE} for ") and "--ram:" not in refused.err


def test_check_says_which_plans_it_made(minbuild: Command) -> None:
    said = minbuild("check", FREE, "--ram", "1GB", "--verbose")
    made = re.findall(r"^  --ram: a plan of ([\d,]+) bytes of RAM$", said.err, re.M)
    points = re.findall(r"^ +([\d,]+) bytes +[\d.]+ times$", said.out, re.M)
    assert len(points) > 1 and set(points) <= set(made)


def test_check_counts_the_scratch_memory_of_threads_as_reduce_does(minbuild: Command, tmp_path: Path) -> None:
    folder = packed_artifacts(tmp_path)
    sizes = {}
    for threads in ("off", "2", "4", "auto"):
        said = minbuild(
            "check", folder, "--ram", "1GB", *(() if threads == "auto" else ("--threads", threads))
        )
        (found,) = re.findall(r"^([\d,]+) bytes of RAM fit", said.out, re.M)
        planned = compile_model(folder, {}, {}, options=PlanOptions(threads=threads))
        sizes[threads] = int(found.replace(",", ""))
        assert sizes[threads] == ram_of(planned.plan, planned.largest)
    assert sizes["off"] < sizes["2"] < sizes["4"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "Nothing to check"),
        (("--ram", "much"), "not a number of bytes"),
        (
            ("--ram", "1GB", "--threads", "many"),
            "--threads many: is not allowed. Choose from: auto, off, on, or a number from 2 to 64",
        ),
    ],
)
def test_check_refuses_to_guess(minbuild: Command, given: tuple[str, ...], said: str) -> None:
    refused = minbuild("check", FREE, *given)
    assert refused.code == 2 and said in refused.err
