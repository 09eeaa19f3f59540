"""Results of building a library in other ways: the size waterfall, leave-one-out, suggestions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from minbuild.analysis.whatif.ablation import Ablation, waterfall
from minbuild.analysis.whatif.leave_one_out import LeaveOneOut
from minbuild.analysis.whatif.suggestions import SuggestionBuilds, SuggestionPlanner
from minbuild.codegen.library_builder import LibraryBuilder, TrimmedAndFull
from minbuild.ir.size_report import Bar, Suggestion
from minbuild.options.graph_selection import EVERY
from minbuild.planning.compile import CompiledModel
from minbuild.planning.kernel_selection import ExtraRequirements
from minbuild.planning.library_contents import full_contents
from minbuild.toolchain import build_all


@dataclass(frozen=True, slots=True)
class WhatIfResults:
    """Results for one target; empty with --no-analysis."""

    waterfall: tuple[Bar, ...] = ()
    leave_one_out: Mapping[str, int] = field(default_factory=dict)  # kernel file -> bytes
    suggestions: tuple[Suggestion, ...] = ()


def run_what_if(
    bench: LibraryBuilder,
    pairs: Sequence[TrimmedAndFull],
    models: Sequence[CompiledModel],
    extra: ExtraRequirements,
    checks_loss: bool,
) -> list[WhatIfResults]:
    """All of them, for the target of each pair: every library that it takes is built side by side with the others, then
    looked at. Raises ToolchainFailed."""
    contents, registry, toolchain = bench.contents, bench.registry, bench.toolchain
    bench.stage("Planning what else could be smaller (--no-analysis leaves this and what follows out)")
    build_options = toolchain.build_options
    advisor = SuggestionPlanner(tuple(models), contents, extra, checks_loss, build_options)
    candidates = advisor.candidates()
    unbounded = contents if build_options.graphs == EVERY else advisor.with_all_graphs()
    full = full_contents(registry, contents.components, contents.wide)
    falls = [Ablation(contents, unbounded, full, registry, p.target, toolchain) for p in pairs]
    removals = [LeaveOneOut(contents, registry, p.target, toolchain) for p in pairs]
    trials = [SuggestionBuilds(advisor, candidates, p.target, toolchain) for p in pairs]
    orders = [
        *(order for fall in falls for order in fall.orders()),
        *(order for removal in removals for order in removal.orders()),
        *(order for trial in trials for order in trial.orders()),
    ]
    bench.stage("Measuring the size waterfall, leave-one-out, and suggestions")
    build_all(orders, progress=bench.detail)
    return [
        WhatIfResults(waterfall(fall), removal.saved(), trial.suggestions())
        for fall, removal, trial in zip(falls, removals, trials, strict=True)
    ]
