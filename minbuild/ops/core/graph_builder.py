"""Operators written as nodes: what an operator is made of, and what its gradient is made of.

Both are rules of the operator (`Op.decompose`, `Op.gradient`) that write nodes into a `GraphBuilder` and answer with
names of values. They may look at everything a `OpContext` knows: attributes, element types, symbolic shapes, constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minbuild.ir import ElementType, Node, Shape
from minbuild.ir.dims import Dim
from minbuild.ops.core.definition import OpContext, normalized_axes

LARGEST_OPSET = 1000
MICROSOFT = "com.microsoft"


class GraphBuilder:
    """Nodes being written. `x` are the names of the operator's inputs ("" where absent), `y` those its outputs
    shall have; `opset` is the version of the default domain that the nodes are for."""

    def __init__(
        self, ctx: OpContext, x: Sequence[str], y: Sequence[str], prefix: str, opset: int = LARGEST_OPSET
    ) -> None:
        self.ctx = ctx
        self.x = tuple(x)
        self.y = tuple(y)
        self.prefix = prefix  # of the names of nodes and values made here
        self.opset = opset
        self.nodes: list[Node] = []

    @property
    def given(self) -> frozenset[str]:
        """Values that exist without the body."""
        return frozenset(self.x)

    def many(
        self, count: int, op_type: str, *inputs: str, domain: str = "", **attributes: Any
    ) -> tuple[str, ...]:
        """A node with `count` outputs: their names."""
        name = f"{self.prefix}/{op_type}_{len(self.nodes)}"
        outputs = tuple(f"{name}:{i}" for i in range(count))
        version = 1 if domain else self.opset
        self.nodes.append(Node(op_type, domain, version, name, tuple(inputs), outputs, attributes))
        return outputs

    def add(self, op_type: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """A node with one output: its name."""
        return self.many(1, op_type, *inputs, domain=domain, **attributes)[0]

    def microsoft(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """A node of ONNX Runtime's own domain with one output: its name."""
        return self.add(op_type, *inputs, domain=MICROSOFT, **attributes)

    def constant(self, value: Any, element: ElementType | None = None) -> str:
        """A constant of element type `element`, by default that of input 0."""
        dtype = (element or self.ctx.element()).dtype
        return self.add("Constant", value=np.asarray(value).astype(dtype))

    def integers(self, values: Iterable[Dim]) -> str:
        """A constant vector of int64 numbers, such as axes."""
        return self.constant(list(values), ElementType.INT64)

    def has(self, i: int) -> bool:
        """Whether optional input `i` is given."""
        return i < len(self.x) and bool(self.x[i])

    # Operators whose axes are an attribute in older opsets and an input in newer ones.

    def reduce(self, op_type: str, x: str, axes: Sequence[int], keepdims: bool = True) -> str:
        """ReduceSum, ReduceMean, ... over these axes; all of `x` itself where there are none."""
        if not axes:
            return x
        since = 13 if op_type == "ReduceSum" else 18
        return self._over(op_type, x, axes, since, keepdims=int(keepdims))

    def squeeze(self, x: str, axes: Sequence[int]) -> str:
        return self._over("Squeeze", x, axes, 13) if axes else x

    def unsqueeze(self, x: str, axes: Sequence[int]) -> str:
        return self._over("Unsqueeze", x, axes, 13) if axes else x

    def _over(self, op_type: str, x: str, axes: Sequence[int], since: int, **attributes: Any) -> str:
        if self.opset >= since:
            return self.add(op_type, x, self.integers(axes), **attributes)
        return self.add(op_type, x, axes=tuple(axes), **attributes)

    def shape_of(self, name: str) -> str:
        """The dimensions of a value, as a value."""
        return self.add("Shape", name)

    def reshape(self, x: str, shape: Iterable[Dim]) -> str:
        return self.add("Reshape", x, self.integers(shape))

    def reshape_like(self, x: str, other: str) -> str:
        return self.add("Reshape", x, self.shape_of(other))


def named(body: GraphBuilder, results: Sequence[str], names: Sequence[str]) -> tuple[Node, ...]:
    """The nodes that a rule wrote, with its results under `names` ("" where nobody reads one)."""
    renamed: dict[str, str] = {}
    copies = []
    for result, name in zip(results, names, strict=False):
        if result and name and (result in renamed or result in body.given):
            copies.append((result, name))
        elif result and name:
            renamed[result] = name
    nodes = [
        replace(
            node,
            inputs=tuple(renamed.get(n, n) for n in node.inputs),
            outputs=tuple(renamed.get(n, n) for n in node.outputs),
        )
        for node in body.nodes
    ]
    for result, name in copies:
        source = renamed.get(result, result)
        nodes.append(Node("Identity", "", body.opset, f"{body.prefix}/{name}", (source,), (name,), {}))
    return tuple(nodes)


class GradientBuilder(GraphBuilder):
    """The gradient of one application being written: given `dy`, the gradients of its outputs ("" where none flows
    in), the rule returns the names of the gradients of its inputs, "" where there is none or it is not wanted."""

    def __init__(
        self,
        ctx: OpContext,
        x: Sequence[str],
        y: Sequence[str],
        dy: Sequence[str],
        wants: Iterable[int],
        prefix: str,
        opset: int = LARGEST_OPSET,
    ) -> None:
        super().__init__(ctx, x, y, prefix, opset)
        self.dy = tuple(dy)
        self.wants = frozenset(wants)  # inputs whose gradients somebody needs
        self.forward: tuple[str, str] | None = None  # domain and name to run instead of the operator
        self.besides: Mapping[str, object] = {}
        self.saved: dict[int, str] = {}  # further outputs of the forward application

    @property
    def given(self) -> frozenset[str]:
        return frozenset((*self.x, *self.y, *self.dy, *self.saved.values()))

    def save(self, output: int) -> str:
        """An output of the forward application that the gradient needs, whether or not the model asked for it."""
        if output < len(self.y) and self.y[output]:
            return self.y[output]
        return self.saved.setdefault(output, f"{self.prefix}/saved_{output}")

    def replace_forward(self, op_type: str, domain: str = MICROSOFT, **attributes: object) -> None:
        """Training runs this operator in place of the forward one, with `attributes` besides: same inputs and outputs,
        or more of them."""
        self.forward, self.besides = (domain, op_type), attributes

    def summed_to(self, gradient: str, made: Shape | None, i: int) -> str:
        """`gradient`, of shape `made`, summed over the axes along which input `i` was broadcast."""
        assert made is not None, "shapes are known where rules are written"
        own = self.ctx.shape(i)
        lead = len(made) - len(own)
        axes = [a for a, size in enumerate(made) if a < lead or (own[a - lead] == 1 and size != 1)]
        summed = self.reduce("ReduceSum", gradient, normalized_axes(axes, len(made)))
        return self.squeeze(summed, tuple(range(lead)))

    def each(self, *gradients: str) -> tuple[str, ...]:
        """One gradient per input: those not wanted dropped, missing ones "" at the end."""
        padded = (*gradients, *("",) * (len(self.x) - len(gradients)))
        return tuple(g if i in self.wants else "" for i, g in enumerate(padded))
