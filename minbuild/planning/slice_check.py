"""The check that slices of a batch make what the whole makes: by numbers, in double precision on a small batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from minbuild.errors import BadInput, Unsupported
from minbuild.ir import Graph, Procedure, Program
from minbuild.ir.dims import symbols_in
from minbuild.ops import Registry
from minbuild.passes.rewrite.micro_batches import MEAN, ROWS, SAME, SUM, LabelShare
from minbuild.planning.batch_independence import INTERLEAVED, SAMPLES, ForwardPass, same_gradients
from minbuild.planning.label_losses import constants_of, is_weighted
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.reference.synthetic_data import index_limits, inputs_of, seeded_batch, smallest_sizes


def slice_outputs(
    trainer: ReferenceTrainer,
    graphs: tuple[Graph, Graph],
    shares: tuple[LabelShare, ...],
    whole: Procedure,
    free: Program,
    registry: Registry,
    batch: str,
) -> tuple[str, ...]:
    """The way in which slices make each output of the procedure `whole`, in double precision on a small batch, whose
    gradients must be the sum of those of slices. `trainer` has the parameters; `graphs` are those of the batch and of a
    slice, which is multiplied by `shares`; `free` is the program of `whole` with a free dimension `batch`, `registry`
    has the operators. Raises Unsupported."""
    sizes = {s: smallest_sizes(free) for s in free.symbols} | {batch: SAMPLES}
    arrays = seeded_batch(
        inputs_of(replace(free, procedures=(whole,))), index_limits(free, registry), sizes, seed=1
    )
    for share in shares:
        if share.ignored is not None:
            arrays[share.labels].flat[0] = share.ignored
    kinds, parts = {}, []
    for name in whole.inputs:
        sampled = _is_sampled(whole, name, batch, f"input '{name}'")
        kinds[name] = ROWS if sampled else SAME
        parts.append(np.split(arrays[name], SAMPLES) if sampled else [arrays[name]] * SAMPLES)
    given, slices = [arrays[n] for n in whole.inputs], [list(each) for each in zip(*parts, strict=True)]
    forward = _forward(graphs[0], whole.outputs)
    weighted = frozenset(n.outputs[0] for n in forward.nodes if is_weighted(forward, n))
    try:
        found = ForwardPass(forward, trainer, weighted).kinds(kinds, given, slices)
        outputs = tuple(found.get(n, SAME) for n in whole.outputs)
        for name, kind in zip(whole.outputs, outputs, strict=True):
            if kind == ROWS:
                _is_sampled(whole, name, batch, f"output '{name}'")
            elif kind == INTERLEAVED:
                raise _scattered(f"output '{name}'")
            elif kind not in (MEAN, SUM, SAME):
                raise Unsupported([f"output '{name}' counts samples"])
        if whole.name == "train":
            if outputs[0] not in (MEAN, SUM):
                raise Unsupported([f"the loss, '{whole.outputs[0]}', is no mean or sum over samples"])
            _check_gradients(trainer, graphs[1], shares, outputs[0], (whole.inputs, given, slices))
    except BadInput as error:
        raise Unsupported([str(error)]) from error
    return outputs


def _is_sampled(procedure: Procedure, name: str, batch: str, what: str) -> bool:
    """True if the rows of a value count samples. Raises Unsupported where another axis does, naming `what`."""
    shape = procedure.values[name].type.shape or ()
    if any(batch in symbols_in(d) for d in shape[1:]):
        raise _scattered(what)
    return bool(shape) and batch in symbols_in(shape[0])


def _scattered(what: str) -> Unsupported:
    return Unsupported([f"samples of {what} do not follow each other"])


def _check_gradients(
    trainer: ReferenceTrainer,
    sliced: Graph,
    shares: tuple[LabelShare, ...],
    kind: str,
    data: tuple[tuple[str, ...], list[np.ndarray], list[list[np.ndarray]]],
) -> None:
    """Raises Unsupported where the gradients of a batch are not the sum of those of its slices."""
    names, whole, slices = data
    trainer.lazy_reset_grad()
    trainer.train_step(*whole)
    expected = dict(trainer.gradients)
    seed = f"{sliced.outputs[0]}_grad"
    first = sliced.initializers[seed].astype(np.float64) / (SAMPLES if kind == MEAN else 1)
    constants = {**sliced.initializers, seed: first}
    for share in shares:
        constants[share.name] = np.asarray(
            _share(share, trainer, dict(zip(names, whole, strict=True)), sliced)
        )
    graph, found = replace(sliced, initializers=constants), []
    for each in slices:
        trainer.lazy_reset_grad()
        trainer.values(graph, each)
        found.append(dict(trainer.gradients))
    if name := same_gradients(trainer, expected, found):
        raise Unsupported([f"gradients of '{name}' are not the sum of those of slices"])


def _share(
    share: LabelShare, trainer: ReferenceTrainer, inputs: Mapping[str, np.ndarray], graph: Graph
) -> float:
    labels = inputs[share.labels]
    counted = np.ones(labels.shape, bool) if share.ignored is None else labels != share.ignored
    weights = trainer.parameters.get(share.weights, constants_of(graph).get(share.weights))
    of_label = 1.0 if weights is None else weights.astype(np.float64)[np.where(counted, labels, 0)]
    each = np.where(counted, of_label, 0.0)
    return float(SAMPLES / (each.sum() or 1.0))


def _forward(graph: Graph, outputs: Iterable[str]) -> Graph:
    """The nodes that the outputs of the user depend on."""
    needed, kept = set(outputs), []
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            kept.append(node)
            needed.update(node.inputs)
    return replace(graph, nodes=tuple(kept[::-1]), outputs=tuple(outputs))
