"""If, Loop and Scan are gone before a trainer is built: the branch that is taken, and every round by itself.

Where the condition of an If depends on data, both branches run, and the results of one are chosen; where that of a Loop
does, all rounds up to its constant limit run, and those behind its end change nothing. What a branch or a round reads
enters it through a PassThrough with the condition, which lets no gradient out of what was not taken: it may be no
number. The nodes of a round are written after those of the round before it were looked at, as whether a loop goes on
may be known only then.
"""

from __future__ import annotations

from collections.abc import Iterator

from minbuild.frontend.onnx.subgraphs import captured
from minbuild.frontend.onnx.unroll_loops import Loop, Scan
from minbuild.frontend.onnx.unrolling import Scope, Unrolling
from minbuild.ir import Node


def unrolled(node: Node, scope: Scope) -> Iterator[Node] | None:
    """The nodes that run in place of `node`, to be taken one after the other: each may depend on what the scope knows
    of the ones before it. None for other operators. Raises Unknown, at the latest while they are taken."""
    if not is_unrolled(node):
        return None
    kinds = {"If": If, "Loop": Loop, "Scan": Scan}
    return kinds[node.op_type](node, scope).nodes()


def is_unrolled(node: Node) -> bool:
    """True if the node runs graphs of its own."""
    return not node.domain and node.op_type in ("If", "Loop", "Scan")


class If(Unrolling):
    def nodes(self) -> Iterator[Node]:
        known = self.flag(self.node.inputs[0])
        if known is None:
            return self.both()
        return self.one("then_branch" if known else "else_branch")

    def one(self, branch: str) -> Iterator[Node]:
        nodes, results = self.run(self.graph(branch), (), branch)
        yield from nodes
        yield from self.bind_outputs(results)

    def both(self) -> Iterator[Node]:
        condition = self.condition(self.node.inputs[0])
        pairs: list[list[str]] = []
        for branch, taken in (("then_branch", condition), ("else_branch", ~condition)):
            graph = self.graph(branch)
            self.check_effects(graph)
            around = self.gated(sorted(captured(graph)), taken)
            yield from self.drain()
            nodes, results = self.run(graph, (), branch, around)
            yield from nodes
            pairs.append(results)
        chosen = [
            self.selected(condition, one, other, f"output '{name}'") if name else ""
            for one, other, name in zip(*pairs, self.node.outputs, strict=False)
        ]
        yield from self.drain()
        yield from self.bind_outputs(chosen)
