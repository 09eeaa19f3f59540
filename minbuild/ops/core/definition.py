"""The words in which `ops/<stem>.py` files say everything Python knows about an operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from minbuild.ir import Call, ElementType, Shape, TensorType
from minbuild.ir.dims import Dim

if TYPE_CHECKING:
    from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder

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
    writes, a trailing `?` what may be absent. `params` names the int32 words; `features` the parts that compile away
    (macro `MB_<STEM>_<FEATURE>`) with a line of explanation each.
    """

    function: str
    args: tuple[str, ...]
    params: tuple[str, ...] = ()
    types: Mapping[str, tuple[ElementType, ...]] = field(default_factory=dict)
    features: Mapping[str, str] = field(default_factory=dict)

    def call(
        self,
        *args: str | TensorType | None,
        types: tuple[ElementType, ...] = (),
        params: Sequence[int | float] = (),
        features: Iterable[str] = (),
        accumulate: int = 0,
    ) -> KernelCall:
        """One execution: `args` are value names ("" or None where absent), or the type of an extent or scratch."""
        if len(args) != len(self.args) or len(params) != len(self.params) or len(types) != len(self.types):
            raise AssertionError(f"{self.function}: a launch that does not fit the declaration")
        words = tuple(float_bits(p) if isinstance(p, float) else int(p) for p in params)
        return KernelCall(self, tuple(a or "" for a in args), types, words, frozenset(features), accumulate)


def storage_type(element: ElementType) -> ElementType:
    """The member of STORAGE_TYPES with as many bytes: the type under which a kernel moves elements it does not read."""
    return next(e for e in STORAGE_TYPES if e.size == element.size)


def float_bits(value: float) -> int:
    """The int32 with the bits of a float32."""
    return int(np.array(value, np.float32).view(np.int32))


@dataclass(frozen=True)
class KernelCall:
    """What `Op.lower` answers: run this kernel on these values."""

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
        """Whether optional input `i` is given."""
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


class UnsupportedUse(Exception):
    """The operator is applied in a way that this definition does not cover; the text says which."""


class ShapeMismatch(UnsupportedUse):
    """Two sizes of operands differ by what is written, but may be meant to be equal: a free dimension and a size."""

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


Infer = Callable[[OpContext], Sequence[TensorType]]
Select = Callable[[OpContext], Sequence[KernelCall]]
Reference = Callable[..., Any]  # (attributes, *inputs) -> array or tuple of arrays
Known = Callable[[OpContext], Sequence[np.ndarray | None]]


@dataclass(frozen=True)
class Op:
    """One operator of a domain.

    infer      types of the outputs from the context
    reference  the plain numpy meaning, `(attributes, *inputs) -> outputs`, used to fold constants, to propagate
               shape arithmetic (object arrays of dimensions) and as the oracle of tests in float64
    known      contents that follow from types alone (Shape, Size); None for an output that only the device will know
    select     kernels to launch; None for operators that never reach the device
    view       output 0 has the bytes of input 0
    in_place   (output, input) pairs that may share bytes when shape and type agree and the input dies here
    updates    inputs whose bytes it changes -> the output that is the new value, or None (running statistics, moments)
    adds       outputs that can accumulate into a gradient buffer
    generator  the input, behind those that files give, by which the count of random draws comes in
    again      the call that makes output 0 a second time, for results that are cheaper to make than to keep
    work       multiplications, of operators that many are spent in: what `again` makes must not take a notable share
    samples    the inputs whose first dimension counts samples, where each sample of the outputs is computed alone, from
               these inputs' own, to the same bits whatever the batch
    sums       outputs that are sums over the samples instead, added one after the other
    apart      the calls that make each output alone, where outputs have kernels of their own, in a good order
    body       what the operator is made of, where it needs no kernel of its own (body.py); None where it does
    gradient   the nodes that compute the gradients of its inputs from those of its outputs (body.py)
    parts      what an operator without a rule is made of where gradients flow through it; elsewhere it has its kernel
    differentiable  outputs through which gradients flow
    """

    name: str
    infer: Infer | None = None  # None for operators with a body
    domain: str = ""
    since: tuple[int, ...] = (1,)
    reference: Reference | None = None
    shape_value: Known | None = None
    lower: Select | None = None
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
    decompose: Callable[[GraphBuilder], Sequence[str] | None] | None = None
    gradient: Callable[[GradientBuilder], Sequence[str]] | None = None
    decompose_for_grad: Callable[[GraphBuilder], Sequence[str]] | None = None
    differentiable: frozenset[int] = frozenset({0})
    cases: Callable[[np.random.Generator], Iterable[TestCase]] | None = None

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


def same_as(i: int = 0) -> Infer:
    """One output with the type of input `i`."""

    def infer(ctx: OpContext) -> Sequence[TensorType]:
        return (TensorType(ctx.element(i), ctx.shape(i)),)

    return infer


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
