"""Artifacts that stand in no folder, compiled: shared by tests of plans."""

from __future__ import annotations

from dataclasses import replace

from minbuild.frontend.checkpoint import write_checkpoint
from minbuild.ir import TrainingArtifacts
from minbuild.ops import Registry
from minbuild.planning.compile import compile_artifacts
from minbuild.planning.compiled_model import CompiledModel


def compiled(artifacts: TrainingArtifacts, registry: Registry, **largest: int) -> CompiledModel:
    """Plans of `artifacts`, which have no files, with the `largest` sizes of free dimensions."""
    artifacts = replace(artifacts, digests={artifacts.training.source: "0" * 64})
    return compile_artifacts(
        artifacts, write_checkpoint(artifacts.checkpoint), registry, fixed={}, largest=largest
    )


def peak(model: CompiledModel) -> int:
    """Bytes of the largest arena."""
    return max(arena.peak for arena in model.arenas)
