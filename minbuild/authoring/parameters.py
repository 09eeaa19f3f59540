"""Which initializers of a model are parameters, and which of them train."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np

from minbuild.errors import BadInput
from minbuild.frontend.onnx.subgraphs import defined, graphs_in, names_read, with_graphs
from minbuild.ir import Graph, Node
from minbuild.options.did_you_mean import did_you_mean, listed

_BIASES = "bias"
_LAST = "last:"
_REST = "rest"
_STATISTICS = {"BatchNormalization": (3, 4)}  # inputs that training moves, but not by gradients
_SCALES = {  # inputs that say how numbers are quantised
    **dict.fromkeys(("Dequantize", "DequantizeLinear", "FakeQuant", "QuantizeLinear"), (1, 2, 3)),
    **dict.fromkeys(("MatMulBnb4", "MatMulNBits"), (2, 3)),
}
_PACKED = (
    "ConvInteger",
    "Dequantize",
    "DequantizeLinear",
    "MatMulBnb4",
    "MatMulInteger",
    "MatMulNBits",
    "QLinearConv",
)
_SETTINGS = {"Resize": (1, 2), "Upsample": (1,)}  # inputs that say what an operator does: regions and scales


def chosen(
    graph: Graph,
    train: Sequence[str],
    frozen: Sequence[str],
    constants: Collection[str] = (),
    scalars: Collection[str] = (),
    losses: Collection[str] = (),
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of trained and of frozen parameters, in the order of the model's initializers.

    `train` and `frozen` hold names, patterns with * and ?, `bias` (vectors added at the end of a layer) or `last:N`
    (those of the last N layers that have any and that `losses` depend on); `frozen` may hold `rest`, all that do not
    train. Nothing in `train` means every parameter that is not frozen, and is none of the `constants`. Parameters in
    neither are constants of the models: nothing can change them, but what follows from them is worked out beforehand.
    What normalisation keeps as running statistics is frozen, never trained. Single numbers are parameters where they
    are named in full, or among `scalars`. Raises BadInput for what matches nothing, and what is in both. `graph` is
    the forward graph."""
    candidates = parameter_names(graph, {*scalars, *train, *frozen})
    statistics = _running_statistics(graph)
    parameters = [n for n in candidates if n not in statistics]
    if not parameters:
        raise BadInput(f"{graph.source}: {_without_parameters(graph)}")
    findings: list[str] = []
    named = [n for n in frozen if n != _REST or n in parameters]
    graph = _behind(graph, losses) if losses else graph
    held = _matching("frozen", named, graph, [*parameters, *statistics], findings)
    usual = set(parameters) - held - set(constants)
    trained = _matching("train", train, graph, parameters, findings) if train else usual
    if findings:
        raise BadInput("\n".join(findings))
    if both := sorted(trained & held):
        raise BadInput(f"{', '.join(both)}: both trained and frozen. Name it in one of the lists.")
    if not trained:
        raise BadInput(
            f"{graph.source}: no parameter is left to train. Its parameters are: {listed(parameters)}."
        )
    rest = set(parameters) - trained if len(named) < len(frozen) else set()
    fixed = held | rest | statistics
    return tuple(n for n in candidates if n in trained), tuple(n for n in candidates if n in fixed)


def _behind(graph: Graph, losses: Collection[str]) -> Graph:
    """The graph without the nodes that no loss depends on: models have further outputs."""
    needed, kept = set(losses), []
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            needed |= names_read(node)
            kept.append(node)
    return replace(graph, nodes=tuple(reversed(kept)))


def _without_parameters(graph: Graph) -> str:
    """The sentences about a graph that has no parameters."""
    if any(node.op_type in _PACKED for node in graph.nodes):
        return (
            "it has no parameters: its weights are quantised, which do not train. Put adapters beside them with "
            "--lora, or leave the layers that should train out of the quantisation."
        )
    return (
        "it has no parameters, which are constants of real numbers that nodes read. A training model has them in its "
        "checkpoint: give the folder of both to minbuild reduce."
    )


def has_parameters(graph: Graph, scalars: Collection[str] = ()) -> bool:
    """True if anything in a graph could train."""
    return bool(set(parameter_names(graph, scalars)) - _running_statistics(graph))


def with_lifted_constants(graph: Graph) -> Graph:
    """The graph with initializers in place of its Constant nodes that hold tensors of real numbers, where it has no
    parameters otherwise: some exporters (paddle2onnx, OpenVINO's) write every weight as a node."""
    if has_parameters(graph):
        return graph
    lifted: dict[str, np.ndarray] = {}
    graph = _without_constants(graph, lifted)
    return replace(graph, initializers={**graph.initializers, **lifted})


def _without_constants(graph: Graph, lifted: dict[str, np.ndarray]) -> Graph:
    """The graph, and those in its nodes, without Constant nodes of tensors of real numbers, which go to `lifted`."""
    kept = []
    for node in graph.nodes:
        real = _real_tensor(node) if node.op_type == "Constant" and not node.domain else None
        if real is not None and node.outputs[0] not in lifted and node.outputs[0] not in graph.outputs:
            lifted[node.outputs[0]] = real
            continue
        inner = with_graphs(node.attributes, lambda each: _without_constants(each, lifted))
        kept.append(replace(node, attributes=inner))
    return replace(graph, nodes=tuple(kept))


def _real_tensor(node: Node) -> np.ndarray | None:
    """The tensor of real numbers that a Constant node holds; None for single numbers, integers and text."""
    if "value_floats" in node.attributes:
        return np.array(node.attributes["value_floats"], np.float32)
    value = node.attributes.get("value")
    return value if isinstance(value, np.ndarray) and value.dtype.kind in "fV" and value.ndim > 0 else None


def known_frozen(graph: Graph, frozen: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The patterns in `frozen` that match parameters, and a note about the others."""
    names = parameter_names(graph)
    known = tuple(p for p in frozen if p == _REST or _match(p, graph, names))
    if unknown := [p for p in frozen if p not in known]:
        return known, (
            f"{listed(unknown)}: no parameters of the model; they cannot be frozen, and are ignored.",
        )
    return known, ()


def parameter_names(graph: Graph, scalars: Collection[str] = ()) -> tuple[str, ...]:
    """Initializers with real numbers that are no single number, or among `scalars`: constants of a formula are mostly
    single numbers."""
    used = _operands(graph) - _scales(graph)  # which are calibrated, not trained
    return tuple(
        n
        for n, a in graph.initializers.items()
        if n in used and a.dtype.kind in "fV" and (a.ndim > 0 or n in scalars)
    )


def _scales(graph: Graph) -> set[str]:
    """Inputs that say how numbers are quantised, also in the graphs of nodes."""
    found = set[str]()
    for node in graph.nodes:
        for i in _SCALES.get(node.op_type, ()):
            found.update(node.inputs[i : i + 1])
        for inner in graphs_in(node):
            found |= _scales(inner) - defined(inner)
    return found


def _operands(graph: Graph) -> set[str]:
    """The operands of nodes, including those in the branches of an If."""
    found: set[str] = set()
    for node in graph.nodes:
        settings = _SETTINGS.get(node.op_type, ())
        found.update(name for i, name in enumerate(node.inputs) if i not in settings)
        for inner in graphs_in(node):
            found |= _operands(inner) - defined(inner)
    return found


def _running_statistics(graph: Graph) -> set[str]:
    return {
        node.inputs[i]
        for node in graph.nodes
        for i in _STATISTICS.get(node.op_type, ())
        if i < len(node.inputs) and node.inputs[i] in graph.initializers
    }


def _matching(
    option: str, patterns: Iterable[str], graph: Graph, names: Sequence[str], findings: list[str]
) -> set[str]:
    """The names that the patterns match; a sentence for each that matches nothing goes to `findings`."""
    found: set[str] = set()
    for pattern in patterns:
        some = _match(pattern, graph, names)
        if not some:
            cure = did_you_mean(pattern, names) or f" There are: {listed(names)}."
            if pattern == "all":
                cure = " '*' matches all."
            findings.append(f"--{option} {pattern}: no parameter of {graph.source} matches.{cure}")
        found |= some
    return found


def _match(pattern: str, graph: Graph, names: Sequence[str]) -> set[str]:
    if pattern in names:
        return {pattern}
    if pattern == _BIASES:
        return {n for n in names if n.endswith(_BIASES)} or _added(graph, names)
    if pattern.startswith(_LAST) and pattern[len(_LAST) :].isdigit():
        return _last(graph, int(pattern[len(_LAST) :]), names)
    return {n for n in names if fnmatchcase(n, pattern)}


def _added(graph: Graph, names: Sequence[str]) -> set[str]:
    """Vectors that stand third in a layer, where exporters lost their names."""
    layers = ("Gemm", "Conv", "ConvTranspose", "LayerNormalization", "BatchNormalization")
    thirds = {n.inputs[2] for n in graph.nodes if n.op_type in layers and len(n.inputs) > 2}
    return thirds & set(names)


def _last(graph: Graph, count: int, names: Sequence[str]) -> set[str]:
    layers = [read for node in graph.nodes if (read := names_read(node) & set(names))]
    return set().union(*layers[len(layers) - min(count, len(layers)) :])
