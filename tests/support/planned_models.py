"""Artifacts that stand in no folder, compiled: shared by tests of plans."""

from __future__ import annotations

from dataclasses import replace

from minbuild.errors import OverBudget
from minbuild.frontend.checkpoint import write_checkpoint
from minbuild.ir import TrainingArtifacts
from minbuild.ops import Registry
from minbuild.options.plan_options import PlanOptions
from minbuild.planning.compile import compile_artifacts
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.ram_budget import ram_of


def compiled(
    artifacts: TrainingArtifacts,
    registry: Registry,
    options: PlanOptions = PlanOptions(),  # noqa: B008 (frozen)
    **largest: int,
) -> CompiledModel:
    """Plans of `artifacts`, which have no files, with the `largest` sizes of free dimensions."""
    artifacts = replace(artifacts, digests={artifacts.training.source: "0" * 64})
    checkpoint = write_checkpoint(artifacts.checkpoint)
    return compile_artifacts(artifacts, checkpoint, registry, fixed={}, largest=largest, options=options)


def within(
    part: float, artifacts: TrainingArtifacts, registry: Registry, options: PlanOptions, **largest: int
) -> CompiledModel | None:
    """`compiled`, for a budget of a `part` of the RAM that it takes without one; None where nothing fits."""
    taken = ram_of(compiled(artifacts, registry, options, **largest).plan, largest)
    try:
        return compiled(artifacts, registry, replace(options, ram=int(part * taken)), **largest)
    except OverBudget:
        return None


def peak(model: CompiledModel) -> int:
    """Bytes of the largest arena."""
    return max(arena.peak for arena in model.arenas)
