"""Which of a model's graphs a trainer has: it may only evaluate, or leave evaluation or updates to others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from minbuild.errors import BadInput
from minbuild.ir import Program, TrainingArtifacts

TRAIN, EVALUATE, OPTIMIZE = "train", "evaluate", "optimize"
GRAPHS: Mapping[str, str] = {
    TRAIN: "losses and gradients",
    EVALUATE: "evaluation",
    OPTIMIZE: "updates of parameters from gradients",
}  # what each is for
EVERY = tuple(GRAPHS)
_PROCEDURES = {"train": TRAIN, "eval": EVALUATE, "optimize": OPTIMIZE, "initialize": TRAIN}


def updates(graphs: Sequence[str]) -> bool:
    """True if parameters can change: without gradients and optimizer they are read where the checkpoint is."""
    return TRAIN in graphs or OPTIMIZE in graphs


def select_graphs(artifacts: TrainingArtifacts, graphs: Sequence[str]) -> TrainingArtifacts:
    """The artifacts without what other graphs than these need: their nodes, and without updates the state of the
    optimizer. The training graph stays as a list of parameters. Raises BadInput where nothing would be left."""
    found = {TRAIN: artifacts.training, EVALUATE: artifacts.evaluation, OPTIMIZE: artifacts.optimizer}
    if not any(found[name] for name in graphs):
        there = ", ".join(name for name, graph in found.items() if graph)
        raise BadInput(f"--graphs {','.join(graphs)}: the artifacts have {there}. Choose from these.")
    trains, checkpoint = TRAIN in graphs, artifacts.checkpoint
    if not updates(graphs):
        frozen = tuple(replace(p, trainable=False) for p in checkpoint.parameters)
        checkpoint = replace(checkpoint, parameters=frozen, groups=())
    empty = replace(artifacts.training, nodes=(), outputs=(), initializers={})
    return replace(
        artifacts,
        training=artifacts.training if trains else empty,
        evaluation=artifacts.evaluation if EVALUATE in graphs else None,
        optimizer=artifacts.optimizer if OPTIMIZE in graphs else None,
        initialization=artifacts.initialization if trains else None,
        checkpoint=checkpoint,
    )


def select_procedures(program: Program, graphs: Sequence[str]) -> Program:
    """The program with the procedures of these graphs only."""
    procedures = tuple(p for p in program.procedures if _PROCEDURES[p.name] in graphs)
    return replace(program, procedures=procedures)
