"""Gradients against finite differences of the loss, in float64, before hours of training rest on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from minbuild.authoring import in_directory
from minbuild.authoring.recipe import GeneratedArtifacts
from minbuild.errors import VerificationFailed
from minbuild.frontend.artifacts import load_artifacts
from minbuild.ir import ElementType, Graph, Node, TrainingArtifacts
from minbuild.ops import Registry, registry
from minbuild.ops.quantization.dynamic_fake_quant import dynamic_fake_quant
from minbuild.ops.quantization.fake_quant import fake_quant
from minbuild.passes.lowering.lower import lower
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.reference.synthetic_data import index_limits, inputs_of, seeded_batch

# Of central differences, the first that agrees: long steps cross kinks of Relu and see how normalisation bends, short
# ones drown in rounding, and no step agrees with a wrong gradient.
STEPS = (1e-6, 1e-7, 1e-8)
TOLERANCE = 1e-4  # of the derivative
BATCH = 4  # free dimensions: normalisation over fewer samples is hardly smooth
HUGE, MASKED = 1e30, 1e4  # what is beyond the first is a mask's, and the second stands for it
_SEED = 11
_ALL = "all trained parameters together"


def checked_gradients(made: GeneratedArtifacts, ops_folders: tuple[Path, ...] = ()) -> list[str]:
    """One line per direction that was looked at. Raises VerificationFailed naming every parameter whose gradient is
    not the derivative of the loss, and Unsupported where an operator has no reference."""
    operators = _without_rounding(registry(ops_folders))
    with in_directory(made) as folder:
        return _checked(load_artifacts(folder), operators)


def _checked(artifacts: TrainingArtifacts, operators: Registry) -> list[str]:
    check = _Check(artifacts, operators)
    random = np.random.default_rng(_SEED)
    everywhere = {n: random.standard_normal(p.shape) for n, p in check.start.items()}
    found, expected = check.derivatives(everywhere)
    lines = [_line(_ALL, found, expected)]
    if _agree(found, expected):
        return lines
    wrong = []
    for name, direction in everywhere.items():
        found, expected = check.derivatives({name: direction})
        if not _agree(found, expected):
            wrong.append(_line(name, found, expected))
    raise VerificationFailed(
        "These gradients are not the derivative of the loss:\n" + "\n".join(wrong or lines)
    )


class _Check:
    """The loss on one batch, as a function of the trained parameters."""

    def __init__(self, artifacts: TrainingArtifacts, operators: Registry) -> None:
        self.operators = operators
        program = lower(artifacts, operators, {})
        sizes = dict.fromkeys(program.symbols, BATCH)
        batch = seeded_batch(inputs_of(program), index_limits(program, operators), sizes, _SEED)
        self.batch = [batch[n] for n in program.procedures[0].inputs]
        self.artifacts = replace(artifacts, training=_unrounded(artifacts.training))
        trainer = ReferenceTrainer(self.artifacts, operators)
        self.start = {n: trainer.parameters[n] for n in trainer.trained}
        self.gradients = self._run({})[1]

    def derivatives(self, direction: Mapping[str, np.ndarray]) -> tuple[float, float]:
        """Along `direction`: by the gradients, and by the loss itself."""
        by_gradient = sum(float((self.gradients[n] * d).sum()) for n, d in direction.items())
        by_loss = 0.0
        for step in STEPS:
            ahead, behind = (self._run({n: s * step * d for n, d in direction.items()})[0] for s in (1, -1))
            by_loss = (ahead - behind) / (2 * step)
            if _agree(by_gradient, by_loss):
                break
        return by_gradient, by_loss

    def _run(self, change: Mapping[str, np.ndarray]) -> tuple[float, Mapping[str, np.ndarray]]:
        trainer = ReferenceTrainer(self.artifacts, self.operators)  # running statistics and draws begin anew
        trainer.set_seed(_SEED)
        for name, by in change.items():
            trainer.parameters[name] = trainer.parameters[name] + by
        loss = trainer.train_step(*self.batch)[0]
        return float(np.ravel(loss)[0]), trainer.gradients


def _without_rounding(operators: Registry) -> Registry:
    """The registry with a FakeQuant that cuts off but does not round, and a DynamicFakeQuant that does neither: their
    gradients are those of these functions."""
    smooth = (
        replace(fake_quant, reference=_cut_off),
        replace(dynamic_fake_quant, reference=lambda attributes, x: x),
    )
    return replace(operators, ops={**operators.ops, **{op.key: op for op in smooth}})


def _cut_off(
    attributes: Mapping[str, Any], x: np.ndarray, scale: np.ndarray, zero_point: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The results of FakeQuant, but `x` itself within the range: numbers, and whether each is within it."""
    assert fake_quant.reference is not None
    rounded, inside = fake_quant.reference(attributes, x, scale, zero_point)
    return np.where(inside, x, rounded), inside


def _unrounded(graph: Graph) -> Graph:
    """The graph without what rounds a derivative away, in bodies of loops, too: real numbers are cast to doubles, and
    what masks add is smaller."""
    initializers = {n: _with_smaller_masks(a) for n, a in graph.initializers.items()}
    return replace(graph, nodes=tuple(map(_unrounded_node, graph.nodes)), initializers=initializers)


def _unrounded_node(node: Node) -> Node:
    attributes: dict[str, Any] = {n: _unrounded_attribute(a) for n, a in node.attributes.items()}
    if node.title == "Cast" and ElementType(node.attributes["to"]).is_real:
        attributes["to"] = int(ElementType.DOUBLE)
    return replace(node, attributes=attributes)


def _unrounded_attribute(attribute: Any) -> Any:
    if isinstance(attribute, Graph):
        return _unrounded(attribute)
    return _with_smaller_masks(attribute) if isinstance(attribute, np.ndarray) else attribute


def _with_smaller_masks(array: np.ndarray) -> np.ndarray:
    """The array with MASKED for finite numbers beyond HUGE: added to all of a row, as masks do whose row is empty,
    these leave nothing of the row in any precision."""
    if array.dtype not in (np.float32, np.float64):  # in halves no number is as large
        return array
    huge = np.isfinite(array) & (np.abs(array) > HUGE)
    return np.where(huge, np.copysign(MASKED, array), array).astype(array.dtype) if huge.any() else array


def _agree(found: float, expected: float) -> bool:
    return bool(abs(found - expected) <= TOLERANCE * max(abs(expected), 1e-3))


def _line(name: str, found: float, expected: float) -> str:
    return f"gradient check, {name}: {found:.9g} by the gradients, {expected:.9g} by the loss"
