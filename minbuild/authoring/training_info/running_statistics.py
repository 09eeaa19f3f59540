"""Running statistics of batch normalization in a training step that says by bindings what changes.

ONNX Runtime's operator, by which training normalizes batches, writes new statistics over the old ones. That is right
where a binding makes them the new ones and nobody else looks at the old ones; elsewhere they are results apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from minbuild.frontend.onnx.subgraphs import names_read
from minbuild.ir import Node

OVERWRITES, DECOMPOSED = ("com.microsoft", "BatchNormInternal"), ("minbuild", "BatchNormDecomposed")
STATISTICS = ((3, 1), (4, 2))  # inputs and the outputs that replace them


def with_bound_statistics(nodes: Sequence[Node], updates: Mapping[str, str]) -> tuple[Node, ...]:
    """The nodes of one step; `updates` are its bindings from variables to new values."""
    readers = Counter(name for node in nodes for name in names_read(node))

    def overwritten(node: Node, source: int, output: int) -> bool:
        old, new = node.inputs[source], node.outputs[output] if output < len(node.outputs) else ""
        return bool(new) and updates.get(old) == new and readers[old] == 1

    return tuple(
        replace(node, domain=DECOMPOSED[0], op_type=DECOMPOSED[1])
        if (node.domain, node.op_type) == OVERWRITES and not all(overwritten(node, *s) for s in STATISTICS)
        else node
        for node in nodes
    )
