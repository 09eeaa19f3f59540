"""Selections at fixed size: NonZero and Compress whose mask is data, Unique and NonMaxSuppression of data, slices of
Loops that end when data says so, and what reads them.

The result of `x[mask]` has as many elements as the mask is true for, at most as many as it has places. Here it has one
for every place: where the mask is false it repeats the first selected one. Elementwise operators, gathers and products
by rows keep that; reductions leave the repeated ones out, sizes are counts of the mask. So every value stays finite
where the original was, and a repeated element gets no gradient. What would need the true size as a shape is refused,
or left out where the loss does not need it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from minbuild.authoring.selection_assignments import expanded_to_count
from minbuild.authoring.selection_rules import rewritten
from minbuild.authoring.selection_unique import unique
from minbuild.authoring.selection_writer import Selected, SelectionWriter
from minbuild.errors import Unsupported
from minbuild.frontend.onnx.scan_form import stacking_form
from minbuild.frontend.onnx.subgraphs import names_read
from minbuild.ir import ElementType, Graph, Node
from minbuild.ir.dims import Dim, product
from minbuild.ops import Registry
from minbuild.ops.indexing.non_max_suppression import most_places
from minbuild.options.did_you_mean import listed
from minbuild.passes.lowering.program_builder import Lowering

# Operators whose result's size may be data.
_OPEN = ("Compress", "Loop", "NonMaxSuppression", "NonZero", "Unique")


def with_fixed_selections(
    graph: Graph,
    opset: int,
    operators: Registry,
    needed: Collection[str] | None,
    sizes: Mapping[str, int],
    changing: Collection[str] = (),
) -> tuple[Graph, tuple[str, ...]]:
    """`graph`, whose nodes are of `opset`, without values whose size depends on data, and notes on what was left out:
    that which `needed`, or with None any output, does not depend on. `operators` is the registry, `sizes` fixes free
    dimensions of inputs, and initializers that are `changing` are data. Raises Unsupported with each node that stands
    in the way."""
    if not any(map(_may_select, graph.nodes)):
        return graph, ()
    made = _Rewriting(graph, opset, operators, sizes, changing)
    for node in graph.nodes:
        made.node(node)
    return made.result(graph.outputs if needed is None else needed)


def _may_select(node: Node) -> bool:
    """True for a node that may have a result whose size is data; a Loop where it has slices."""
    found = node.op_type in _OPEN and not node.domain
    return found and (node.op_type != "Loop" or len(node.outputs) > len(node.inputs) - 2)


@dataclass
class _Rewriting(SelectionWriter):
    """A graph being written anew, without values of unknown size."""

    open: dict[str, str] = field(default_factory=dict)  # values of unknown size -> the reason
    positions: dict[str, tuple[str, Selected]] = field(default_factory=dict)  # by the input of the mask

    def result(self, needed: Collection[str]) -> tuple[Graph, tuple[str, ...]]:
        for name in self.graph.outputs:
            if name in self.selected:
                self.open[name] = (
                    f"{self.graph.source}: output '{name}': its size depends on data. Reduce it, return it unselected "
                    "with its mask, or leave it out of the model"
                )
        if stops := dict.fromkeys(self.open[n] for n in needed if n in self.open):
            raise Unsupported([f"{reason}." for reason in stops])
        left = [n for n in self.graph.outputs if n in self.open]
        outputs = tuple(n for n in self.graph.outputs if n not in self.open)
        graph = replace(
            self.graph,
            nodes=tuple(self._needed_by({*outputs, *needed}) if left else self.nodes),
            outputs=outputs,
            initializers={**self.graph.initializers, **self.constants},
        )
        why = dict.fromkeys(self.open[n] for n in left)
        notes = (
            (f"{listed(left)}: left out, as the loss does not need it. {'; '.join(why)}.",) if left else ()
        )
        return graph, notes

    def _needed_by(self, names: set[str]) -> list[Node]:
        """The nodes that `names` are made of, in order."""
        kept = []
        for node in reversed(self.nodes):
            if names.intersection(node.outputs):
                kept.append(node)
                names |= set(names_read(node))
        return kept[::-1]

    def node(self, node: Node) -> None:
        reads = names_read(node)
        if opened := [n for n in reads if n in self.open]:
            self.open |= dict.fromkeys(node.outputs, self.open[opened[0]])
        elif not self.lowering.broken.isdisjoint(reads):  # lowering the result says why
            self.emit(node)
        elif node.domain or node.op_type not in _OPEN or self._is_known(node):
            if self.selected.keys().isdisjoint(reads):
                if node.op_type != "Expand" or not expanded_to_count(self, node):
                    self.emit(node)
            elif (reason := rewritten(self, node)) is not None:
                self._refuse(node, reason)
        elif node.op_type == "NonZero":
            self._try(node, self._non_zero)
        elif node.op_type == "Compress":
            self._try(node, self._compress)
        elif node.op_type == "Unique":
            self._try(node, self._unique)
        elif node.op_type == "Loop":
            self._try(node, self._loop)
        else:
            self._try(node, self._non_max_suppression)

    def _is_known(self, node: Node) -> bool:
        if node.op_type == "Loop":
            return stacking_form(node, self.lowering) is None or self._attempt((node,)) is not None
        at = 1 if node.op_type == "Compress" else 0
        return self.lowering.content(node.inputs[at]) is not None and (
            node.op_type != "NonMaxSuppression"
            or all(self.lowering.content(n) is not None for n in node.inputs if n)
        )

    def _try(self, node: Node, rule: Any) -> None:
        if not self.selected.keys().isdisjoint(names_read(node)):
            self._refuse(node, "it selects from what was selected. Combine the masks with And")
        elif (reason := rule(node)) is not None:
            self._refuse(node, reason)

    def _refuse(self, node: Node, reason: str) -> None:
        where = f"{self.graph.source}: node '{node.name}' ({node.title}, opset {node.version})"
        self.open |= dict.fromkeys((n for n in node.outputs if n), f"{where}: {reason}")

    # ---------------------------------------------------------------------------------------- Selections

    def _positions(self, x: str) -> tuple[str, Selected] | None:
        """The flat positions [N] at which `x` is not zero, the first one repeated for the others; None where N is 0."""
        if x in self.positions:
            return self.positions[x]
        shape = self.lowering.shape(x)
        sizes = [d for d in shape if isinstance(d, int)]
        if not shape or not prod(sizes):
            return None
        count, title = product(shape), f"{x}/selection"
        flat = self.flat_mask(x)
        ones = self.add("Cast", flat, name=f"{title}/ones", to=int(ElementType.INT32))
        first = self.add("ArgMax", ones, name=f"{title}/first", axis=0, keepdims=1)
        whole = self.add("Cast", flat, name=f"{title}/whole", to=int(ElementType.INT64))
        number = self.over_axes("ReduceSum", whole, [0], name=f"{title}/count", keepdims=1, since=13)
        every = self._counted(flat, count, title)
        at = self.add("Where", flat, every, first, name=f"{title}/positions")
        self.positions[x] = at, Selected(flat, number, count, 0)
        return self.positions[x]

    def _counted(self, flat: str, count: Dim, title: str) -> str:
        """0, 1, ... to the end of `flat`."""
        if isinstance(count, int):
            return self.integers(f"{title}/every", np.arange(count))
        one, axis = self.integers(f"{title}/one", [1]), self.integers(f"{title}/axis", np.array(0))
        size = self.add("Shape", flat, name=f"{title}/size")
        ones = self.add("Expand", one, size, name=f"{title}/one_each")
        return self.add(
            "Sub", self.add("CumSum", ones, axis, name=f"{title}/sum"), one, name=f"{title}/every"
        )

    def _non_zero(self, node: Node) -> str | None:
        x, y = node.inputs[0], node.outputs[0]
        found = self._positions(x)
        if found is None:
            return "its input is empty"
        at, selected = found
        rows = list(self._rows(at, x, y))
        self.add("Concat", *rows, name=y, axis=0) if len(rows) > 1 else self.add("Identity", rows[0], name=y)
        self.selected[y] = replace(selected, axis=1, rows_of=x)
        return None

    def _rows(self, at: str, x: str, title: str) -> Iterator[str]:
        """The index along each axis of `x` of the flat positions `at`, as [1,N]."""
        shape = self.lowering.shape(x)
        for axis in range(len(shape)):
            index = at
            if any(d != 1 for d in shape[axis + 1 :]):
                stride = self._places(x, range(axis + 1, len(shape)), f"{title}/stride{axis}")
                index = self.add("Div", index, stride, name=f"{title}/quotient{axis}")
            if axis:
                size = self._places(x, [axis], f"{title}/size{axis}")
                index = self.add("Mod", index, size, name=f"{title}/index{axis}")
            yield self.axes_changed("Unsqueeze", index, [0], f"{title}/row{axis}")

    def _places(self, x: str, axes: Sequence[int], name: str) -> str:
        """The product of the sizes of `x` along `axes`, as [1]; computed on the device where one is free."""
        shape = self.lowering.shape(x)
        sizes = [d for d in (shape[a] for a in axes) if isinstance(d, int)]
        if len(sizes) == len(axes):
            return self.integers(name, [prod(sizes)])
        whole = self.add("Shape", x, name=f"{name}/shape")
        taken = self.add(
            "Gather", whole, self.integers(f"{name}/along", list(axes)), name=f"{name}/sizes", axis=0
        )
        return self.over_axes("ReduceProd", taken, [0], name=name, keepdims=1, since=18)

    def _unique(self, node: Node) -> str | None:
        x, title = node.inputs[0], next(filter(None, node.outputs))
        shape = self.lowering.shape(x)
        if node.attributes.get("axis") is not None and len(shape) > 1:
            return "it compares whole slices, and their number depends on data. Number the slices, and compare numbers"
        if not prod(d for d in shape if isinstance(d, int)):
            return "its input is empty"
        flat = self.add("Reshape", x, self.integers(f"{title}/flat_shape", [-1]), name=f"{title}/flat")
        places = product(shape)
        unique(self, node, flat, self._counted(flat, places, title), places)
        return None

    def _non_max_suppression(self, node: Node) -> str | None:
        boxes, scores, most, *limits = (*node.inputs, "")[: max(len(node.inputs), 3)]
        known = self.lowering.content(most) if most else np.zeros(1, np.int64)
        if known is None:
            return "the most boxes of a class must be a constant: they bound its result"
        number, y = int(known.reshape(-1)[0]), node.outputs[0]
        rows = most_places(self.lowering.shape(boxes), self.lowering.shape(scores), number)
        if number <= 0 or rows == 0:
            return "it keeps no boxes"
        outputs, attributes = (y, f"{y}/count"), {**node.attributes, "most": number}
        inputs = (boxes, scores, *limits)
        self.emit(Node("NonMaxSuppression", "minbuild", 1, y, inputs, outputs=outputs, attributes=attributes))
        column = self.add("Gather", y, self.integers(f"{y}/first", np.array(0)), name=f"{y}/column", axis=1)
        mask = self.add("Less", self._counted(column, rows, y), outputs[1], name=f"{y}/mask")
        self.selected[y] = Selected(mask, outputs[1], rows, 0, in_order=True)
        return None

    def _attempt(self, nodes: Iterable[Node]) -> Lowering | None:
        """The graph so far with `nodes` behind it; None where lowering them reports something."""
        attempt = self.lowering.attempt()
        for node in nodes:
            attempt.node(node)
        return None if attempt.findings else attempt

    def _loop(self, node: Node) -> None:
        """The slices of a loop that ends when data says so: one for each round of its bound."""
        whole, nodes = self._stacking(node)
        first = len(node.inputs) - 2
        attempt = self._attempt(nodes)  # which knows the types of slices
        ran = f"{next(filter(None, node.outputs))}/rounds that ran"
        if attempt is not None:
            elements = {name: attempt.element(name) for name in whole.outputs[first:]}
            attempt = self._attempt(self._stacking(node, ran, elements)[1])
        if attempt is None:  # lowering the loop as it is says why
            self.emit(node)
            return
        for each in self._stacking(node, ran, elements)[1]:
            self.emit(each)
        found = self._positions(ran)
        assert found is not None, "a bound is one round at least"
        for name, stack in zip(node.outputs[first:], whole.outputs[first:], strict=True):
            if name:
                self.add("Gather", stack, found[0], name=name, axis=0)
                self.selected[name] = replace(found[1], axis=0, in_order=True)

    def _stacking(
        self, node: Node, ran: str = "", elements: Mapping[str, ElementType] | None = None
    ) -> tuple[Node, Iterator[Node]]:
        form = stacking_form(node, self.lowering, ran, elements)
        assert form is not None, "a loop that is not known has one"
        return form

    def _compress(self, node: Node) -> str | None:
        x, condition = node.inputs[:2]
        found = self._positions(condition)
        if found is None:
            return "its condition is empty"
        axis, y = node.attributes.get("axis"), node.outputs[0]
        if axis is None:
            x = self.add("Reshape", x, self.integers(f"{y}/flat_shape", [-1]), name=f"{y}/flat")
        axis = int(axis or 0) % max(len(self.lowering.shape(x)), 1)
        self.add("Gather", x, found[0], name=y, axis=axis)
        self.selected[y] = replace(found[1], axis=axis)
        return None
