"""Results of building a library in other ways: the size waterfall, leave-one-out, suggestions."""

from __future__ import annotations

from collections.abc import Sequence

from minbuild.analysis.target_result import WhatIfResults
from minbuild.analysis.whatif.ablation import Ablation, waterfall
from minbuild.analysis.whatif.leave_one_out import LeaveOneOut
from minbuild.analysis.whatif.suggestions import SuggestionBuilds, SuggestionPlanner
from minbuild.codegen.library_builder import LibraryBuilder, TrimmedAndFull
from minbuild.options.graph_selection import EVERY
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.kernel_selection import ExtraRequirements
from minbuild.planning.library_contents import full_contents


def run_what_if(
    bench: LibraryBuilder,
    pairs: Sequence[TrimmedAndFull],
    models: Sequence[CompiledModel],
    extra: ExtraRequirements,
) -> list[WhatIfResults]:
    """All what-if analyses of `models`, for the target of each of `pairs`. `bench` builds every variant, side by side;
    `extra` is what libraries contain beyond the models. Raises ToolchainFailed."""
    contents, registry, toolchain = bench.contents, bench.registry, bench.toolchain
    bench.stage("Planning what else could be smaller (--no-analysis leaves this and what follows out)")
    build_options = toolchain.build_options
    advisor = SuggestionPlanner(tuple(models), contents, extra, build_options)
    candidates, without = advisor.candidates(), advisor.without_features()
    unbounded = contents if build_options.graphs == EVERY else advisor.with_all_graphs()
    full = full_contents(registry, contents.components, contents.wide, dense=contents.dense)
    builds, targets = bench.builds, [pair.target for pair in pairs]
    ablations = [
        Ablation(
            contents,
            unbounded=unbounded,
            full=full,
            registry=registry,
            target=target,
            toolchain=toolchain,
            builds=builds,
        )
        for target in targets
    ]
    removals = [LeaveOneOut(contents, registry, target, toolchain, builds) for target in targets]
    suggested = [
        SuggestionBuilds(advisor, candidates, target, toolchain, builds, without=without)
        for target in targets
    ]
    jobs = [job for group in (ablations, removals, suggested) for each in group for job in each.orders()]
    bench.stage("Measuring the size waterfall, leave-one-out, and suggestions")
    builds.build(jobs, bench.detail)
    return [
        WhatIfResults(waterfall(ablation), removal.saved(), builds_of.suggestions(), builds_of.costs())
        for ablation, removal, builds_of in zip(ablations, removals, suggested, strict=True)
    ]
