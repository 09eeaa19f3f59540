"""Batch independence: whether the loss of a batch is the mean, or the sum, of the losses of its samples.

The forward pass is computed in double precision for a batch and for each of its samples by itself. Every value is rows,
one or several a sample, one after the other or in turns, or the mean or the sum of those of the samples; the first node
whose result is none of these mixes samples. Values that are means are only followed through nodes that are linear in
them, as numbers agree by chance elsewhere: a loss of max(0, mean) is a mean while it is above 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from minbuild.errors import Unsupported
from minbuild.ir import Graph, Node
from minbuild.passes.analysis.effects import updated_inputs
from minbuild.passes.rewrite.micro_batches import MEAN, ROWS, SAME, SUM
from minbuild.planning.label_losses import constants_of
from minbuild.reference.interpreter import ReferenceTrainer

# Rows of which every so many are of one sample, such as steps by samples as one axis.
INTERLEAVED = "interleaved"
SAMPLES = 3  # tells a mean from a sum, and both from the first and the last
_SIZE = "size"  # depends on the number of samples alone
_RELATIVE = 1e-9  # in double precision
_RANDOM = (":Dropout",)  # with numbers from an operator that it is decomposed to
_SHAPE_OPERATORS = ("Shape", "Size")
# Nodes that are linear in a mean: the inputs that may be one. Others must not depend on the batch.
_LINEAR: Mapping[str, tuple[int, ...] | None] = {
    **dict.fromkeys(("Add", "Sub", "Sum", "Mean"), None),  # any
    **dict.fromkeys(("Identity", "Neg", "Cast", "ReduceSum", "ReduceMean", "Div", "Reshape"), (0,)),
    **dict.fromkeys(("Squeeze", "Unsqueeze", "Flatten"), (0,)),
    "Mul": None,
}
_PRODUCTS = ("Mul",)  # one factor at most
Tensors = Mapping[str, np.ndarray]


class Mixed(Unsupported):
    """A node mixes samples; the text names it."""


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """The nodes of a graph that its outputs depend on, their operators, and the names of losses that are means over
    weighted labels: slices have means of their own, and get those of the batch by a factor."""

    graph: Graph
    trainer: ReferenceTrainer
    weighted: frozenset[str]

    def kinds(
        self, inputs: Mapping[str, str], whole: Sequence[np.ndarray], slices: Sequence[Sequence[np.ndarray]]
    ) -> dict[str, str]:
        """The way in which samples make each value: ROWS, INTERLEAVED, MEAN, SUM or SAME. `inputs` are the kinds of the
        graph's inputs, `whole` the arrays of a batch and `slices` those of its samples. Raises Mixed."""
        constants = constants_of(self.graph)
        for node in self.graph.nodes:
            self._check_state(node, constants)
        found = dict(inputs)
        batch = self.trainer.values(self.graph, whole)
        parts = [self.trainer.values(self.graph, each) for each in slices]
        read = {name for node in self.graph.nodes for name in node.inputs} | {*self.graph.outputs}
        for node in self.graph.nodes:
            for name in filter(None, node.outputs):
                if name in batch and name in read:  # what only gradients read, their sums show
                    found[name] = self._kind(node, name, found, batch, parts)
        return found

    def _check_state(self, node: Node, constants: Tensors) -> None:
        op = self.trainer.operators.find(node.domain, node.op_type)
        if op is not None and (op.generator is not None or (op.key in _RANDOM and _drops(node, constants))):
            raise self._mixed(node, "draws random numbers, which slices would draw in another order")
        if op is not None and any(n in self.trainer.parameters for n in updated_inputs(op, node.inputs)):
            raise self._mixed(node, "computes statistics over the batch and updates running ones")

    def _kind(
        self, node: Node, name: str, found: Mapping[str, str], batch: Tensors, parts: Sequence[Tensors]
    ) -> str:
        given = {n: found.get(n, SAME) for n in node.inputs if n}
        if name in self.weighted:
            return MEAN
        if {MEAN, SUM} & set(given.values()):
            return self._linear(node, given)
        whole, each = batch[name], [p[name] for p in parts]
        reads_rows = bool({ROWS, INTERLEAVED} & set(given.values())) and node.op_type not in _SHAPE_OPERATORS
        axis = _row_axis(whole, each)
        if axis is not None:
            if _close(whole, np.concatenate(each, axis)):
                return ROWS
            if _close(whole, _interleaved(each, axis)):
                return INTERLEAVED
            if not reads_rows and _SIZE in given.values():
                raise self._mixed(node, "counts through the samples of a batch")
        elif not reads_rows:
            same = all(p.shape == whole.shape and _close(whole, p) for p in each)
            return SAME if same else _SIZE
        elif whole.dtype.kind == "f" and all(p.shape == whole.shape for p in each):
            mean, total = (_close(whole, f(each, axis=0)) for f in (np.mean, np.sum))
            if mean != total:
                return MEAN if mean else SUM
        raise self._mixed(node, "computes a sample from the whole batch")

    def _linear(self, node: Node, given: Mapping[str, str]) -> str:
        """The kind of the result of a node that reads a mean or a sum."""
        kinds = [given.get(n, SAME) for n in node.inputs]
        averaged = [i for i, kind in enumerate(kinds) if kind in (MEAN, SUM)]
        places = _LINEAR.get(node.op_type, ())
        allowed = node.domain == "" and (places is None or set(averaged) <= set(places))
        others = {kind for kind in kinds if kind not in (MEAN, SUM)}
        kind = kinds[averaged[0]]
        summed = any(kinds[i] != kind for i in averaged) or (
            kind == SUM and len(averaged) < len(kinds) and node.op_type in ("Add", "Sub", "Sum", "Mean")
        )
        many = node.op_type in _PRODUCTS and len(averaged) > 1
        if node.op_type not in _LINEAR or not allowed or others - {SAME} or summed or many:
            raise self._mixed(node, "is not linear in a value that is computed over the whole batch")
        return kind

    def _mixed(self, node: Node, why: str) -> Mixed:
        return Mixed([f"node '{node.name}' ({node.title}) {why}"])


def _drops(node: Node, constants: Tensors) -> bool:
    """Nothing is drawn for a ratio that is always 0."""
    ratio = constants.get(node.inputs[1]) if len(node.inputs) > 1 else None
    return ratio is None or bool(np.any(ratio != 0))


def _row_axis(whole: np.ndarray, each: Sequence[np.ndarray]) -> int | None:
    """The axis along which a batch has as many as its samples together, if it is the only one that differs."""
    if any(p.ndim != whole.ndim for p in each):
        return None
    differing = [a for a in range(whole.ndim) if any(p.shape[a] != whole.shape[a] for p in each)]
    if len(differing) != 1 or sum(p.shape[differing[0]] for p in each) != whole.shape[differing[0]]:
        return None
    return differing[0]


def _interleaved(each: Sequence[np.ndarray], axis: int) -> np.ndarray:
    """The first row along `axis` of each sample, the second of each, and so on; empty where counts of rows differ."""
    if len({p.shape for p in each}) > 1:
        return np.empty(0)
    shape = list(each[0].shape)
    shape[axis] *= len(each)
    return np.stack(each, axis + 1).reshape(shape)


def _largest(array: np.ndarray) -> float:
    return float(np.abs(array[np.isfinite(array)]).max(initial=0.0))


def _close(one: np.ndarray, other: np.ndarray, scale: float = 0.0) -> bool:
    """True if both are equal, real numbers but for the rounding of numbers of this `scale`, or of their own."""
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape:
        return False
    if one.dtype.kind != "f":
        return bool(np.array_equal(one, other))
    atol = _RELATIVE * max(scale, _largest(one))
    return bool(np.allclose(one, other, rtol=_RELATIVE, atol=atol, equal_nan=True))


def same_gradients(trainer: ReferenceTrainer, whole: Tensors, slices: Sequence[Tensors]) -> str:
    """The first parameter of `trainer` whose gradient over the batch, in `whole` by name, is not the sum of those in
    `slices`; "" if there is none."""
    largest = max(
        (_largest(whole[name]) for name in trainer.trained), default=0.0
    )  # a gradient may be 0 but for rounding
    for name in trainer.trained:
        if not _close(whole[name], np.asarray(sum(each[name] for each in slices)), largest):
            return name
    return ""


__all__ = ["INTERLEAVED", "MEAN", "ROWS", "SAME", "SAMPLES", "SUM", "ForwardPass", "Mixed", "same_gradients"]
