"""Losses over labels in slices of a batch: means become sums that are multiplied by what the labels of the whole batch
say, and indices are checked before the first slice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from minbuild.errors import Unsupported
from minbuild.ir import Call, ElementType, Graph, Node, Procedure, Role, TensorType
from minbuild.ops import Registry
from minbuild.passes.analysis.effects import Effects
from minbuild.passes.rewrite.micro_batches import IndexRange, LabelShare
from minbuild.planning.rollback import is_checked, may_be_refused

# Losses over labels: the inputs that are labels, weights of classes and the ignored label; gradients have one more.
_LOSSES: Mapping[str, tuple[int, int, int]] = {
    "SoftmaxCrossEntropyLoss": (1, 2, -1),
    "com.microsoft:SoftmaxCrossEntropyLossInternal": (1, 2, 3),
    "NegativeLogLikelihoodLoss": (1, 2, -1),
    "com.microsoft:SoftmaxCrossEntropyLossGrad": (2, 3, -1),
    "com.microsoft:SoftmaxCrossEntropyLossInternalGrad": (2, 3, 4),
    "minbuild:NegativeLogLikelihoodLossGrad": (2, 3, -1),
}
_GRADIENTS = "Grad"


def with_shares(graph: Graph, inputs: Iterable[str]) -> tuple[Graph, tuple[LabelShare, ...]]:
    """`graph` with sums in the place of means over weighted or ignored labels, and the further inputs that these are
    multiplied by. `inputs` are those of the user. Raises Unsupported for a loss whose share does not follow from
    labels."""
    shares: dict[tuple[str, str, int | None], LabelShare] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        places = _LOSSES.get(node.title)
        key = _weighted(graph, node, places) if places else None
        if key is None:
            nodes.append(node)
            continue
        if key[0] not in inputs:
            raise Unsupported([f"node '{node.name}' ({node.title}) has labels that are no input, '{key[0]}'"])
        share = shares.setdefault(key, LabelShare(f"{key[0]}: share {len(shares)}", *key[:2], 0, key[2]))
        nodes += _summed(node, share.name)
    return replace(graph, nodes=tuple(nodes)), tuple(shares.values())


def _weighted(graph: Graph, node: Node, places: tuple[int, int, int]) -> tuple[str, str, int | None] | None:
    """Labels, weights and the ignored label of a loss that divides by what depends on labels; None for others."""
    given = {i: name for i, name in enumerate(node.inputs) if name}
    ignored = node.attributes.get("ignore_index")
    if places[2] in given:
        content = constants_of(graph).get(given[places[2]])
        if content is None:
            raise Unsupported([f"node '{node.name}' ({node.title}) has an ignored label that is computed"])
        ignored = int(content.item())
    weights = given.get(places[1], "")
    if weights and weights not in constants_of(graph) and weights not in graph.inputs:
        raise Unsupported([f"node '{node.name}' ({node.title}) has weights of classes that are computed"])
    if node.attributes.get("reduction", "mean") != "mean" or (ignored is None and not weights):
        return None
    return given[places[0]], weights, None if ignored is None else int(ignored)


def constants_of(graph: Graph) -> dict[str, np.ndarray]:
    """The values of `graph` that are given as numbers."""
    nodes = {
        n.outputs[0]: np.asarray(n.attributes["value"])
        for n in graph.nodes
        if n.op_type == "Constant" and "value" in n.attributes
    }
    return {**graph.initializers, **nodes}


def _summed(node: Node, share: str) -> Iterator[Node]:
    """A loss, or its gradient, that adds up, with its multiplication by `share`."""
    added = replace(node, attributes={**node.attributes, "reduction": "sum"})
    scaled = Node("Mul", "", 14, f"{node.name} share", inputs=(), outputs=())
    if node.op_type.endswith(_GRADIENTS):
        dy = f"{node.outputs[0]} (scaled)"
        yield replace(scaled, inputs=(node.inputs[0], share), outputs=(dy,))
        yield replace(added, inputs=(dy, *node.inputs[1:]))
    else:
        loss = f"{node.outputs[0]} (sum)"
        yield replace(added, outputs=(loss, *node.outputs[1:]))
        yield replace(scaled, inputs=(loss, share), outputs=(node.outputs[0],))


def with_inputs(graph: Graph, added: Mapping[str, np.ndarray]) -> Graph:
    """`graph` with further inputs, of the types and shapes of the arrays `added`, that are no initializers."""
    types = {n: TensorType(ElementType.of(a.dtype) or ElementType.FLOAT, a.shape) for n, a in added.items()}
    kept = {n: a for n, a in graph.initializers.items() if n not in added}
    return replace(graph, inputs={**graph.inputs, **types}, initializers=kept)


def classes_of(train: Procedure, share: LabelShare) -> int:
    """The number of classes of the loss that `share` belongs to in the procedure `train`. Raises Unsupported."""
    for call in train.calls:
        places = _LOSSES.get(call.op.lstrip(":"))
        if places and share.labels in call.inputs:
            shape = train.values[call.inputs[places[0] - 1]].type.shape or ()
            if len(shape) > 1 and isinstance(shape[1], int):
                return shape[1]
    raise Unsupported([f"{train.source}: the number of classes of '{share.labels}' is not known"])


def index_ranges(train: Procedure, registry: Registry) -> Iterator[IndexRange]:
    """The indices of the user that kernels of the slice `train` may refuse; `registry` has the kernels. Raises
    Unsupported for a kernel that may refuse what cannot be checked for the whole batch beforehand."""
    effects, done = Effects(train, registry), set[str]()
    for call in train.calls:
        kernels = registry.ops[call.op].kernels
        if not any(is_checked(arg) for k in kernels for arg in k.args):
            continue
        made = {effects.owner(n) for n in call.outputs if n}
        for i, name in enumerate(call.inputs):
            owner = effects.owner(name) if name else ""
            value = train.values[owner] if owner else None
            if value is None or value.type.element.is_real or not may_be_refused(value) or owner in done:
                continue
            limit = _limit(call, i, train)
            if value.role is not Role.INPUT or limit is None:
                raise Unsupported(
                    [
                        f"node '{call.node}' ({call.op.lstrip(':')}) may refuse values that are computed for a slice"
                    ]
                )
            done.add(owner)
            yield replace(limit, name=owner)
        done |= made


def _limit(call: Call, index: int, train: Procedure) -> IndexRange | None:
    """The numbers that input number `index` of a call may have."""
    places, title = _LOSSES.get(call.op.lstrip(":")), call.op.lstrip(":")
    if places and places[0] == index:
        classes = (train.values[call.inputs[index - 1]].type.shape or (0, 0))[1]
        ignored = call.attributes.get("ignore_index")
        return IndexRange("", 0, classes, ignored) if isinstance(classes, int) else None
    if title == "Gather" and index == 1:
        shape = train.values[call.inputs[0]].type.shape or ()
        size = shape[int(call.attributes.get("axis", 0))]
        return IndexRange("", -size, size) if isinstance(size, int) else None
    return None


def is_weighted(graph: Graph, node: Node) -> bool:
    """True if `node` of `graph` is a loss that divides by what depends on labels. Raises Unsupported as
    `with_shares`."""
    places = _LOSSES.get(node.title)
    return places is not None and _weighted(graph, node, places) is not None
