"""Gradient rules applied from results back to what they depend on; contributions to one gradient are summed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count

import numpy as np

from minbuild.authoring.autodiff.tape import Application, Tape
from minbuild.errors import Unsupported
from minbuild.ir import Node, TensorType
from minbuild.ops.core.definition import UnsupportedUse
from minbuild.ops.core.graph_builder import GradientBuilder, named
from minbuild.passes.lowering.loop_call import LOOP

GRADIENT = "_grad"


@dataclass(frozen=True)
class Differentiated:
    """A graph with its gradients. `nodes` are the forward ones, as training runs them, then from `turn` on the
    backward ones; `gradients` holds the name of the gradient of each value that was asked for and has one. `seed` is
    that of the loss, an initializer."""

    nodes: tuple[Node, ...]
    turn: int
    gradients: Mapping[str, str]
    initializers: Mapping[str, np.ndarray]
    types: Mapping[str, TensorType]
    seed: str = ""


class Sweep:
    """One pass from the loss, or from several values whose gradients are given, back."""

    def __init__(
        self,
        tape: Tape,
        starts: tuple[str, ...],
        wrt: tuple[str, ...],
        stops: frozenset[str],
        loop_gradient: Callable[[Sweep, Application], Node] | None = None,
    ) -> None:
        """From the values `starts` of `tape` back to the values `wrt`; `stops` count as constants. `loop_gradient` adds
        the backward nodes of a Scan; the bodies of loops have none."""
        self.tape, self.starts, self.wrt, self.stops = tape, starts, wrt, stops
        self.loop_gradient = loop_gradient
        self.path = self._path()
        self.uses: dict[str, int] = defaultdict(int)  # how many contributions a gradient gets
        for application in tape.applications:
            for name in application.node.inputs:
                self.uses[name] += name in self.path and self._leads_on(application)
        self.contributions: dict[str, list[str]] = defaultdict(list)
        self.made: dict[str, int] = defaultdict(int)  # contributions so far, those that are summed among them
        self.forward: dict[int, Node] = {}
        self.backward: list[Node] = []
        self.taken = set(tape.lowering.values)  # a graph that holds gradients already has names like ours
        self.titles = {part for name in self.taken for part in _folders(name)}

    def _leads_on(self, application: Application) -> bool:
        outputs = application.node.outputs
        return any(n in self.path and i in application.op.differentiable for i, n in enumerate(outputs) if n)

    def _path(self) -> frozenset[str]:
        """Values on paths to the loss: each depends on one of `wrt`, and the loss depends on it."""
        depends = set(self.wrt)
        for application in self.tape.applications:
            if depends.isdisjoint(application.node.inputs):
                continue
            for i, name in enumerate(application.node.outputs):
                leads = i in application.op.differentiable and name not in self.stops
                if name and leads and self.tape.type_of(name).element.is_real:
                    depends.add(name)
        below = set(self.starts)
        for application in reversed(self.tape.applications):
            if not below.isdisjoint(application.node.outputs):
                below.update(application.node.inputs)
        return frozenset((depends & below) - {""})

    def run(self) -> Differentiated:
        (name,) = self.starts
        seed, loss = self.unused(f"{name}{GRADIENT}"), self.tape.type_of(name)
        gradients = self.flow([(name, seed)])
        forward = self.forward_nodes()
        ones = np.ones(_static(loss), loss.element.dtype)
        types = {n: v.type for n, v in self.tape.lowering.values.items()}
        backward = nodes_for(self.backward, gradients.values())
        return Differentiated(
            (*forward, *backward), len(forward), gradients, initializers={seed: ones}, types=types, seed=seed
        )

    def forward_nodes(self) -> list[Node]:
        """The forward nodes as training runs them."""
        return [self.forward.get(i, a.node) for i, a in enumerate(self.tape.applications)]

    def flow(self, seeds: Iterable[tuple[str, str]]) -> dict[str, str]:
        """Writes the backward nodes. The gradients of `wrt`, as far as they exist, given the `seeds` of some values."""
        for name, seed in seeds:
            self.contributions[name].append(seed)
        findings: list[str] = []
        for index in reversed(range(len(self.tape.applications))):
            application = self.tape.applications[index]
            if self._leads_on(application) and not self.path.isdisjoint(application.node.inputs):
                try:
                    self.forward[index] = self._apply(application)
                except UnsupportedUse as error:
                    findings.append(self._finding(application, str(error)))
        if findings:
            raise Unsupported(list(reversed(findings)))
        return {name: self.total(name) for name in self.wrt if self.contributions.get(name)}

    def _finding(self, application: Application, why: str) -> str:
        node = application.node
        return f"{self.tape.graph.source}: node '{node.name}' ({node.title}, opset {node.version}): {why}."

    def _apply(self, application: Application) -> Node:
        """Adds the backward nodes of an application; the node as training runs it."""
        node, op = application.node, application.op
        if op.key == LOOP and self.loop_gradient is not None:
            return self.loop_gradient(self, application)
        if op.gradient is None:
            raise UnsupportedUse(
                "the operator has no gradient rule, and a parameter's gradient would flow through it"
            )
        dy = [
            self.total(n) if n in self.path and i in op.differentiable else ""
            for i, n in enumerate(node.outputs)
        ]
        if not any(dy):
            return node
        requires_grad = [i for i, n in enumerate(node.inputs) if n in self.path]
        title = self.title(f"{node.name}_Grad")
        rule = GradientBuilder(
            application.ctx,
            x=node.inputs,
            y=node.outputs,
            dy=dy,
            requires_grad=requires_grad,
            prefix=title,
            opset=self.tape.opset,
        )
        results = rule.write(op.gradient)
        names = [self.name(n) if result else "" for n, result in zip(node.inputs, results, strict=True)]
        self.backward += named(rule, results, names)
        for n in dict.fromkeys(node.inputs):
            self.merge(n)
        return _as_trained(node, rule)

    def title(self, name: str) -> str:
        """A name that no other rule's nodes begin with: nodes of a model may share one."""
        title = _unused(name, self.titles)
        self.titles.add(title)
        return title

    def unused(self, name: str) -> str:
        """A name for a value that no other value has."""
        found = _unused(name, self.taken)
        self.taken.add(found)
        return found

    def name(self, value: str) -> str:
        """The name of the next contribution to the gradient of a value."""
        many = self.uses[value] > 1
        made = self.unused(f"{value}{GRADIENT}" + (f"_{self.made[value]}" if many else ""))
        self.made[value] += 1
        self.contributions[value].append(made)
        return made

    def merge(self, value: str) -> None:
        """Adds up the contributions to the gradient of a value so far: one is kept while more of them are made."""
        parts = self.contributions.get(value, [])
        if len(parts) > 1 and self.made[value] < self.uses[value]:
            self.contributions[value] = [self.sum(parts, f"{value}{GRADIENT}_sum")]

    def sum(self, parts: Iterable[str], name: str) -> str:
        """The sum of values, under this name or the next one that is free."""
        total = self.unused(name)
        title = f"AccumulateGrad_{total}"
        node = Node("Sum", "", self.tape.opset, name=title, inputs=tuple(parts), outputs=(total,))
        self.backward.append(node)
        return total

    def total(self, value: str) -> str:
        """The gradient of a value, its contributions added up; "" where there are none."""
        parts = self.contributions.get(value, [])
        if len(parts) > 1:
            self.contributions[value] = parts = [self.sum(parts, f"{value}{GRADIENT}")]
        return parts[0] if parts else ""


def _folders(name: str) -> Iterator[str]:
    """The folders in a name: everything before each of its slashes."""
    parts = name.split("/")
    return ("/".join(parts[:i]) for i in range(1, len(parts)))


def _unused(name: str, taken: Container[str]) -> str:
    """The name, or the first with a number behind it that is not taken."""
    return next(n for n in chain((name,), (f"{name}_{i}" for i in count(1))) if n not in taken)


def nodes_for(nodes: Sequence[Node], results: Iterable[str]) -> tuple[Node, ...]:
    """Only the nodes that lead to `results`."""
    needed, kept = set(results), []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(node.inputs)
            kept.append(node)
    return tuple(reversed(kept))


def _static(tensor: TensorType) -> tuple[int, ...]:
    shape = tuple(d for d in tensor.shape or () if isinstance(d, int))
    if len(shape) != len(tensor.shape or ()) or int(np.prod(shape)) != 1:
        raise Unsupported(
            [
                f"the loss has shape {list(tensor.shape or ())}; it must be a single number. Take its mean or sum"
            ]
        )
    return shape


def _as_trained(node: Node, rule: GradientBuilder) -> Node:
    outputs = list(node.outputs)
    for i, name in sorted(rule.saved.items()):
        outputs += [""] * (i + 1 - len(outputs))
        outputs[i] = name
    domain, op_type = rule.forward or (node.domain, node.op_type)
    version = node.version if domain == node.domain else 1
    attributes = {**node.attributes, **rule.besides}
    return Node(
        op_type,
        domain,
        version,
        name=node.name,
        inputs=node.inputs,
        outputs=tuple(outputs),
        attributes=attributes,
    )
