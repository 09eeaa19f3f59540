"""Reverse-mode differentiation of an ONNX graph: the gradient rules of its operators, put together.

Rules stand with their operators (`Op.gradient`, written with `ops/core/graph_builder.py`). Here they are applied from
the loss back to the parameters; the gradients of a value that is read several times are summed.
"""

from __future__ import annotations

from collections.abc import Sequence

from minbuild.authoring.autodiff.loops import loop_gradient
from minbuild.authoring.autodiff.sweep import Differentiated, Sweep
from minbuild.authoring.autodiff.tape import Tape
from minbuild.errors import Unsupported
from minbuild.ir import Graph
from minbuild.ops import Registry
from minbuild.ops.core.definition import UnsupportedUse


def differentiate(
    graph: Graph, loss: str, wrt: Sequence[str], registry: Registry, opset: int, stops: Sequence[str] = ()
) -> Differentiated:
    """The gradients of the scalar `loss` with respect to the initializers `wrt`, in the default domain's version
    `opset`; the values `stops` count as constants. `registry` has the gradient rules of what is in `graph`. Raises
    Unsupported with every node that stands in the way."""
    try:
        return _differentiate(Tape(graph, registry, opset), loss, wrt, stops)
    except (Unsupported, UnsupportedUse):
        if not any(node.op_type in ("Loop", "Scan") for node in graph.nodes):
            raise
        return _differentiate(Tape(graph, registry, opset, loops=False), loss, wrt, stops)


def _differentiate(tape: Tape, loss: str, wrt: Sequence[str], stops: Sequence[str]) -> Differentiated:
    tape.record(wrt)
    return Sweep(tape, (loss,), tuple(wrt), frozenset(stops), loop_gradient).run()
