"""Writes a graph anew with the types of its values: for selections by masks (masked_selection.py)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from minbuild.ir import ElementType, Graph, Node, Role, Value
from minbuild.ir.dims import Dim
from minbuild.ops import Registry
from minbuild.passes.lowering.program_builder import Lowering


@dataclass(frozen=True)
class Selected:
    """A value with an element along `axis` for each of the `places` of `mask` [places], which is true `count` [1]
    times. `rows_of` is the input of the NonZero whose result [rank, places] it is, or with `turned` its transpose. With
    `in_order` the mask is true for the first places, so that an element can be taken by its number."""

    mask: str
    count: str
    places: Dim
    axis: int
    rows_of: str = ""
    turned: bool = False
    in_order: bool = False

    def at(self, axis: int) -> Selected:
        return Selected(self.mask, self.count, self.places, axis, in_order=self.in_order)


@dataclass
class SelectionWriter:
    """The nodes and constants written so far, the types of their values, and which values are selections. The constants
    `changing` of the graph are data: parameters."""

    graph: Graph
    opset: int
    operators: Registry
    sizes: Mapping[str, int]
    changing: Collection[str] = ()
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    selected: dict[str, Selected] = field(default_factory=dict)
    shapes: dict[str, str] = field(default_factory=dict)  # result of Shape -> the selected value it read
    makers: dict[str, Node] = field(default_factory=dict)  # value -> the node that was written for it
    masks: dict[str, str] = field(default_factory=dict)  # input of a selection -> its `mask`

    def __post_init__(self) -> None:
        self.lowering = Lowering(self.graph, self.operators, [])
        for name, tensor in self.graph.inputs.items():
            self.lowering.values[name] = Value(name, tensor.substituted(self.sizes), Role.INPUT)
        for name, array in self.graph.initializers.items():
            self.lowering.add_constant(name, np.asarray(array))
            if name in self.changing:
                del self.lowering.known[name]
                self.lowering.values[name] = Value(name, self.lowering.values[name].type, Role.INPUT)

    def emit(self, node: Node) -> None:
        """Writes `node`."""
        self.nodes.append(node)
        self.makers |= dict.fromkeys(node.outputs, node)
        self.lowering.node(node)

    def add(self, op_type: str, *inputs: str, name: str, **attributes: Any) -> str:
        """Writes a node `op_type` with these `inputs` and `attributes`, whose name and output are `name`."""
        self.emit(
            Node(op_type, "", self.opset, name=name, inputs=inputs, outputs=(name,), attributes=attributes)
        )
        return name

    def integers(self, name: str, values: Sequence[int] | np.ndarray) -> str:
        """A constant `name` of int64 with these `values`."""
        assert name not in self.constants or np.array_equal(self.constants[name], values), (
            f"{name}: named twice"
        )
        self.constants[name] = np.asarray(values, np.int64)
        self.lowering.add_constant(name, self.constants[name])
        return name

    def like(self, name: str, value: float, of: str) -> str:
        """A constant `name`, the number `value` in the element type of value `of`."""
        self.constants[name] = np.array(value, self.lowering.element(of).dtype)
        self.lowering.add_constant(name, self.constants[name])
        return name

    def over_axes(
        self, op_type: str, x: str, axes: Sequence[int], *, name: str, keepdims: int, since: int
    ) -> str:
        """A reduction `op_type` of `x` over `axes` to the value `name`; axes are an input from opset `since`, and stay
        with size 1 if `keepdims`."""
        if self.opset < since:
            return self.add(op_type, x, name=name, axes=tuple(axes), keepdims=keepdims)
        return self.add(op_type, x, self.integers(f"{name}/axes", axes), name=name, keepdims=keepdims)

    def axes_changed(self, op_type: str, x: str, axes: Sequence[int], name: str) -> str:
        """`x` without or with `axes` of size 1 as value `name`; `op_type` is Squeeze or Unsqueeze."""
        if self.opset < 13:
            return self.add(op_type, x, name=name, axes=tuple(axes))
        return self.add(op_type, x, self.integers(f"{name}/axes", axes), name=name)

    def flat_mask(self, x: str) -> str:
        """Where the elements of `x` are not zero, as [places]. Of a mask of rows that is brought to the shape of the
        elements, it is what `repeated` makes of the mask of rows, so that both select alike."""
        if x in self.masks:
            return self.masks[x]
        rows, maker = x, self.makers.get(x)
        if maker is not None and maker.op_type == "Expand":
            rows, maker = maker.inputs[0], self.makers.get(maker.inputs[0])
            while maker is not None and maker.op_type == "Unsqueeze":
                axes = self.axes(maker, self.rank(rows))
                if axes is None or min(axes) < self.rank(maker.inputs[0]):
                    break
                rows, maker = maker.inputs[0], self.makers.get(maker.inputs[0])
        shape, places = self.lowering.shape(x), self.lowering.shape(rows)
        times = [d for d in shape[len(places) :] if isinstance(d, int)]
        if rows != x and places and shape == (*places, *times):
            self.masks[x] = self.repeated(self.flat_mask(rows), prod(times))
            return self.masks[x]
        title = f"{x}/selection"
        flat = self.add("Reshape", x, self.integers(f"{title}/flat_shape", [-1]), name=f"{title}/flat")
        if self.lowering.element(x) is not ElementType.BOOL:
            flat = self.add("Cast", flat, name=f"{title}/mask", to=int(ElementType.BOOL))
        self.masks[x] = flat
        return flat

    def repeated(self, mask: str, times: int) -> str:
        """The mask [places * times] with each place of `mask` [places] that many `times`; one value for all who ask."""
        if times == 1:
            return mask
        name = f"{mask}/times{times}"
        if name not in self.makers:
            column = self.axes_changed("Unsqueeze", mask, [1], f"{name}/column")
            sizes = self.integers(f"{name}/sizes", [1, times])
            rows = self.add("Expand", column, sizes, name=f"{name}/rows")
            self.add("Reshape", rows, self.integers(f"{name}/flat_shape", [-1]), name=name)
        return name

    def kept(self, node: Node, selected: Selected) -> None:
        """Writes `node` as it is; its results are `selected`."""
        self.emit(node)
        self.selected |= {n: selected for n in node.outputs if n}

    def rank(self, name: str) -> int:
        """The number of dimensions of value `name`."""
        return len(self.lowering.shape(name))

    def only_first(self, node: Node) -> Selected | None:
        """The selection of the first input of `node`, where no other input is one."""
        if any(n in self.selected for n in node.inputs[1:]):
            return None
        return self.selected.get(node.inputs[0])

    def axes(self, node: Node, rank: int) -> tuple[int, ...] | None:
        """The axes of `node`, a Squeeze, Unsqueeze or reduction of a value with `rank` dimensions, by attribute or
        input; () for none, None where they are data."""
        given: Any = node.attributes.get("axes")
        if len(node.inputs) > 1 and node.inputs[1]:
            given = self.lowering.content(node.inputs[1])
            if given is None:
                return None
        return () if given is None else tuple(int(a) % rank for a in np.ravel(given))
