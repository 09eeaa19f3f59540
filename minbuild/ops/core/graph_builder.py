"""Graphs that operators are defined by: their decomposition into other operators, and their gradient.

Both are rules of the operator (`Op.decompose`, `Op.decompose_for_grad`, `Op.gradient`) that write nodes into a
`GraphBuilder` and return values. A rule may use everything in the `OpContext`: attributes, element types, symbolic
shapes, constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minbuild.ir import ElementType, Node, Shape, TensorType
from minbuild.ir.dims import Dim
from minbuild.ops.core.context import OpContext
from minbuild.ops.core.shape_rules import normalized_axes
from minbuild.ops.core.value import Operand, Results, Value, element_of

LARGEST_OPSET = 1000
MICROSOFT = "com.microsoft"
GEMM_WITHOUT_C = 11  # the first opset in which Gemm may leave out what it adds


class GraphBuilder:
    """Nodes being written. `x` are the inputs of the operator, `y` its outputs, false where absent; `ctx` is its
    application, with types, shapes and attributes. The names of all nodes and values begin with `prefix`; `opset` is
    the version of the default domain that the nodes are for."""

    def __init__(
        self, ctx: OpContext, x: Sequence[str], y: Sequence[str], prefix: str, opset: int = LARGEST_OPSET
    ) -> None:
        self.ctx = ctx
        self.x = self._values(x, ctx.inputs)
        self.y = self._values(y, ctx.results)
        self.prefix = prefix  # of the names of nodes and values made here
        self.opset = opset
        self.nodes: list[Node] = []

    def _values(self, names: Sequence[str], types: Sequence[TensorType | None]) -> tuple[Value, ...]:
        elements = [None if t is None else t.element for t in types]
        elements += [None] * (len(names) - len(elements))
        return tuple(Value(self, n, e) for n, e in zip(names, elements, strict=False))

    @property
    def given(self) -> frozenset[str]:
        """Names of the values that exist before the nodes."""
        return frozenset(x.name for x in self.x)

    def release(self) -> None:
        """Forgets its handles, which refer to it: reference counts free it then."""
        self.x = self.y = ()

    def write(self, rule: Callable[[Any], Results]) -> tuple[Value | None, ...] | None:
        """Runs a decomposition: its results, one per output; None where the operator is served otherwise."""
        results = rule(self)
        return (results,) if isinstance(results, Value) else None if results is None else tuple(results)

    def many(
        self, count: int, op_type: str, *inputs: Value | str | None, domain: str = "", **attributes: Any
    ) -> tuple[Value, ...]:
        """A node of operator `op_type` of `domain` with `count` outputs: its results. Inputs that are absent are None;
        others may be given by name."""
        name = f"{self.prefix}/{op_type}_{len(self.nodes)}"
        outputs = tuple(f"{name}:{i}" for i in range(count))
        version = 1 if domain else self.opset
        values = [x if isinstance(x, Value) else Value(self, x or "") for x in inputs]
        names = tuple(x.name for x in values)
        self.nodes.append(
            Node(op_type, domain, version, name=name, inputs=names, outputs=outputs, attributes=attributes)
        )
        element = element_of(op_type, values, attributes)
        return tuple(Value(self, n, element) for n in outputs)

    def add(self, op_type: str, *inputs: Value | str | None, domain: str = "", **attributes: Any) -> Value:
        """A node with one output: its result."""
        if op_type == "Gemm" and not domain and len(inputs) == 2 and self.opset < GEMM_WITHOUT_C:
            return self.add("FusedMatMul", *inputs, domain=MICROSOFT, **attributes)
        return self.many(1, op_type, *inputs, domain=domain, **attributes)[0]

    def microsoft(self, op_type: str, *inputs: Value | str | None, **attributes: Any) -> Value:
        """A node of ONNX Runtime's own domain with one output: its result."""
        return self.add(op_type, *inputs, domain=MICROSOFT, **attributes)

    def constant(self, value: Any, element: ElementType | None = None) -> Value:
        """A constant of element type `element`, by default that of input 0."""
        dtype = (element or self.ctx.element()).dtype
        return self.add("Constant", value=np.asarray(value).astype(dtype))

    def integers(self, values: Iterable[Dim]) -> Value:
        """A constant vector of int64 numbers, such as axes."""
        return self.constant(list(values), ElementType.INT64)

    def where(self, condition: Value, x: Operand, y: Operand) -> Value:
        """`x` where `condition` holds, else `y`. A number takes the element type of the other one, or of input 0."""
        element = next((v.element for v in (x, y) if isinstance(v, Value)), None)
        chosen = (v if isinstance(v, Value) else self.constant(v, element) for v in (x, y))
        return self.add("Where", condition, *chosen)

    def has(self, i: int) -> bool:
        """True if optional input `i` is given."""
        return i < len(self.x) and bool(self.x[i])

    # Operators whose axes are an attribute in older opsets and an input in newer ones.

    def reduce(self, op_type: str, x: Value, axes: Sequence[int], keepdims: bool = True) -> Value:
        """`op_type`, one of ReduceSum, ReduceMean, ..., of `x` over `axes`; `x` itself where there are none. With
        `keepdims` reduced axes keep size 1."""
        if not axes:
            return x
        since = 13 if op_type == "ReduceSum" else 18
        return self.over_axes(op_type, x, axes, since, keepdims=int(keepdims))

    def over_axes(self, op_type: str, x: Value, axes: Sequence[int], since: int, **attributes: Any) -> Value:
        """A node `op_type` on `x` whose `axes` are an input from opset `since` on, an attribute before."""
        if self.opset >= since:
            return self.add(op_type, x, self.integers(axes), **attributes)
        return self.add(op_type, x, axes=tuple(axes), **attributes)


def named(builder: GraphBuilder, results: Sequence[Value | None], names: Sequence[str]) -> tuple[Node, ...]:
    """The nodes that a rule wrote with `builder`, its `results` under `names` ("" where none is read)."""
    renamed: dict[str, str] = {}
    copies = []
    for result, name in zip(results, names, strict=False):
        if result and name and (result.name in renamed or result.name in builder.given):
            copies.append((result.name, name))
        elif result and name:
            renamed[result.name] = name
    nodes = [
        replace(
            node,
            inputs=tuple(renamed.get(n, n) for n in node.inputs),
            outputs=tuple(renamed.get(n, n) for n in node.outputs),
        )
        for node in builder.nodes
    ]
    for source, name in copies:
        source = renamed.get(source, source)
        nodes.append(
            Node(
                "Identity",
                "",
                builder.opset,
                name=f"{builder.prefix}/{name}",
                inputs=(source,),
                outputs=(name,),
            )
        )
    return tuple(nodes)


class GradientBuilder(GraphBuilder):
    """The gradient of one application being written: given `dy`, the gradients of its outputs (false where none flows
    in), the rule returns the gradients of its inputs in order, None where there is none. Later inputs may be left
    out. `requires_grad` holds the positions of the inputs whose gradients are read; `ctx`, `x`, `y`, `prefix` and
    `opset` are as in GraphBuilder."""

    def __init__(
        self,
        ctx: OpContext,
        x: Sequence[str],
        y: Sequence[str],
        dy: Sequence[str],
        requires_grad: Iterable[int],
        prefix: str,
        opset: int = LARGEST_OPSET,
    ) -> None:
        super().__init__(ctx, x, y, prefix, opset)
        self.dy = self._values(dy, ctx.results)
        self.requires_grad = frozenset(requires_grad)  # inputs whose gradients are read
        self.forward: tuple[str, str] | None = None  # domain and name to run instead of the operator
        self.besides: Mapping[str, object] = {}  # further attributes of that operator
        self.saved: dict[int, str] = {}  # further outputs of the forward application

    @property
    def given(self) -> frozenset[str]:
        names = (v.name for v in (*self.x, *self.y, *self.dy))
        return frozenset((*names, *self.saved.values()))

    def write(self, rule: Callable[[Any], Results]) -> tuple[Value | None, ...]:
        """Runs a gradient rule: one gradient per input, None for those that are not required or zero."""
        results = (super().write(rule) or ())[: len(self.x)]
        padded = (*results, *(None,) * (len(self.x) - len(results)))
        return tuple(g if g and i in self.requires_grad else None for i, g in enumerate(padded))

    def save(self, output: int) -> Value:
        """An output of the forward application that the gradient needs, whether or not the model has it."""
        if output < len(self.y) and self.y[output]:
            return self.y[output]
        return Value(self, self.saved.setdefault(output, f"{self.prefix}/saved_{output}"))

    def replace_forward(self, op_type: str, domain: str = MICROSOFT, **attributes: object) -> None:
        """Training runs this operator in place of the forward one, with further `attributes`: same inputs and outputs,
        or more of them."""
        self.forward, self.besides = (domain, op_type), attributes

    def summed_to(self, gradient: Value, made: Shape | None, i: int) -> Value:
        """`gradient`, of shape `made`, summed over the axes along which input `i` was broadcast."""
        assert made is not None, "shapes are known where rules are written"
        own = self.ctx.shape(i)
        lead = len(made) - len(own)
        axes = [a for a, size in enumerate(made) if a < lead or (own[a - lead] == 1 and size != 1)]
        return gradient.sum(normalized_axes(axes, len(made))).squeeze(tuple(range(lead)))
