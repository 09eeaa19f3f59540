"""Slices of a batch: the graph that computes one slice, and the sizes of slices that a budget of RAM may choose from.

The loss of a batch must be the mean or the sum of the losses of its slices. A mean over labels that have weights, or
some of them ignored, is made one: each slice adds up the losses of its labels, and multiplies by what the labels
of the whole batch say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from minbuild.errors import BadInput, Unsupported
from minbuild.ir import (
    Graph,
    Procedure,
    Program,
    TrainingArtifacts,
)
from minbuild.ir.dims import Dim, Poly, symbol, symbols_in
from minbuild.ops import Registry
from minbuild.passes.lowering.lower import lower
from minbuild.passes.rewrite.micro_batches import MEAN, LabelShare, MicroBatches
from minbuild.planning.label_losses import classes_of, index_ranges, with_inputs, with_shares
from minbuild.planning.slice_check import slice_outputs
from minbuild.reference.interpreter import ReferenceTrainer

_ACCUMULATOR = "com.microsoft:InPlaceAccumulatorV2"


@dataclass(frozen=True, slots=True)
class SlicedStep:
    """A program some of whose procedures compute `size` samples, and their way to the whole batch, by name."""

    size: int
    program: Program  # as lowered
    micro: Mapping[str, MicroBatches]

    def looped(self, program: Program) -> Program:
        """`program`, whose calls are final but for loops, with loops over all slices."""
        procedures = (self.micro[p.name].looped(p) if p.name in self.micro else p for p in program.procedures)
        return replace(program, procedures=tuple(procedures))


@dataclass(frozen=True, slots=True)
class SlicedGraph:
    """The graph of a slice; `outputs` and `shares` are as in `MicroBatches`."""

    graph: Graph
    outputs: tuple[str, ...]
    shares: tuple[LabelShare, ...]

    @property
    def seed(self) -> str:
        """The initial gradient, that of the loss; no graph without gradients has it."""
        name = f"{self.graph.outputs[0]}_grad"
        return name if name in self.graph.initializers and self.outputs[0] == MEAN else ""

    def of(self, rounds: Dim) -> Graph:
        """The graph for `rounds` slices: the initial gradient is 1 divided by them."""
        graph = with_inputs(self.graph, {s.name: np.zeros((), np.float32) for s in self.shares})
        if not self.seed:
            return graph
        first = graph.initializers[self.seed]
        if not isinstance(rounds, int):
            return with_inputs(graph, {self.seed: first})
        return replace(
            graph, initializers={**graph.initializers, self.seed: first / first.dtype.type(rounds)}
        )


@dataclass(frozen=True, slots=True)
class BatchSlices:
    """The training step of `artifacts`, lowered as `program`, in slices. `batch` names the dimension that counts
    samples, `count` is its size, `fixed` are those of all dimensions that have one; `free` is the program with a free
    number of samples."""

    artifacts: TrainingArtifacts
    program: Program
    registry: Registry
    fixed: Mapping[str, int]
    batch: str
    count: Dim
    free: Program
    train: SlicedGraph

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples that a slice may have, the most first: of a free number of samples, slices have one each."""
        if not isinstance(self.count, int):
            return (1,)
        return tuple(n for n in range(self.count // 2, 0, -1) if self.count % n == 0)

    def step(self, size: int, evaluation: SlicedGraph | None = None) -> SlicedStep:
        """The training step with slices of `size` samples, and that of `evaluation` if given. Raises Unsupported."""
        rounds = self.count // size if isinstance(self.count, int) else self.count
        artifacts = replace(self.artifacts, training=self.train.of(rounds))
        sliced = {"train": self.train}
        if evaluation is not None:
            artifacts, sliced = (
                replace(artifacts, evaluation=evaluation.of(rounds)),
                {**sliced, "eval": evaluation},
            )
        lowered = lower(artifacts, self.registry, {**self.fixed, self.batch: size})
        own = {p.name: p for p in lowered.procedures if p.name in sliced}
        micro = {
            p.name: _micro_batches(p, own[p.name], sliced[p.name], rounds, self.registry)
            for p in self.program.procedures
            if p.name in sliced
        }
        procedures = tuple(own.get(p.name, p) for p in self.program.procedures)
        return SlicedStep(size, replace(self.program, procedures=procedures), micro)

    @property
    def evaluation(self) -> SlicedGraph | None:
        """The evaluation graph in slices; None where there is none, or samples depend on each other in it."""
        graph = self.artifacts.evaluation
        if graph is None or all(p.name != "eval" for p in self.program.procedures):
            return None
        try:
            return _sliced_graph(self.artifacts, graph, "eval", self.free, self.registry, batch=self.batch)
        except Unsupported:
            return None


def _micro_batches(
    whole: Procedure, one: Procedure, sliced: SlicedGraph, rounds: Dim, registry: Registry
) -> MicroBatches:
    for name in whole.inputs:
        _check_rows(whole, one, name, rounds)
    return MicroBatches(
        whole,
        rounds=rounds,
        outputs=sliced.outputs,
        seed="" if isinstance(rounds, int) else sliced.seed,
        shares=tuple(replace(s, classes=classes_of(one, s)) for s in sliced.shares),
        ranges=tuple(index_ranges(one, registry)),
    )


def batch_slices(
    artifacts: TrainingArtifacts, program: Program, registry: Registry, fixed: Mapping[str, int]
) -> BatchSlices:
    """The slices of the training step of `artifacts`, lowered as `program` with the operators of `registry` and the
    sizes that are `fixed`. Raises Unsupported where samples depend on each other, naming the operator."""
    graph = artifacts.training
    batch = _batch_of(artifacts)
    if fixed.get(batch) == 1:
        raise Unsupported(["it has one sample"])
    free = lower(artifacts, registry, {name: size for name, size in fixed.items() if name != batch})
    if not any(node.title == _ACCUMULATOR for node in graph.nodes):
        raise Unsupported(["the training graph updates parameters itself, and slices would see updated ones"])
    seed = f"{graph.outputs[0]}_grad"
    if seed not in graph.initializers or not np.all(graph.initializers[seed] == 1):
        raise Unsupported([f"{graph.source}: it has no initial gradient '{seed}' of 1"])
    train = _sliced_graph(artifacts, graph, "train", free, registry, batch=batch)
    count = fixed.get(batch, symbol(batch))
    return BatchSlices(
        artifacts,
        program=program,
        registry=registry,
        fixed=fixed,
        batch=batch,
        count=count,
        free=free,
        train=train,
    )


def _sliced_graph(
    artifacts: TrainingArtifacts, graph: Graph, name: str, free: Program, registry: Registry, batch: str
) -> SlicedGraph:
    """The graph of a slice for `graph`, which is procedure `name` of the program `free`. Raises Unsupported."""
    whole = next(p for p in free.procedures if p.name == name)
    sliced, shares = with_shares(graph, whole.inputs)
    trainer = _trainer(artifacts, registry)
    return SlicedGraph(
        sliced,
        slice_outputs(trainer, (graph, sliced), shares, whole, free, registry=registry, batch=batch),
        shares,
    )


def _trainer(artifacts: TrainingArtifacts, registry: Registry) -> ReferenceTrainer:
    try:
        return ReferenceTrainer(artifacts, registry)
    except BadInput as error:
        raise Unsupported([str(error)]) from error


def _batch_of(artifacts: TrainingArtifacts) -> str:
    """The dimension that counts samples: the first one of the first input."""
    names = {p.name for p in artifacts.checkpoint.parameters}
    inputs = [t for n, t in artifacts.training.inputs.items() if n not in names and t.shape]
    first = inputs[0].shape[0] if inputs and inputs[0].shape else 1
    if isinstance(first, Poly) and len(symbols_in(first)) == 1:
        (name,) = symbols_in(first)
        if first == symbol(name):
            return name
    raise Unsupported(
        [f"{artifacts.training.source}: its first input has a fixed number of samples, {first}"]
    )


def _check_rows(whole: Procedure, one: Procedure, name: str, rounds: Dim) -> None:
    """Raises Unsupported unless slices of an input lie one behind the other."""
    all_of, part = whole.values[name].type.shape or (), one.values[name].type.shape or ()
    if all_of == part:
        return
    if all_of[1:] != part[1:] or part[0] * rounds != all_of[0]:
        shape = ", ".join(map(str, all_of))
        raise Unsupported([f"{whole.source}: samples of input '{name}' [{shape}] do not follow each other"])
