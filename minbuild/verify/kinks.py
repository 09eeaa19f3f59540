"""Where an activation has a kink, rounding may decide: a value within rounding of the edge passes here and not
there, and the gradients before it change by more than rounding. That is no excuse unless it is shown: which
element is how near to its edge, and that its falling on the other side explains what gradients are off by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minbuild.errors import MinbuildError
from minbuild.ir import Checkpoint, Graph, Node, TrainingArtifacts
from minbuild.ops import Registry
from minbuild.reference.interpreter import ReferenceTrainer

_EPSILON = 2.0**-23
_NEAR = (
    64.0  # units in the last place of the largest element: what rounding may move a value by on its way here
)
_MOST = 16  # candidates, the nearest first: each takes a run in double precision

Edges = Callable[[Mapping[str, Any], Sequence[Any]], Sequence[float]]


def _zero(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Sequence[float]:
    return (0.0,)


def _clip(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Sequence[float]:
    given = [np.asarray(x).item() for x in inputs[1:3] if x is not None and np.size(x) == 1]
    return (*given, *(float(attributes[name]) for name in ("min", "max") if name in attributes))


def _hard_sigmoid(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Sequence[float]:
    alpha, beta = attributes.get("alpha", 0.2), attributes.get("beta", 0.5)
    return (-beta / alpha, (1 - beta) / alpha)


# Operators of one input with a kink -> where it is.
_EDGES: Mapping[str, Edges] = {
    "Relu": _zero,
    "LeakyRelu": _zero,
    "PRelu": _zero,
    "Abs": _zero,
    "Clip": _clip,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda attributes, inputs: (-3.0, 3.0),
    "ThresholdedRelu": lambda attributes, inputs: (attributes.get("alpha", 1.0),),
}


@dataclass(frozen=True, slots=True)
class Kink:
    """An element of the input of a node that is within rounding of an edge, by `distance`; `unit` is the last
    place of the largest element beside it."""

    node: str
    value: str
    element: int
    edge: float
    distance: float
    unit: float

    def __str__(self) -> str:
        return (
            f"element {self.element} of '{self.value}', input of node '{self.node}', is {self.distance:.2g} from its "
            f"edge at {self.edge:g}, {abs(self.distance) / self.unit:.2g} times the last place"
        )


@dataclass(frozen=True)
class KinkFinder:
    """Looks for kinks in one training step: from a checkpoint, on a batch."""

    artifacts: TrainingArtifacts
    registry: Registry
    checkpoint: Checkpoint
    batch: tuple[np.ndarray, ...]

    def explain(
        self,
        found: Mapping[str, np.ndarray],
        recorded: Mapping[str, np.ndarray],
        units: Mapping[str, float],
        limit: float,
    ) -> tuple[tuple[Kink, ...], dict[str, np.ndarray]] | None:
        """The kinks that explain how `found` gradients differ from `recorded` ones, and those gradients as they
        are with the kinks decided as in the recording; None where none are found, or they leave more than `limit`
        of the `units` that each parameter has."""
        try:
            plain = self.run(())
            base = plain.gradients
        except MinbuildError:  # an operator without a meaning in double precision
            return None
        near = sorted(plain.near, key=lambda kink: abs(kink.distance) / kink.unit)[:_MOST]
        moves = {kink: _minus(self.run((kink,)).gradients, base) for kink in near}
        rest = _minus(recorded, found)
        shown: list[Kink] = []
        while _worst(rest, units) > limit:
            candidates = [
                (_worst(left, units), kink, left)
                for kink in near
                if kink not in shown
                for left in (_minus(rest, moves[kink]), _plus(rest, moves[kink]))
            ]
            best = min(candidates, key=lambda candidate: candidate[0], default=None)
            if best is None or best[0] >= _worst(rest, units):
                return None
            shown.append(best[1])
            rest = best[2]
        return tuple(shown), {name: recorded[name] - left for name, left in rest.items()}

    def run(self, flipped: tuple[Kink, ...]) -> Watched:
        """The step in double precision, with some kinks decided otherwise."""
        trainer = Watched(self.artifacts, self.registry)
        trainer.load(self.checkpoint)
        trainer.flipped, trainer.near = flipped, []
        trainer.train_step(*self.batch)
        return trainer


class Watched(ReferenceTrainer):
    """Notes what is near a kink, and puts what is `flipped` on its other side."""

    flipped: tuple[Kink, ...] = ()
    near: list[Kink]

    def _apply(
        self, graph: Graph, node: Node, values: Any, makers: Mapping[str, Node]
    ) -> tuple[np.ndarray, ...]:
        edges = _EDGES.get(node.op_type) if node.domain == "" else None
        name = node.inputs[0] if node.inputs else ""
        if edges is not None and values[name].dtype == np.float64 and values[name].size:
            inputs = [values[n] if n else None for n in node.inputs]
            for edge in edges(node.attributes, inputs):
                self._note(node, name, values[name], edge)
            for kink in self.flipped:
                if (kink.node, kink.value) == (node.name, name):
                    moved = values[name].copy()
                    away = kink.distance if kink.distance else kink.unit * 2.0**-20
                    moved.reshape(-1)[kink.element] = kink.edge - away
                    values[name] = moved
        return super()._apply(graph, node, values, makers)

    def _note(self, node: Node, name: str, x: np.ndarray, edge: float) -> None:
        distance = (x - edge).reshape(-1)
        unit = _EPSILON * max(float(np.abs(x).max()), abs(edge), 1e-30)
        for element in np.flatnonzero(np.abs(distance) <= _NEAR * unit):
            self.near.append(
                Kink(
                    node.name,
                    value=name,
                    element=int(element),
                    edge=edge,
                    distance=float(distance[element]),
                    unit=unit,
                )
            )


Gradients = Mapping[str, np.ndarray]


def _minus(a: Gradients, b: Gradients) -> dict[str, np.ndarray]:
    return {n: a[n].astype(np.float64).reshape(b[n].shape) - b[n] for n in a if n in b}


def _plus(a: Gradients, b: Gradients) -> dict[str, np.ndarray]:
    return {n: a[n] + b[n] for n in a if n in b}


def _worst(rest: Gradients, units: Mapping[str, float]) -> float:
    """The largest element, in units of each parameter."""
    return max((float(np.abs(r).max(initial=0)) / units[n] for n, r in rest.items()), default=0.0)
