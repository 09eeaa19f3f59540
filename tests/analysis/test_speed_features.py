"""Features for speed in the report: the choice, the figures that decided, and bytes from builds without each."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from case_sets import GOLDEN
from packed_model import packed_artifacts
from quiet_progress import Quiet
from shared_library import shared_library

from minbuild.analysis.speed_features import AVX512, LOOP_VARIANTS, PACKING, THREADS, speed_features
from minbuild.analysis.target_result import FeatureCost
from minbuild.analysis.whatif.suggestions import SuggestionBuilds, SuggestionPlanner
from minbuild.codegen.sources import emit_sources
from minbuild.ir.size_report import SpeedFeature
from minbuild.options.build_options import OFF, ONE, BuildOptions
from minbuild.options.plan_options import PlanOptions
from minbuild.pipeline import Request, plan_options, reduce
from minbuild.planning.compile import compile_model
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.kernel_selection import ExtraRequirements, contents_of
from minbuild.planning.threads import MOST_THREADS, step_work, work_of
from minbuild.toolchain import find_toolchain, host_target, parse_target

X86 = parse_target("x86_64-linux-gnu")
STACK = 1 << 16


def features(
    folder: Path, *targets: str, costs: Mapping[str, FeatureCost] | None = None, **options: str
) -> dict[str, SpeedFeature]:
    """Those of a library for the first of `targets`, by default for x86-64, by name."""
    machines = [parse_target(target) for target in targets] or [X86]
    asked = BuildOptions(**options)
    model = compile_model(folder, {}, {}, options=plan_options(asked, machines))
    contents = contents_of([model], build_options=asked)
    works = [step_work(model.executed, model.registry)]
    found = speed_features([model], works, contents, asked=asked, target=machines[0], costs=costs or {})
    return {f.name: f for f in found}


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Products and convolutions that are packed."""
    return packed_artifacts(tmp_path_factory.mktemp("packed"))


def test_a_small_model_has_none_and_its_figures_are_below_those_that_decide() -> None:
    found = features(GOLDEN / "dense")
    assert [found[name].chosen for name in (PACKING, AVX512, THREADS, LOOP_VARIANTS)] == ["no"] * 3 + ["all"]
    model = compile_model(GOLDEN / "dense", {}, {})
    program = model.executed
    work = list(work_of(program, model.registry, {"batch": 1}))
    largest = max(each.count for each in work if each.procedure == "train")
    assert f"the largest takes {largest:,} multiplications with free dimensions of 1" in found[PACKING].reason
    of_all = step_work(program, model.registry)
    assert f"{of_all.one:,} multiplications" in found[THREADS].reason and of_all.one < 67_108_864
    assert "from 67,108,864 on" in found[THREADS].reason
    assert found[LOOP_VARIANTS].reason == "Sizes are chosen when it runs: batch."


def test_large_products_have_all_of_them(large: Path) -> None:
    found = features(large)
    assert [found[name].chosen for name in (PACKING, AVX512, LOOP_VARIANTS)] == ["yes", "yes", "all"]
    assert 1 < int(found[THREADS].chosen) <= MOST_THREADS
    packed, of = map(int, re.findall(r"^(\d+) of (\d+) products", found[PACKING].reason)[0])
    assert 0 < packed <= of
    assert "gemm_packed" in found[AVX512].reason
    work = [int(n.replace(",", "")) for n in re.findall(r"[\d,]{9,}", found[THREADS].reason)]
    assert min(work[:2]) >= work[2] == 67_108_864


def test_what_was_asked_for_is_the_reason(large: Path) -> None:
    found = features(large, threads="3", avx512=OFF)
    assert (found[THREADS].chosen, found[THREADS].reason) == ("3", "--threads 3.")
    assert (found[AVX512].chosen, found[AVX512].reason) == ("no", "--avx512 off.")
    found = features(large, threads=OFF, loop_variants=ONE)
    assert (found[THREADS].chosen, found[THREADS].reason) == ("no", "--threads off.")
    assert (found[PACKING].chosen, found[PACKING].reason) == ("no", "--loop-variants one leaves it out.")
    assert (found[LOOP_VARIANTS].chosen, found[LOOP_VARIANTS].reason) == ("one", "--loop-variants one.")


def test_targets_decide_too(large: Path) -> None:
    found = features(large, "cortex-m4f")
    assert found[AVX512].reason == "It is for x86-64." and "no operating system" in found[THREADS].reason
    found = features(large, "x86_64-linux-gnu", "cortex-m4f")
    assert (found[THREADS].chosen, found[THREADS].reason) == ("no", "Another target of this build has none.")
    assert found[AVX512].chosen == "yes"


def test_a_feature_that_is_not_there_has_no_bytes() -> None:
    found = features(GOLDEN / "dense", costs=dict.fromkeys((AVX512, LOOP_VARIANTS), FeatureCost(7, 8)))
    assert found[AVX512].file is None and (found[LOOP_VARIANTS].file, found[LOOP_VARIANTS].ram) == (7, 8)


def built(model: CompiledModel, build_options: BuildOptions = BuildOptions()) -> int:  # noqa: B008 (frozen)
    contents = contents_of([model], build_options=build_options)
    return len(shared_library(emit_sources(contents, model.registry)))


@pytest.mark.skipif(host_target().traits.arch != "x86_64", reason="another processor")
def test_bytes_are_those_of_builds_without(large: Path) -> None:
    def planned(**options: object) -> CompiledModel:
        return compile_model(large, {"batch": 2}, {}, options=PlanOptions(**options))  # type: ignore[arg-type]

    model = planned(threads="3")
    advisor = SuggestionPlanner((model,), contents_of([model]), ExtraRequirements(), BuildOptions())
    without = advisor.without_features()
    costs = SuggestionBuilds(advisor, (), host_target(), find_toolchain(), without=without).costs()
    assert set(costs) == {PACKING, AVX512, THREADS, LOOP_VARIANTS}
    whole = built(model)
    kernels = replace(PlanOptions().kernels, packs=False)
    assert costs[THREADS].file == whole - built(planned()) > 0
    assert costs[PACKING].file == whole - built(planned(threads="3", kernels=kernels)) > 0
    assert costs[AVX512].file == whole - built(model, BuildOptions(avx512=OFF)) > 0
    assert costs[LOOP_VARIANTS].file == whole - built(model, BuildOptions(loop_variants=ONE)) > 0
    assert costs[THREADS].ram > 2 * STACK and costs[PACKING].ram > STACK
    assert costs[AVX512].ram < 1024  # tables of functions


def test_under_a_budget_of_ram_plans_are_not_compared(large: Path) -> None:
    model = compile_model(large, {"batch": 2}, {}, options=PlanOptions(threads="3", ram=1 << 30))
    advisor = SuggestionPlanner((model,), contents_of([model]), ExtraRequirements(), BuildOptions())
    assert set(advisor.without_features()) == {AVX512, LOOP_VARIANTS}


def test_without_analysis_nothing_is_built_for_it(tmp_path: Path) -> None:
    reduce(Request((GOLDEN / "dense_fixed",), tmp_path / "dist", analysis=False), Quiet())
    (target,) = json.loads((tmp_path / "dist/report/report.json").read_text("utf-8"))["targets"]
    assert [f["name"] for f in target["features"]] == [PACKING, AVX512, THREADS, LOOP_VARIANTS]
    assert all(f["file"] is f["ram"] is None and f["reason"].endswith(".") for f in target["features"])
    for name in ("report.md", "report.html"):
        assert "Features for speed" in (tmp_path / "dist/report" / name).read_text("utf-8")
