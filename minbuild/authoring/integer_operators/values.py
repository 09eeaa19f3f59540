"""Quantised values of a graph, and the float values behind them, while operators on the former are being replaced."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from minbuild.frontend.onnx.quantization_pairs import MICROSOFT
from minbuild.frontend.onnx.subgraphs import names_read
from minbuild.ir import Graph, Node

_AXES_SINCE = 13  # the first opset whose DequantizeLinear has an axis
_Part = str | tuple[str, bytes]  # a name, or type and numbers of a constant


class Quantization(NamedTuple):
    """Names of a scale and of a zero point, "" where that is zero. Several scales are along `axis`."""

    scale: str
    point: str
    axis: int = 0


@dataclass
class QuantizedValues:
    """A graph being rewritten: the `nodes` and `added` initializers so far.

    `opset` is the version of ONNX's own operators. Nodes whose results are all `droppable` go where nothing reads them
    any longer. `known` has, by quantised value, the quantisation by one scale; `floats` the float values, by what
    `_key` says.
    """

    graph: Graph
    opset: int
    nodes: list[Node] = field(default_factory=list)
    added: dict[str, np.ndarray] = field(default_factory=dict)
    droppable: set[str] = field(default_factory=set)
    known: dict[str, Quantization] = field(default_factory=dict)
    floats: dict[tuple[str, _Part, _Part, int], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.constants = {n: np.asarray(a) for n, a in self.graph.initializers.items()}
        for node in self.graph.nodes:
            value = node.attributes.get("value")
            if node.title == "Constant" and isinstance(value, np.ndarray):
                self.constants[node.outputs[0]] = value

    def finished(self) -> Graph:
        """The graph of the nodes that are still needed."""
        read, kept = set(self.graph.outputs), []
        for node in reversed(self.nodes):
            if read.isdisjoint(node.outputs) and self.droppable.issuperset(filter(None, node.outputs)):
                continue
            read |= names_read(node)
            kept.append(node)
        initializers = {**self.graph.initializers, **self.added}
        return replace(self.graph, nodes=tuple(reversed(kept)), initializers=initializers)

    def array(self, name: str) -> np.ndarray | None:
        """A constant; None for what is computed or absent."""
        found = self.added.get(name)
        return self.constants.get(name) if found is None else found

    def add(self, name: str, array: np.ndarray) -> str:
        """An initializer called `name`."""
        self.added[name] = array
        return name

    def write(
        self, op_type: str, inputs: tuple[str, ...], output: str, domain: str = "", **attributes: Any
    ) -> str:
        """A node of operator `op_type` of `domain` that reads `inputs`, with the one result `output`."""
        node = Node(
            op_type,
            domain,
            1 if domain else self.opset,
            name=f"{output}/{op_type}",
            inputs=inputs,
            outputs=(output,),
            attributes=attributes,
        )
        self.nodes.append(node)
        self.droppable.add(output)
        return output

    # ---------------------------------------------------------------------------------------------- float values

    def of_whole(self, by: Quantization) -> bool:
        """True if one scale is for a whole tensor."""
        return all((a := self.array(n)) is None or a.size == 1 for n in by[:2])

    def float_value(self, q: str, by: Quantization) -> str:
        """The float value of `q` that is there already; "" where none is."""
        return self.floats.get(self._key(q, by), "")

    def set_float_value(self, q: str, by: Quantization, value: str) -> None:
        """Readers of `q`, quantised `by` this, read `value` from now on."""
        self.floats[self._key(q, by)] = value
        if self.of_whole(by):
            self.known.setdefault(q, by)

    def form_of(self, by: Quantization) -> tuple[str, dict[str, int]]:
        """The domain and the attributes of a DequantizeLinear for this quantisation."""
        along = {} if self.of_whole(by) else {"axis": by.axis}
        return MICROSOFT if along and self.opset < _AXES_SINCE else "", along

    def dequantized(self, q: str, by: Quantization) -> str:
        """The float value of `q`, by a new DequantizeLinear where there is none."""
        if not (value := self.float_value(q, by)):
            own, along = self.form_of(by)
            name = f"{q}/float"
            if name in self.droppable:  # of another quantisation
                name = f"{q}/float/{by.scale}/{by.axis}"
            value = self.write("DequantizeLinear", (q, *filter(None, by[:2])), name, own, **along)
            self.set_float_value(q, by, value)
        return value

    def quantized(self, value: str, by: Quantization, q: str) -> None:
        """A QuantizeLinear that makes `q` of a float `value`, quantised `by` this."""
        self.write("QuantizeLinear", (value, *filter(None, by[:2])), q)
        self.known[q] = by

    def _key(self, q: str, by: Quantization) -> tuple[str, _Part, _Part, int]:
        """Equal for one value in equal quantisations, under whatever names."""
        return q, self._part(by.scale), self._part(by.point), 0 if self.of_whole(by) else by.axis

    def _part(self, name: str) -> _Part:
        array = self.array(name)
        return name if array is None else (array.dtype.str, array.tobytes())
