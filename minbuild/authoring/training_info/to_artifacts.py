"""A model that carries its own training becomes a Bundle, like artifacts.

The training step is the inference graph with the algorithm behind it, once for each TrainingInfo in order, Gradient
nodes expanded. Its update bindings change parameters and state in place at its end, so that there is no optimizer
graph. Evaluation is the inference graph; initialization is a graph of its own that resets variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np

from minbuild.authoring.artifact_graphs import inferring, type_of
from minbuild.authoring.autodiff.gradient_operator import (
    is_gradient,
    names_in_gradients,
    without_gradient_nodes,
)
from minbuild.authoring.autodiff.topological_order import leading_to
from minbuild.authoring.training_info.graph_call import without_graph_calls
from minbuild.authoring.training_info.running_statistics import with_bound_statistics
from minbuild.errors import Unsupported
from minbuild.frontend.onnx.subgraphs import names_read, renamed
from minbuild.frontend.onnx.training_info import TrainingEntry, TrainingModel
from minbuild.ir import Checkpoint, Graph, Node, Parameter, TensorType, TrainingArtifacts
from minbuild.ops import Registry

OWN = "minbuild"
ASSIGN, COPY = "Assign", "Copy"


def artifacts_of_training_info(
    model: TrainingModel, digests: Mapping[str, str], operators: Registry
) -> TrainingArtifacts:
    """The artifacts of a trainer that runs `model`. Every variable (what a binding changes) is in the checkpoint,
    everything else is constant. `digests` are of the model's files by name; `operators` have the shape rules. Raises
    BadInput and Unsupported with all findings."""
    merged = _Merged(model, operators)
    findings: list[str] = []
    for number, entry in enumerate(model.entries):
        try:
            merged.append(entry, number)
        except Unsupported as error:
            findings += error.findings
    if findings:
        raise Unsupported(findings)
    evaluation, notes = _evaluation(model, merged.variables)
    return TrainingArtifacts(
        merged.graph(),
        evaluation=evaluation,
        optimizer=None,
        checkpoint=Checkpoint(tuple(_parameter(n, x) for n, x in merged.variables.items())),
        digests=digests,
        notes=notes,
        initialization=_initialization(model, merged.variables),
    )


def _parameter(name: str, array: np.ndarray) -> Parameter:
    return Parameter(name, type_of(array).element, array.shape, False, array)


@dataclass
class _Merged:
    """The training step while it grows, entry by entry."""

    model: TrainingModel
    operators: Registry
    variables: dict[str, np.ndarray] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    inputs: dict[str, TensorType] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for entry in self.model.entries:
            stored = entry.step.initializers
            bound = dict.fromkeys((*entry.updates, *entry.resets))
            self.variables |= {
                n: np.asarray(stored[n]) for n in bound if n in stored and n not in self.variables
            }
        self.variables = {n: self.variables[n] for n in self.model.variables if n in self.variables}

    def append(self, entry: TrainingEntry, number: int) -> None:
        """One more entry, which sees the updates of those before it."""
        step = without_graph_calls(entry, self.model)
        required = set(step.outputs) | set(entry.updates.values())
        step = replace(step, nodes=leading_to(step.nodes, required | names_in_gradients(step.nodes)))
        returned = _returned(entry, step)
        step = without_gradient_nodes(step, self.variables, self.operators, self.model.opset)
        bound = {*entry.updates, *entry.resets, *self.model.inference.initializers}
        if number:  # inference is what the first entry returns
            returned = [n for n in returned if n in entry.outputs]
        plain = with_bound_statistics(leading_to(step.nodes, required), entry.updates)
        step, new_name = self._unique(replace(step, nodes=plain), number, bound)
        nodes = self._with_own_bytes(step.nodes, returned, new_name)
        values = {v: new_name.get(y, y) for v, y in entry.updates.items()}
        nodes += assignments(values, nodes, self.operators, tuple(self.variables), f"training_info[{number}]")
        self.nodes += nodes
        self._take_inputs(step)
        self.constants |= {n: np.asarray(a) for n, a in step.initializers.items() if n not in self.variables}
        self.outputs += [name for name in (new_name.get(n, n) for n in returned) if name not in self.outputs]

    def _unique(self, step: Graph, number: int, bound: Set[str]) -> tuple[Graph, Mapping[str, str]]:
        """The step with names that no other entry needs, and the changed ones. The names `bound` mean the same in all
        of them; an algorithm's other initializers are its own."""
        taken = {n for node in self.nodes for n in node.outputs} | set(self.constants) | set(self.variables)
        taken |= {n for entry in self.model.entries for n in entry.step.inputs}
        made = {n for node in step.nodes for n in node.outputs if n}
        own = set(step.initializers) - bound
        names = {n: f"{n} ({number + 1})" for n in (made | own) & taken}
        if not names:
            return step, {}
        prefix = f"training_info[{number}]"
        nodes = tuple(renamed(node, lambda n: names.get(n, n), prefix) for node in step.nodes)
        constants = {names.get(n, n): a for n, a in step.initializers.items()}
        return replace(step, nodes=nodes, initializers=constants), names

    def _take_inputs(self, step: Graph) -> None:
        """Inputs of the same name in several algorithms are one. Raises Unsupported where they cannot be."""
        for name, tensor in step.inputs.items():
            there = self.inputs.setdefault(name, tensor)
            if there.element is not tensor.element or len(there.shape or ()) != len(tensor.shape or ()):
                raise Unsupported(
                    [f"{step.source}: algorithms take different inputs under the name '{name}'. Rename one."]
                )

    def _with_own_bytes(
        self, nodes: Sequence[Node], returned: Sequence[str], new_name: Mapping[str, str]
    ) -> list[Node]:
        """Results that are views of variables get bytes of their own: they are what was there before the update."""
        changed = {}
        for name in (new_name.get(n, n) for n in returned):
            if viewed(name, nodes, self.operators) in self.variables:
                changed[name] = f"{name} (view)"
        nodes = [renamed_as(node, changed) for node in nodes] if changed else list(nodes)
        return nodes + [
            Node(COPY, OWN, 1, name=f"copy of {n}", inputs=(view,), outputs=(n,))
            for n, view in changed.items()
        ]

    def graph(self) -> Graph:
        """The whole step. Its inputs are those of inference and of the algorithms, as far as anything reads them."""
        inputs = dict(self.inputs)
        if any(entry.calls_inference for entry in self.model.entries):
            read = {n for node in self.nodes for n in names_read(node)}
            inputs = {n: t for n, t in inputs.items() if n in read}
        types = inputs | {n: type_of(a) for n, a in self.variables.items()}
        source = self.model.inference.source
        return Graph(
            source,
            nodes=tuple(self.nodes),
            inputs=types,
            sequences={},
            outputs=tuple(self.outputs),
            initializers=self.constants,
        )


def renamed_as(node: Node, names: Mapping[str, str]) -> Node:
    """The node with some of the values it reads and makes under other names; its own name stays."""
    return replace(renamed(node, lambda n: names.get(n, n), ""), name=node.name)


def _returned(entry: TrainingEntry, step: Graph) -> list[str]:
    """The values that a step returns: the algorithm's outputs, then those of the inference graph, without what only
    becomes the new value of a variable. The losses that Gradient nodes name stay."""
    made = {n for node in step.nodes for n in node.outputs}
    losses = {node.attributes.get("y") for node in step.nodes if is_gradient(node)}
    bound = set(entry.updates.values()) - losses
    names = [*entry.outputs, *(() if entry.calls_inference else step.outputs)]
    return [n for n in dict.fromkeys(names) if n in made and n not in bound]


def viewed(name: str, nodes: Sequence[Node], operators: Registry) -> str:
    """The value whose bytes `name` may have, when all views are looked through. `nodes` make the values, `operators`
    say which of them are views."""
    makers = {n: node for node in nodes for n in node.outputs}
    while name in makers:
        node = makers[name]
        op = operators.find(node.domain, node.op_type)
        if op is None or not op.is_view:
            return name
        name = node.inputs[0]
    return name


def assignments(
    values: Mapping[str, str],
    nodes: Sequence[Node],
    operators: Registry,
    variables: Sequence[str],
    prefix: str,
) -> list[Node]:
    """Nodes behind which each variable has its new value, all computed from the old ones: what is a variable itself,
    or a view of one, is copied first. `values` are the new values by variable; `nodes` make them, `operators` say
    which of them are views; `variables` are all of the graph's, `prefix` begins the names of copies."""
    copies, changes = [], []
    for variable, value in values.items():
        if viewed(value, nodes, operators) in variables:
            own = f"new value of {variable}"
            copies.append(Node(COPY, OWN, 1, name=own, inputs=(value,), outputs=(own,)))
            value = own
        title = f"{prefix}/update of {variable}"
        changes.append(
            Node(ASSIGN, OWN, 1, name=title, inputs=(variable, value), outputs=(f"{variable} (updated)",))
        )
    return [*copies, *changes]


def _evaluation(
    model: TrainingModel, variables: Mapping[str, np.ndarray]
) -> tuple[Graph | None, tuple[str, ...]]:
    """The inference graph by itself, in inference mode, and what that changed."""
    graph = model.inference
    nodes = tuple(inferring(node) for node in graph.nodes)
    changed = [a.name for a, b in zip(graph.nodes, nodes, strict=True) if a != b]
    made = {n for node in nodes for n in node.outputs}
    outputs = tuple(n for n in graph.outputs if n in made)
    if not outputs:
        return None, ()
    nodes = leading_to(nodes, set(outputs))
    read = {n for node in nodes for n in names_read(node)}
    types = dict(graph.inputs) | {n: type_of(a) for n, a in variables.items() if n in read}
    constants = {n: a for n, a in graph.initializers.items() if n not in types}
    source = f"{graph.source}, inference"
    notes = (f"{source}: evaluation runs {', '.join(changed)} in inference mode.",) if changed else ()
    return Graph(
        source, nodes=nodes, inputs=types, sequences={}, outputs=outputs, initializers=constants
    ), notes


def _initialization(model: TrainingModel, variables: Mapping[str, np.ndarray]) -> Graph | None:
    """All initializations in order; None where there are none."""
    nodes: list[Node] = []
    constants: dict[str, np.ndarray] = {}
    changed: set[str] = set()
    for number, entry in enumerate(model.entries):
        if entry.initialization is None or not entry.resets:
            continue
        prefix = f"training_info[{number}]"
        graph = entry.initialization
        nodes += [renamed(n, lambda name, p=prefix: f"{p}/{name}", prefix) for n in graph.nodes]  # type: ignore[misc]
        constants |= {f"{prefix}/{n}": np.asarray(a) for n, a in graph.initializers.items()}
        for variable, value in entry.resets.items():
            inputs, title = (variable, f"{prefix}/{value}"), f"{prefix}/reset of {variable}"
            nodes.append(Node(ASSIGN, OWN, 1, name=title, inputs=inputs, outputs=(f"{title} (done)",)))
        changed |= set(entry.resets)
    if not nodes:
        return None
    types = {n: type_of(a) for n, a in variables.items() if n in changed}
    return Graph(
        f"{model.inference.source}, initialization",
        nodes=tuple(nodes),
        inputs=types,
        sequences={},
        outputs=(),
        initializers=constants,
    )
