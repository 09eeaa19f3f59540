"""Models that carry their own training: ONNX's `TrainingInfoProto`, which is there since IR version 7.

Each entry holds an algorithm (a step of training: a graph behind the inference graph), an initialization (a graph
without inputs), and for both of them bindings: pairs of an initializer and the output that becomes its new value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx.inliner
from onnx import GraphProto, ModelProto, StringStringEntryProto, helper

from minbuild.errors import BadInput, Unsupported
from minbuild.frontend.onnx.reader import opset_in, parse_model, read_model
from minbuild.ir import Graph

DOMAIN = "ai.onnx.preview.training"
FILE = "training_info.onnx"  # what we call one
GRAPH_CALL = (
    "GraphCall"  # of the drafts of the specification: runs the inference graph inside of an algorithm
)


@dataclass(frozen=True, slots=True)
class TrainingEntry:
    """One TrainingInfoProto. `step` is the inference graph with the algorithm behind it, as the specification joins
    them, `outputs` are the algorithm's own. `updates` and `resets` map variables to the outputs of `step` and of
    `initialization` that are their new values."""

    step: Graph
    outputs: tuple[str, ...]
    updates: Mapping[str, str]
    initialization: Graph | None
    resets: Mapping[str, str]

    @property
    def calls_inference(self) -> bool:
        """True if the algorithm runs the inference graph by itself, with inputs of its own."""
        return any(node.op_type == GRAPH_CALL for node in self.step.nodes)


@dataclass(frozen=True, slots=True)
class TrainingModel:
    """A model with training information. `name` is what the file calls the inference graph, `inputs` are those it
    lists, initializers among them; `opset` is the version of ONNX's own operators."""

    inference: Graph
    name: str
    inputs: tuple[str, ...]
    entries: tuple[TrainingEntry, ...]
    opset: int

    @property
    def variables(self) -> tuple[str, ...]:
        """The initializers that training or initialization changes, in the order of the bindings."""
        return tuple(dict.fromkeys(n for e in self.entries for n in (*e.updates, *e.resets)))


def has_training_info(data: bytes, path: Path) -> bool:
    """True if an ONNX file carries training information. Raises BadInput for damage."""
    return bool(parse_model(data, path).training_info)


def read_training_model(data: bytes, path: Path) -> TrainingModel:
    """The training information in `data`, the bytes of the ONNX file `path`. Raises BadInput, with all findings, for
    damage, for bindings of what there is not, and where there is no training information; Unsupported for what a
    Graph cannot hold."""
    model = parse_model(data, path)
    if not model.training_info:
        raise BadInput(
            f"{path}: the model carries no training information. Make artifacts of it with `minbuild artifacts`, "
            "and give their folder."
        )
    reading = _Reading(model, path)
    reading.damage += [f"{path}: {finding}." for finding in _wrong_bindings(model)]
    inference = reading.graph(model.graph, "")
    entries = [reading.entry(number) for number in range(len(model.training_info))]
    reading.raise_findings()
    assert inference is not None
    inputs = tuple(i.name for i in model.graph.input)
    found = tuple(entry for entry in entries if entry is not None)
    return TrainingModel(inference, model.graph.name, inputs, found, opset_in(model))


# ------------------------------------------------------------------------------------------------- bindings


def _wrong_bindings(model: ModelProto) -> Iterator[str]:
    """A sentence per binding that breaks a rule of the specification."""
    keys = Counter(entry.key for info in model.training_info for entry in info.update_binding)
    for name, count in sorted(keys.items()):
        if count > 1:
            yield f"variable '{name}' is updated by {count} bindings; it can have one new value"
    for number, info in enumerate(model.training_info):
        both = sorted(_initializers(model.graph) & _initializers(info.algorithm))
        yield from (
            f"training_info[{number}]: initializer '{n}' is one of the inference graph as well" for n in both
        )
        variables = _initializers(model.graph, info.algorithm)
        made = {o.name for o in (*info.algorithm.output, *model.graph.output)}
        label = f"training_info[{number}].update_binding"
        yield from _unknown(
            label, info.update_binding, variables, made, "of the algorithm or the inference graph"
        )
        made = {o.name for o in info.initialization.output}
        label = f"training_info[{number}].initialization_binding"
        yield from _unknown(label, info.initialization_binding, variables, made, "of the initialization")
        if info.initialization.input:
            names = ", ".join(i.name for i in info.initialization.input)
            yield f"training_info[{number}].initialization takes inputs ({names}); it must run without any"
        yield from _twice(f"training_info[{number}].initialization_binding", info.initialization_binding)


def _unknown(
    label: str, bindings: Iterable[StringStringEntryProto], variables: set[str], made: set[str], of: str
) -> Iterator[str]:
    for entry in bindings:
        if entry.key not in variables:
            yield f"{label}: '{entry.key}' is no initializer of the inference graph or the algorithm"
        if entry.value not in made:
            there = ", ".join(sorted(made)) or "none"
            yield f"{label}: '{entry.value}', the new value of '{entry.key}', is no output {of}; there are: {there}"


def _twice(label: str, bindings: Iterable[StringStringEntryProto]) -> Iterator[str]:
    for name, count in sorted(Counter(entry.key for entry in bindings).items()):
        if count > 1:
            yield f"{label}: '{name}' is bound {count} times; it can have one first value"


def _initializers(*graphs: GraphProto) -> set[str]:
    return {t.name for graph in graphs for t in graph.initializer}


# --------------------------------------------------------------------------------------------------- graphs


@dataclass
class _Reading:
    """A file being read, graph by graph: damage, and what a Graph cannot hold, is gathered over all of them. What is
    wrong with the inference graph is said of that only, although every algorithm runs behind it."""

    model: ModelProto
    path: Path
    damage: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    reported: set[str] = field(default_factory=set)  # of the inference graph

    def graph(self, graph: GraphProto, part: str) -> Graph | None:
        """A graph by itself, called after its part of the file; None where something is wrong with it."""
        path = self.path.with_name(f"{self.path.name}, {part}") if part else self.path
        try:
            return read_model(_alone(self.model, graph), path)
        except BadInput as error:
            self.note(self.damage, str(error).splitlines(), str(path), part)
        except Unsupported as error:
            self.note(self.missing, error.findings, path.name, part)
        return None

    def note(self, findings: list[str], texts: Iterable[str], source: str, part: str) -> None:
        for text in texts:
            sentence = text.removeprefix(f"{source}: ")
            if not part:
                self.reported.add(sentence)
            if not part or sentence not in self.reported:
                findings.append(text)

    def entry(self, number: int) -> TrainingEntry | None:
        """One TrainingInfoProto; None where something is wrong with one of its graphs."""
        info, label = self.model.training_info[number], f"training_info[{number}]"
        updates, resets = _bound(info.update_binding), _bound(info.initialization_binding)
        joined = _joined(self.model.graph, info.algorithm)
        step = self.graph(_kept(joined, (*updates, *resets)), f"{label}.algorithm")
        initialization = None
        if info.initialization.output:
            initialization = self.graph(info.initialization, f"{label}.initialization")
        if step is None:
            return None
        step = replace(step, outputs=tuple(dict.fromkeys(o.name for o in joined.output)))
        outputs = tuple(o.name for o in info.algorithm.output)
        return TrainingEntry(step, outputs, updates, initialization, resets)

    def raise_findings(self) -> None:
        """Raises BadInput for damage, else Unsupported for what a Graph cannot hold."""
        if self.damage:
            raise BadInput("\n".join((*self.damage, *self.missing)))
        if self.missing:
            raise Unsupported(self.missing)


def _bound(bindings: Iterable[StringStringEntryProto]) -> dict[str, str]:
    return {entry.key: entry.value for entry in bindings}


def _joined(inference: GraphProto, algorithm: GraphProto) -> GraphProto:
    """One graph of both, list by list. Inputs and outputs that both have, which drafts allowed, are the same ones."""
    joined = GraphProto(name=inference.name)
    joined.CopyFrom(inference)
    joined.node.extend(algorithm.node)
    joined.initializer.extend(algorithm.initializer)
    joined.sparse_initializer.extend(algorithm.sparse_initializer)
    joined.value_info.extend(algorithm.value_info)
    for mine, others in ((joined.input, algorithm.input), (joined.output, algorithm.output)):
        known = {value.name for value in mine}
        mine.extend(value for value in others if value.name not in known)
    return joined


def _kept(graph: GraphProto, variables: Sequence[str]) -> GraphProto:
    """The graph with its variables among the outputs: readers drop initializers that nobody reads."""
    kept = GraphProto()
    kept.CopyFrom(graph)
    stored, known = _initializers(graph), {o.name for o in graph.output}
    kept.output.extend(helper.make_empty_tensor_value_info(n) for n in variables if n in stored - known)
    return kept


def _alone(model: ModelProto, graph: GraphProto) -> ModelProto:
    """A model of `graph` only, its functions inlined."""
    alone = ModelProto(ir_version=model.ir_version)
    alone.opset_import.extend(model.opset_import)
    alone.functions.extend(model.functions)
    alone.graph.CopyFrom(graph)
    if not model.functions:
        return alone
    inlined = onnx.inliner.inline_local_functions(alone)
    assert isinstance(inlined, ModelProto)
    return inlined
