"""An estimate of a trainer's requirements, before any compiler runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from minbuild.authoring import in_directory
from minbuild.authoring.recipe import GeneratedArtifacts
from minbuild.planning.compile import compile_model
from minbuild.planning.size_limits import saving_note


def estimate(
    made: GeneratedArtifacts, ops_folders: tuple[Path, ...] = (), largest: Mapping[str, int] | None = None
) -> list[str]:
    """Lines on memory and kernels, with free dimensions of the sizes `largest` (by default 32). The code's size is
    measured by `minbuild reduce`. `made` are generated artifacts, `ops_folders` hold operators of the user. Raises
    BadInput and Unsupported."""
    with in_directory(made) as folder:
        model = compile_model(folder, {}, largest or {}, ops_folders)
    plan = model.plan
    at = ", ".join(f"{symbol} {size}" for symbol, size in model.largest.items())
    lines = [
        f"memory for parameters, gradients and optimizer state: {plan.persistent_bytes + plan.rollback_bytes:,} bytes",
        f"  of these, trained parameters: {plan.trainable_bytes:,} bytes, {plan.stored_moments} moment(s) of each",
    ]
    lines += [
        f"memory for temporaries of {a.graph}{f' at {at}' if at else ''}: {a.peak:,} bytes"
        for a in model.arenas
    ]
    lines += [
        f"plan: {len(model.plan_bytes):,} bytes; checkpoint: {len(model.initial_checkpoint):,} bytes",
        f"kernels: {len(plan.kernels)} of {len(model.registry.all_kernels())}",
    ]
    return [*lines, *filter(None, (saving_note(plan),))]
