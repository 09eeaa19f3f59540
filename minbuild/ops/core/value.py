"""Handles of values in a graph being written: arithmetic on them writes nodes.

`b.dy[0] * 0.5 / b.y[0]` writes a Mul and a Div. A number beside a handle becomes a
constant of the handle's element type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Union

from minbuild.ir import ElementType
from minbuild.ir.dims import Dim

_BOOLEAN = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "IsInf", "IsNaN"})
_TYPE_INPUT = {  # the input whose type the results have, where it is not the first
    "DequantizeLinear": 1,
    "GatherGrad": 2,
    "GatherNDGrad": 2,
    "OneHot": 2,
    "QuantizeLinear": 2,
    "Where": 1,
}
_INT64 = frozenset({"ArgMax", "ArgMin", "NonZero", "Shape", "Size"})


class NodeWriter(Protocol):
    """The writer of a graph, as handles see it: `graph_builder.GraphBuilder`."""

    def add(
        self, op_type: str, *inputs: Value | str | None, domain: str = "", **attributes: Any
    ) -> Value: ...

    def constant(self, value: Any, element: ElementType | None = None) -> Value: ...

    def integers(self, values: Iterable[Dim]) -> Value: ...

    def reduce(self, op_type: str, x: Value, axes: Sequence[int], keepdims: bool = True) -> Value:
        """A reduction `op_type`, such as "ReduceSum", of `x` over `axes`, which stay with one element where
        `keepdims`."""
        ...

    def over_axes(self, op_type: str, x: Value, axes: Sequence[int], since: int, **attributes: Any) -> Value:
        """A node `op_type` of `x` with its `axes` as input from opset `since` on, and as attribute before."""
        ...


@dataclass(frozen=True, slots=True)
class Value:
    """A value by its name, in the graph that `builder` writes; false where an optional input or output is absent.

    `element` is the type that numbers beside it take: that of input 0 of the operator where None.
    """

    __array_ufunc__: ClassVar[None] = None  # numpy's scalars leave arithmetic with a handle to the handle

    builder: NodeWriter = field(repr=False, compare=False)
    name: str
    element: ElementType | None = field(default=None, repr=False, compare=False)

    def __bool__(self) -> bool:
        return bool(self.name)

    def __add__(self, other: Operand) -> Value:
        return self._with("Add", other)

    def __radd__(self, other: Operand) -> Value:
        return self._after("Add", other)

    def __sub__(self, other: Operand) -> Value:
        return self._with("Sub", other)

    def __rsub__(self, other: Operand) -> Value:
        return self._after("Sub", other)

    def __mul__(self, other: Operand) -> Value:
        return self._with("Mul", other)

    def __rmul__(self, other: Operand) -> Value:
        return self._after("Mul", other)

    def __truediv__(self, other: Operand) -> Value:
        return self._with("Div", other)

    def __rtruediv__(self, other: Operand) -> Value:
        return self._after("Div", other)

    def __pow__(self, other: Operand) -> Value:
        return self._with("Pow", other)

    def __matmul__(self, other: Value) -> Value:
        return self._with("MatMul", other)

    def __lt__(self, other: Operand) -> Value:
        return self._with("Less", other)

    def __le__(self, other: Operand) -> Value:
        return self._with("LessOrEqual", other)

    def __gt__(self, other: Operand) -> Value:
        return self._with("Greater", other)

    def __ge__(self, other: Operand) -> Value:
        return self._with("GreaterOrEqual", other)

    def __and__(self, other: Value) -> Value:
        return self._with("And", other)

    def __or__(self, other: Value) -> Value:
        return self._with("Or", other)

    def __neg__(self) -> Value:
        return self._apply("Neg")

    def __invert__(self) -> Value:
        return self._apply("Not")

    def equal(self, other: Operand) -> Value:
        """Elementwise equality; `==` compares handles."""
        return self._with("Equal", other)

    def abs(self) -> Value:
        return self._apply("Abs")

    def sign(self) -> Value:
        return self._apply("Sign")

    def sqrt(self) -> Value:
        return self._apply("Sqrt")

    def reciprocal(self) -> Value:
        return self._apply("Reciprocal")

    def exp(self) -> Value:
        return self._apply("Exp")

    def log(self) -> Value:
        return self._apply("Log")

    def sin(self) -> Value:
        return self._apply("Sin")

    def cos(self) -> Value:
        return self._apply("Cos")

    def sinh(self) -> Value:
        return self._apply("Sinh")

    def cosh(self) -> Value:
        return self._apply("Cosh")

    def tanh(self) -> Value:
        return self._apply("Tanh")

    def sigmoid(self) -> Value:
        return self._apply("Sigmoid")

    def relu(self) -> Value:
        return self._apply("Relu")

    def round(self) -> Value:
        return self._apply("Round")

    def cast(self, element: ElementType) -> Value:
        """The value in another element type."""
        return self.builder.add("Cast", self, to=int(element))

    def sum(self, axes: Sequence[int], keepdims: bool = True) -> Value:
        """ReduceSum over these axes; the value itself where there are none."""
        return self.builder.reduce("ReduceSum", self, axes, keepdims)

    def mean(self, axes: Sequence[int], keepdims: bool = True) -> Value:
        """ReduceMean over these axes; the value itself where there are none."""
        return self.builder.reduce("ReduceMean", self, axes, keepdims)

    def max(self, axes: Sequence[int], keepdims: bool = True) -> Value:
        """ReduceMax over these axes; the value itself where there are none."""
        return self.builder.reduce("ReduceMax", self, axes, keepdims)

    def squeeze(self, axes: Sequence[int]) -> Value:
        """Without these axes, whose sizes are one."""
        return self.builder.over_axes("Squeeze", self, axes, 13) if axes else self

    def unsqueeze(self, axes: Sequence[int]) -> Value:
        """With further axes of size one, at these places of the result."""
        return self.builder.over_axes("Unsqueeze", self, axes, 13) if axes else self

    def shape(self) -> Value:
        """The dimensions, as a vector of int64."""
        return self.builder.add("Shape", self)

    def size(self) -> Value:
        """The number of elements, as an int64."""
        return self.builder.add("Size", self)

    def reshape(self, shape: Iterable[Dim]) -> Value:
        """The elements in another shape."""
        return self.builder.add("Reshape", self, self.builder.integers(shape))

    def reshape_like(self, other: Value) -> Value:
        """The elements in the shape of `other`."""
        return self.builder.add("Reshape", self, other.shape())

    def expand_like(self, other: Value) -> Value:
        """Broadcast to the shape of `other`."""
        return self.builder.add("Expand", self, other.shape())

    def transpose(self, axes: Sequence[int]) -> Value:
        """Axis i of the result is axis `axes[i]`."""
        return self.builder.add("Transpose", self, perm=tuple(axes))

    def _apply(self, op_type: str) -> Value:
        return self.builder.add(op_type, self)

    def _with(self, op_type: str, other: Operand) -> Value:
        return self.builder.add(op_type, self, self._operand(other))

    def _after(self, op_type: str, other: Operand) -> Value:
        return self.builder.add(op_type, self._operand(other), self)

    def _operand(self, other: Operand) -> Value:
        return other if isinstance(other, Value) else self.builder.constant(other, self.element)


Operand = Union[Value, float]  # noqa: UP007  evaluated when the module is loaded
Results = Union[Value, Sequence[Union[Value, None]], None]  # noqa: UP007  of a rule


def element_of(
    op_type: str, inputs: Sequence[Value | None], attributes: Mapping[str, Any]
) -> ElementType | None:
    """The element type of a node's results as far as its kind `op_type`, its `inputs` and `attributes` show it, None
    otherwise."""
    if op_type in _BOOLEAN:
        return ElementType.BOOL
    if op_type in _INT64:
        return ElementType.INT64
    if op_type == "Cast":
        return ElementType(attributes["to"])
    if op_type in ("Constant", "ConstantOfShape") and "value" in attributes:
        return ElementType.of(attributes["value"].dtype)
    source = _TYPE_INPUT.get(op_type, 0)
    found = inputs[source] if source < len(inputs) else None
    return None if found is None else found.element
