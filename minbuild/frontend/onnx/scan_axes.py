"""Scans along other axes than 0 as Scans along axis 0, with transposes around them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from minbuild.frontend.onnx import loops
from minbuild.frontend.onnx.unrolling import Scope
from minbuild.ir import Node


def along_axis_0(node: Node, scope: Scope) -> Iterator[Node] | None:
    """The nodes that run in place of a Scan along other axes; None for those along axis 0, or of few rounds."""
    count = int(node.attributes.get("num_scan_inputs", 0))
    given = [a for key in ("scan_input_axes", "scan_output_axes") for a in node.attributes.get(key, ())]
    if node.version < 9 or not any(map(int, given)) or not count or not all(node.inputs):
        return None
    scans = node.inputs[len(node.inputs) - count :]
    axes = _axes(node, "scan_input_axes", [len(scope.shape(x)) for x in scans])
    rounds = scope.shape(scans[0])[axes[0]]
    if isinstance(rounds, int) and rounds < loops.LEAST_ROUNDS:
        return None
    return _transposed(node, scans, axes, scope)


def _transposed(node: Node, scans: Sequence[str], axes: Sequence[int], scope: Scope) -> Iterator[Node]:
    """The Scan along axis 0, with transposes before and behind it."""
    prefix = next(name for name in node.outputs if name)
    states = node.inputs[: len(node.inputs) - len(scans)]
    moved = []
    for x, axis in zip(scans, axes, strict=True):
        name = f"{prefix}/{x} along axis {axis}" if axis else x
        if axis and name not in moved:
            order = (axis, *(i for i in range(len(scope.shape(x))) if i != axis))
            yield _plain(node, "Transpose", (x,), name, perm=order)
        moved.append(name)
    given = tuple(int(a) for a in node.attributes.get("scan_output_axes", ()))
    stacked = node.outputs[len(states) :]
    given += (0,) * (len(stacked) - len(given))
    inner = tuple(f"{n}/along axis 0" if n and a else n for n, a in zip(stacked, given, strict=True))
    attributes = {
        n: a for n, a in node.attributes.items() if n not in ("scan_input_axes", "scan_output_axes")
    }
    yield replace(
        node,
        inputs=(*states, *moved),
        outputs=(*node.outputs[: len(states)], *inner),
        attributes=attributes,
    )
    for made, name, axis in zip(inner, stacked, given, strict=True):
        if made != name:
            rank = len(scope.shape(made))
            place = axis % rank
            order = (*range(1, place + 1), 0, *range(place + 1, rank))
            yield _plain(node, "Transpose", (made,), name, perm=order)


def _axes(node: Node, key: str, ranks: Sequence[int]) -> list[int]:
    given = [int(a) for a in node.attributes.get(key, ())]
    given += [0] * (len(ranks) - len(given))
    return [axis % rank for axis, rank in zip(given, ranks, strict=True)]


def _plain(node: Node, op: str, inputs: Sequence[str], output: str, **attributes: object) -> Node:
    name = f"{output} ({op})"
    return Node(
        op, "", node.version, name=name, inputs=tuple(inputs), outputs=(output,), attributes=attributes
    )
