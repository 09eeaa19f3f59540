"""Which initializers of a model are parameters, and which of them train."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from minbuild.errors import BadInput
from minbuild.model import Graph, Node

_BIASES = "bias"
_LAST = "last:"
_STATISTICS = {"BatchNormalization": (3, 4)}  # inputs that training moves, but not by gradients


def chosen(
    graph: Graph, train: Sequence[str], frozen: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of trained and of frozen parameters, in the order of the model's initializers.

    `train` and `frozen` hold names, patterns with * and ?, `bias` (vectors added at the end of a layer) or `last:N`
    (those of the last N layers that have any). Nothing in `train` means every parameter that is not frozen. What
    normalisation keeps as running statistics is frozen, never trained. Raises BadInput for what matches nothing, and
    what is in both.
    """
    candidates = _candidates(graph)
    statistics = _running_statistics(graph)
    parameters = [n for n in candidates if n not in statistics]
    held = _matching("frozen", frozen, graph, [*parameters, *statistics])
    wanted = _matching("train", train, graph, parameters) if train else set(parameters) - held
    if both := sorted(wanted & held):
        raise BadInput(f"{', '.join(both)}: both trained and frozen. Name it in one of the lists.")
    if not wanted:
        raise BadInput(
            f"{graph.source}: no parameter is left to train. Its parameters are: {_list(parameters)}."
        )
    fixed = held | statistics
    return tuple(n for n in candidates if n in wanted), tuple(n for n in candidates if n in fixed)


def _candidates(graph: Graph) -> tuple[str, ...]:
    """Initializers with real numbers that are no single number: constants of a formula are mostly scalars."""
    used = {name for node in graph.nodes for name in node.inputs}
    return tuple(
        n for n, a in graph.initializers.items() if n in used and a.dtype.kind in "fV" and a.ndim > 0
    )


def _running_statistics(graph: Graph) -> set[str]:
    return {
        node.inputs[i]
        for node in graph.nodes
        for i in _STATISTICS.get(node.op_type, ())
        if i < len(node.inputs) and node.inputs[i] in graph.initializers
    }


def _matching(option: str, patterns: Iterable[str], graph: Graph, names: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for pattern in patterns:
        some = _match(pattern, graph, names)
        if not some:
            raise BadInput(
                f"--{option} {pattern}: no parameter of {graph.source} matches. There are: {_list(names)}."
            )
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
    layers: list[Node] = [n for n in graph.nodes if not set(names).isdisjoint(n.inputs)]
    return {name for node in layers[len(layers) - min(count, len(layers)) :] for name in node.inputs} & set(
        names
    )


def _list(names: Iterable[str]) -> str:
    shown = list(names)
    return ", ".join(shown[:20]) + (f" and {len(shown) - 20} more" if len(shown) > 20 else "")
