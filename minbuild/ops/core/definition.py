"""The vocabulary of operator definitions: `Op`, `KernelFunction`, `KernelCall`, `OpContext`, `TestCase`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from minbuild.ir import Call, ElementType, Shape, TensorType
from minbuild.ir.dims import Dim

if TYPE_CHECKING:
    from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
    from minbuild.ops.core.value import Results

FLOAT = ElementType.FLOAT
INT64 = ElementType.INT64
BOOL = ElementType.BOOL
FLOATS = (ElementType.FLOAT, ElementType.DOUBLE)
HALVES = (
    ElementType.FLOAT16,
    ElementType.BFLOAT16,
)  # kernels that lack them get float copies (passes/rewrite/legalize_half.py)
INDICES = (ElementType.INT32, ElementType.INT64)
SIGNED = (ElementType.INT8, ElementType.INT16, ElementType.INT32, ElementType.INT64)
UNSIGNED = (ElementType.UINT8, ElementType.UINT16, ElementType.UINT32, ElementType.UINT64)
INTEGERS = (*SIGNED, *UNSIGNED)
NUMBERS = (*FLOATS, *INTEGERS)
STORAGE_TYPES = (
    UNSIGNED  # what kernels that only move elements are instantiated for: one per size, whatever the type
)
EXTENT = "extent"  # an argument whose dimensions matter and that has no data
SCRATCH = "scratch"  # bytes that live only during the call


@dataclass(frozen=True)
class KernelFunction:
    """A C++ kernel `template <class T, ...> Status function(const Call&)` in `kernels/<stem>.cc`.

    `args` declares the argument slots in order, outputs first, as `name:type` with `type` one of the template
    variables in `types`, an element type (`int64`), `extent` or `scratch`; a trailing `=` marks what the kernel
    writes, a trailing `?` what may be absent. `params` declares the int32 words as `name:int` or `name:float`: a float
    travels as its bits. `features` are the parts that compile away (macro `MB_<STEM>_<FEATURE>`), with a line of
    explanation each.
    """

    function: str
    args: tuple[str, ...]
    params: tuple[str, ...] = ()
    types: Mapping[str, tuple[ElementType, ...]] = field(default_factory=dict)
    features: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for param in self.params:
            if param.partition(":")[2] not in ("int", "float"):
                raise InvalidDefinition(
                    f"kernel {self.function}: parameter '{param}' is neither 'name:int' nor 'name:float'"
                )

    def call(
        self,
        *args: str | TensorType | None,
        types: tuple[ElementType, ...] = (),
        params: Sequence[int | float] = (),
        features: Iterable[str] = (),
        accumulate: int = 0,
    ) -> KernelCall:
        """One execution: `args` are value names ("" or None where absent), or the type of an extent or scratch; `types`
        the element type of each template variable; `params` the numbers of the declared parameters; `accumulate` the
        outputs that add to a gradient buffer, bit i for output i. Raises InvalidDefinition where a number of these, or
        the kind of a parameter, is not the declared one."""
        for what, found, declared in (
            ("argument", args, self.args),
            ("parameter", params, self.params),
            ("element type", types, self.types),
        ):
            if len(found) != len(declared):
                text = f"kernel {self.function} declares {len(declared)} {what}s, the call has {len(found)}"
                raise InvalidDefinition(text)
        words = tuple(self._word(spec, value) for spec, value in zip(self.params, params, strict=True))
        return KernelCall(self, tuple(a or "" for a in args), types, words, frozenset(features), accumulate)

    def _word(self, spec: str, value: Any) -> int:
        """The int32 of a parameter: Python's and numpy's scalars alike; a float may be given as a whole number."""
        name, _, kind = spec.partition(":")
        if kind == "float" and isinstance(value, Real) and not isinstance(value, bool):
            return float_bits(float(value))
        if kind == "int" and isinstance(value, (Integral, np.bool_)):
            if not -(2**31) <= int(value) < 2**31:
                raise InvalidDefinition(
                    f"kernel {self.function}: parameter '{name}' = {value} exceeds 32 bits"
                )
            return int(value)
        given = f"{value!r}, {type(value).__name__}"
        raise InvalidDefinition(
            f"kernel {self.function}: parameter '{name}' is declared {kind}, given {given}"
        )


def storage_type(element: ElementType) -> ElementType:
    """The member of STORAGE_TYPES with as many bytes: the type under which a kernel moves elements it does not read."""
    return next(e for e in STORAGE_TYPES if e.size == element.size)


def float_bits(value: float) -> int:
    """The int32 with the bits of a float32."""
    return int(np.array(value, np.float32).view(np.int32))


@dataclass(frozen=True)
class KernelCall:
    """One kernel call, as `Op.lower` returns it: run this kernel on these values."""

    kernel: KernelFunction
    args: tuple[str | TensorType, ...]
    types: tuple[ElementType, ...]
    params: tuple[int, ...]
    features: frozenset[str]
    accumulate: int


@dataclass(frozen=True)
class OpContext:
    """Where an operator is applied: types and, as far as known at build time, contents of its inputs.

    `known[i]` is None, an array of numbers, or an object array of dimensions (shape arithmetic). During selection
    `names` and `result_names` hold the values' names ("" where absent) and `results` the output types; `adds` are
    the outputs that accumulate into gradient buffers. `makers[i]` is the context whose output input `i` is, during
    inference only: some gradients (MaxPoolGrad) take their shape from an input that they are not given. `earlier` are
    then the sites that made all values so far, by value, and `op` is the operator applied, `domain:Name`.
    """

    attributes: Mapping[str, Any]
    inputs: tuple[TensorType | None, ...]
    known: tuple[np.ndarray | None, ...]
    version: int
    names: tuple[str, ...] = ()
    results: tuple[TensorType | None, ...] = ()
    result_names: tuple[str, ...] = ()
    accumulates: frozenset[int] = frozenset()
    makers: tuple[OpContext | None, ...] = ()
    earlier: Mapping[str, OpContext] = field(default_factory=dict)
    op: str = ""

    def has(self, i: int) -> bool:
        """True if optional input `i` is given."""
        return i < len(self.inputs) and self.inputs[i] is not None

    def element(self, i: int = 0) -> ElementType:
        tensor = self.inputs[i]
        assert tensor is not None
        return tensor.element

    def shape(self, i: int = 0) -> Shape:
        tensor = self.inputs[i]
        assert tensor is not None and tensor.shape is not None
        return tensor.shape

    def rank(self, i: int = 0) -> int:
        return len(self.shape(i))

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def content(self, i: int) -> np.ndarray | None:
        """The contents of input `i` if it is given and known."""
        return self.known[i] if i < len(self.known) else None

    def dims(self, i: int) -> tuple[Dim, ...]:
        """The contents of a shape-like input; raises `UnsupportedUse` when only the device could know them."""
        content = self.content(i)
        if content is None:
            raise UnsupportedUse(f"input {i} must be known when the trainer is built")
        return tuple(d if not isinstance(d, (int, np.integer)) else int(d) for d in content.ravel().tolist())

    def axis(self, default: int = 0, of: int = 0) -> int:
        """Attribute `axis`, counted from the front of input `of`."""
        axis = int(self.attribute("axis", default))
        return axis + self.rank(of) if axis < 0 else axis

    def name(self, i: int) -> str:
        return self.names[i] if i < len(self.names) else ""

    def result(self, i: int = 0) -> str:
        return self.result_names[i] if i < len(self.result_names) else ""

    def result_shape(self, i: int = 0) -> Shape:
        tensor = self.results[i]
        assert tensor is not None and tensor.shape is not None
        return tensor.shape

    @property
    def accumulate(self) -> int:
        """Bit i: output i adds into a gradient buffer."""
        return sum(1 << i for i in self.accumulates)


class InvalidDefinition(Exception):
    """A definition contradicts itself: a kernel is called with something else than it declares."""


class UnsupportedUse(Exception):
    """The operator is applied in a way that this definition does not cover; the text says which."""


# What a rule of an operator raises on inputs, ranks or attribute values that it was not written for.
RULE_ERRORS = (
    *(TypeError, ValueError, IndexError, KeyError, AttributeError),
    *(OverflowError, ZeroDivisionError, MemoryError, AssertionError),
)


def malformed(error: Exception) -> UnsupportedUse:
    """The finding for one of RULE_ERRORS that a rule raised."""
    text = (str(error).strip().splitlines() or [""])[0][:160].rstrip(".")
    return UnsupportedUse(
        f"its inputs or attributes do not fit the operator ({type(error).__name__}{': ' if text else ''}{text})"
    )


class ShapeMismatch(UnsupportedUse):
    """Two sizes of operands that an operator needs equal differ. Where one of them is a free dimension, lowering makes
    them equal (passes/lowering/symbol_unification.py)."""

    def __init__(self, text: str, sizes: tuple[Dim, Dim]) -> None:
        super().__init__(text)
        self.sizes = sizes


@dataclass(frozen=True)
class TestCase:
    """A test of one operator application: inputs (None where absent), attributes, which inputs are constants. Inputs in
    float64 stand for real numbers of any precision, others are of the type they have."""

    __test__ = False  # no test class of pytest

    name: str
    inputs: tuple[np.ndarray | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    constant: frozenset[int] = frozenset()
    outputs: int = 1  # how many outputs the node has
    absent: frozenset[int] = frozenset()  # outputs the node leaves out
    ulps: float = 4  # allowed error, in float32 units of the largest magnitude of each output
    smooth: bool = True  # differentiable at these inputs: gradients are checked there


ShapeRule = Callable[[OpContext], Sequence[TensorType]]
LowerRule = Callable[[OpContext], Sequence[KernelCall]]
Reference = Callable[..., Any]  # (attributes, *inputs) -> array or tuple of arrays
ShapeValueRule = Callable[[OpContext], Sequence[np.ndarray | None]]


@dataclass(frozen=True)
class Op:
    """One operator of a domain.

    infer       types of the outputs, from the context; None only where `decompose` covers every use
    reference   the operator in numpy, `(attributes, *inputs) -> outputs`: folds constants, propagates shape arithmetic
                (object arrays of dimensions) and is the oracle of tests, in float64
    shape_value contents that follow from types alone (Shape, Size); None for an output whose contents depend on data
    lower       the kernel calls of one application; None for operators that never reach the device
    kernels     the kernels that `lower` may call
    is_view     output 0 shares the bytes of input 0
    in_place    (output, input) pairs that may share bytes when shape and type agree and the input dies here
    mutates     inputs whose bytes change -> the output that is the new value, or None (running statistics, moments)
    accumulates outputs that can add to a gradient buffer
    generator   the input, after those in the model, that holds the count of random draws
    rematerialize  the call that computes output 0 a second time, for results cheaper to compute than to keep
    flops       multiplications of an application, for operators where they dominate: a bound for rematerialization
    batched_inputs inputs whose first dimension is the batch, where each sample of the outputs depends on its own sample
                of these inputs only, with the same bits for any batch size
    batch_sums  outputs that are sums over the batch instead, added sample by sample
    split       one call per output, where outputs have kernels of their own, in execution order
    decompose   the nodes that replace an application without a kernel of its own (graph_builder.py); it returns None
                for applications that `lower` serves
    decomposes_to  the operators that `decompose` may write, as `Name` or `domain:Name`
    gradient    the nodes that compute the inputs' gradients from those of the outputs (graph_builder.py)
    decompose_for_grad  the decomposition through which gradients flow, for operators without `gradient`, or where it
                returns None, with one
    differentiable outputs through which gradients flow
    cases       applications to test, made with a random generator
    """

    name: str
    infer: ShapeRule | None = None  # None for operators with a body
    domain: str = ""
    since: tuple[int, ...] = (1,)
    reference: Reference | None = None
    shape_value: ShapeValueRule | None = None
    lower: LowerRule | None = None
    is_view: bool = False
    in_place: tuple[tuple[int, int], ...] = ()
    mutates: Mapping[int, int | None] = field(default_factory=dict)
    accumulates: frozenset[int] = frozenset()
    generator: int | None = None
    rematerialize: Callable[[Call, OpContext], Call | None] | None = None
    flops: Callable[[OpContext], Dim] | None = None
    batched_inputs: Callable[[OpContext], Iterable[int]] | None = None
    batch_sums: frozenset[int] = frozenset()
    split: Callable[[Call, OpContext], Sequence[Call]] | None = None
    decompose: Callable[[GraphBuilder], Results] | None = None
    gradient: Callable[[GradientBuilder], Results] | None = None
    decompose_for_grad: Callable[[GraphBuilder], Results] | None = None
    differentiable: frozenset[int] = frozenset({0})
    cases: Callable[[np.random.Generator], Iterable[TestCase]] | None = None
    kernels: tuple[KernelFunction, ...] = ()
    decomposes_to: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.domain}:{self.name}"

    @property
    def title(self) -> str:
        """`domain:Name`, the default domain left out."""
        return self.key.lstrip(":")


# ------------------------------------------------------------------------------------ inference rules many share


def itself(call: Call, ctx: OpContext) -> Call:
    """For `Op.rematerialize`: the same call."""
    return call


def every_input(ctx: OpContext) -> Iterable[int]:
    """For `Op.batched_inputs`: all inputs, where those that do not count samples broadcast."""
    return range(len(ctx.inputs))


def first_input(ctx: OpContext) -> Iterable[int]:
    """For `Op.batched_inputs`: the first input, where others are parameters."""
    return (0,)


def same_as(i: int = 0) -> ShapeRule:
    """One output with the type of input `i`."""

    def infer(ctx: OpContext) -> Sequence[TensorType]:
        return (TensorType(ctx.element(i), ctx.shape(i)),)

    return infer


def require_equal(left: Dim, right: Dim, text: str) -> None:
    """Raises ShapeMismatch, with `text` in front of the two sizes, where they differ."""
    if left != right:
        raise ShapeMismatch(f"{text}: {left} is not {right}", (left, right))


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Multidirectional broadcasting. Raises ShapeMismatch where sizes other than one differ, or are different
    symbols."""
    rank = max(len(s) for s in shapes)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    result: list[Dim] = []
    for axis in range(rank):
        sizes = {s[axis] for s in padded} - {1}
        if len(sizes) > 1:
            text = f"cannot broadcast {' with '.join(str(list(s)) for s in shapes)}"
            first, second = sorted(sizes, key=str)[:2]
            raise ShapeMismatch(text, (first, second))
        result.append(sizes.pop() if sizes else 1)
    return tuple(result)


def normalized_axes(axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Axes counted from the front, sorted."""
    return tuple(sorted(a + rank if a < 0 else a for a in axes))
