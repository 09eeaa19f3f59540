"""Nodes in an order in which each stands behind those it reads from."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence

from minbuild.frontend.onnx.subgraphs import names_read
from minbuild.ir import Node


def in_order(nodes: Sequence[Node]) -> list[Node]:
    """The nodes sorted so, otherwise in the order they are given. None of them may depend on itself."""
    makers = {name: i for i, node in enumerate(nodes) for name in node.outputs if name}
    missing: list[int] = []
    readers: dict[int, list[int]] = defaultdict(list)
    for i, node in enumerate(nodes):
        sources = {makers[name] for name in names_read(node) if name in makers}
        missing.append(len(sources))
        for source in sources:
            readers[source].append(i)
    ready = [i for i, count in enumerate(missing) if not count]
    ordered = []
    while ready:
        i = heapq.heappop(ready)
        ordered.append(nodes[i])
        for reader in readers[i]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, reader)
    assert len(ordered) == len(nodes), "some node depends on itself"
    return ordered


def leading_to(nodes: Sequence[Node], names: set[str]) -> tuple[Node, ...]:
    """Only the nodes without which the values `names` are not made. `nodes` are in order."""
    needed, kept = set(names), []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            needed |= names_read(node)
            kept.append(node)
    return tuple(reversed(kept))
