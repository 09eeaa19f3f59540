"""A trimmed trainer and one of every type and feature give the same bits where values are zeros of both signs,
which adding or subtracting a product with zero would change: a step that one of them leaves out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trainers
from case_sets import EVAL, GOLDEN, TRAIN, CaseSet, load

from minbuild.authoring.optimizers import OPTIMIZERS, OptimizerOptions, optimizer_graph
from minbuild.frontend.checkpoint import write_checkpoint
from minbuild.ir import Graph, Plan
from minbuild.ops import registry
from minbuild.planning.plan_encoding import encode_plan
from minbuild.training.library import Library, Session, aligned_copy, arena_size

REGISTRY = registry()
SETS = [p.parent.name for p in sorted(GOLDEN.glob("*/meta.json"))]


def with_zeros(array: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Real numbers of which a third are 0.0 and a third -0.0."""
    if array.dtype.kind != "f":
        return array
    return np.choose(
        random.integers(3, size=array.shape), [array, np.zeros_like(array), -np.zeros_like(array)]
    )


def trained(library: Library, plan: Plan, case: CaseSet, blank: bool) -> list[np.ndarray]:
    """Everything that a session gives in a few steps. `blank`: inputs are zero, and so are most gradients."""
    random = np.random.default_rng(5)
    held = case.artifacts.checkpoint
    parameters = tuple(
        replace(p, data=with_zeros(p.data, random)) for p in held.parameters if p.data is not None
    )
    checkpoint = write_checkpoint(replace(held, parameters=parameters))
    data = encode_plan(plan, dict.fromkeys(plan.symbols, 32))
    session = Session(library, data, checkpoint, arena=aligned_copy(b"\xff" * arena_size(library, data)))
    session.learning_rate = 0.125
    found: list[np.ndarray] = []
    for step in range(3):
        batch = [with_zeros(x, random) for x in case.batch(step)]
        if blank:
            batch = [np.zeros_like(x) if x.dtype.kind == "f" else x for x in batch]
        found += [x.copy() for x in session.run(TRAIN, batch)]
        found += [g.copy() for n in session.parameters if (g := session.gradient(n)) is not None]
        session.optimizer_step()
        session.lazy_reset_grad()
        found += [session.parameter(n).copy() for n in session.parameters]
    if case.artifacts.evaluation is not None:
        found += session.run(EVAL, case.eval_batch())
    return found


def compared(case: CaseSet, optimizer: Graph | None, folder: Path) -> None:
    plan = trainers.plan_of(replace(case.artifacts, optimizer=optimizer), REGISTRY)
    contents = trainers.contents_of([plan])
    full = trainers.everything_of({k.stem for k in contents.kernels}, REGISTRY)
    libraries = [trainers.library_of(each, REGISTRY, folder) for each in (contents, full)]
    for blank in (False, True):
        ours, theirs = (trained(library, plan, case, blank) for library in libraries)
        for a, b in zip(ours, theirs, strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("name", SETS)
def test_signs_of_zeros_are_the_same(name: str, tmp_path: Path) -> None:
    case = load(GOLDEN / name)
    compared(case, case.artifacts.optimizer, tmp_path)


OF_OPTIMIZERS = [(name, decay, 0) for name in OPTIMIZERS for decay in (None, 0.25)]
OF_OPTIMIZERS = [c for c in OF_OPTIMIZERS if c != ("sgd", 0.25, 0)] + [("adamw", None, 1), ("adamw", 0.25, 1)]


@pytest.mark.parametrize(("name", "decay", "mode"), OF_OPTIMIZERS)
def test_optimizers_keep_the_signs_of_zeros(
    name: str, decay: float | None, mode: int, tmp_path: Path
) -> None:
    """A parameter of -0.0 whose gradient is zero: without decay it stays as it is."""
    case = load(GOLDEN / "dense")
    graph = optimizer_graph(name, OptimizerOptions(weight_decay=decay))
    nodes = graph.nodes
    if name == "adamw":
        nodes = tuple(replace(n, attributes={**n.attributes, "adam_mode": mode}) for n in nodes)
    compared(case, replace(graph, nodes=nodes), tmp_path)
