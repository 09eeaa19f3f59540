"""The vocabulary of operator definitions: `Op`, `KernelFunction`, `KernelCall`, `OpContext`, `TestCase`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from minbuild.ir import Call, Shape
from minbuild.ir.dims import Dim
from minbuild.ops.core.channel_slices import ChannelRule
from minbuild.ops.core.context import (
    RULE_ERRORS,
    OpContext,
    ShapeMismatch,
    UnsupportedUse,
    malformed,
)
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.kernel import (
    BOOL,
    BROADCAST,
    ELEMENTS,
    EXTENT,
    FLOAT,
    FLOATS,
    HALVES,
    INDICES,
    INT64,
    INTEGERS,
    NUMBERS,
    SCRATCH,
    SIGNED,
    STORAGE_TYPES,
    UNSIGNED,
    InvalidDefinition,
    KernelCall,
    KernelFunction,
    View,
    float_bits,
    storage_type,
    whole_share,
)
from minbuild.ops.core.shape_rules import (
    ShapeRule,
    broadcast_shapes,
    in_shape_of,
    normalized_axes,
    require_equal,
    same_as,
)
from minbuild.ops.core.value import Results

__all__ = [
    "BOOL",
    "BROADCAST",
    "ELEMENTS",
    "EXTENT",
    "EqualLowering",
    "FLOAT",
    "FLOATS",
    "HALVES",
    "INDICES",
    "INT64",
    "INTEGERS",
    "InvalidDefinition",
    "KernelCall",
    "KernelFunction",
    "KernelRule",
    "NUMBERS",
    "Op",
    "OpContext",
    "RULE_ERRORS",
    "SCRATCH",
    "SIGNED",
    "STORAGE_TYPES",
    "ShapeMismatch",
    "TestCase",
    "UNSIGNED",
    "UnsupportedUse",
    "View",
    "broadcast_shapes",
    "every_input",
    "first_input",
    "float_bits",
    "in_shape_of",
    "itself",
    "malformed",
    "normalized_axes",
    "require_equal",
    "same_as",
    "storage_type",
    "whole_share",
]


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


LowerRule = Callable[[OpContext], Sequence[KernelCall]]
Reference = Callable[..., Any]  # (attributes, *inputs) -> array or tuple of arrays
ShapeValueRule = Callable[[OpContext], Sequence[np.ndarray | None]]


KernelRule = Callable[[KernelCall, Callable[[str], Shape]], Sequence[KernelCall] | None]


@dataclass(frozen=True)
class EqualLowering:
    """Calls of kernels that compute what others do, which saves those where a library has the former anyway, or where
    the latter are several. Results are the same numbers to the last bit, but that a zero may have another sign.

    name      the name in options
    title     the name in reports
    replaces  for functions of kernels: the calls in place of one of theirs, from that and the shapes of values, by
              name; None for a call that has no equal
    kernels   the kernels that those calls may be of
    needs     functions of kernels without which it cannot save anything
    fewest    the number of kernels it has to replace to save anything
    time      the most times as long that the calls take in place of what they replace, as measured
    """

    name: str
    title: str
    replaces: Mapping[str, KernelRule]
    kernels: tuple[KernelFunction, ...]
    needs: frozenset[str] = frozenset()
    fewest: int = 1
    time: float = 1.0


@dataclass(frozen=True)
class Op:
    """One operator of a domain.

    infer       types of the outputs, from the context; None only where `decompose` covers every use
    reference   the operator in numpy, `(attributes, *inputs) -> outputs`: folds constants, propagates shape arithmetic
                (object arrays of dimensions) and is the oracle of tests, in float64
    folds       False if a result that is known at build time is computed on the device all the same, being larger than
                what it is made of
    shape_value contents that follow from types alone (Shape, Size); None for an output whose contents depend on data
    lower       the kernel calls of one application; None for operators that never reach the device
    kernels     the kernels that `lower` may call
    is_view     output 0 shares the bytes of input 0
    in_place    (output, input) pairs that may share bytes when shape and type agree and the input dies here; such
                inputs are never left out
    mutates     inputs whose bytes change -> the output that is the new value, or None (running statistics, moments)
    accumulates outputs that can add to a gradient buffer
    zero_when_absent  inputs in whose place the kernel takes zeros where they are absent
    generator   the input, after those in the model, that holds the count of random draws
    rematerialize  the call that computes output 0 a second time, for results cheaper to compute than to keep
    codes       the output, of fewer bytes, from which that call computes output 0 where it is there
    inexpensive True if a second call takes little time for the bytes of its result, other than results so cheap that
                `rematerialize` has them made again wherever that is possible
    flops       multiplications of an application, for operators where they dominate: a bound for rematerialization
    batched_inputs inputs whose first dimension is the batch, where each sample of the outputs depends on its own sample
                of these inputs only, with the same bits for any batch size
    batch_sums  outputs that are sums over the batch instead, added sample by sample
    channels    how an application goes by slices of channels, with the same bits; None where it does not
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
    folds: bool = True
    shape_value: ShapeValueRule | None = None
    lower: LowerRule | None = None
    is_view: bool = False
    in_place: tuple[tuple[int, int], ...] = ()
    mutates: Mapping[int, int | None] = field(default_factory=dict)
    accumulates: frozenset[int] = frozenset()
    zero_when_absent: frozenset[int] = frozenset()
    generator: int | None = None
    rematerialize: Callable[[Call, OpContext], Call | None] | None = None
    codes: int | None = None
    inexpensive: bool = False
    flops: Callable[[OpContext], Dim] | None = None
    batched_inputs: Callable[[OpContext], Iterable[int]] | None = None
    batch_sums: frozenset[int] = frozenset()
    channels: ChannelRule | None = None
    split: Callable[[Call, OpContext], Sequence[Call]] | None = None
    decompose: Callable[[GraphBuilder], Results] | None = None
    gradient: Callable[[GradientBuilder], Results] | None = None
    decompose_for_grad: Callable[[GraphBuilder], Results] | None = None
    differentiable: frozenset[int] = frozenset({0})
    cases: Callable[[np.random.Generator], Iterable[TestCase]] | None = None
    kernels: tuple[KernelFunction, ...] = ()
    decomposes_to: tuple[str, ...] = ()

    @cached_property
    def key(self) -> str:
        return f"{self.domain}:{self.name}"

    @property
    def title(self) -> str:
        """`domain:Name`, the default domain left out."""
        return self.key.lstrip(":")


# ------------------------------------------------------------------------------- rules that many operators share


def itself(call: Call, ctx: OpContext) -> Call:
    """For `Op.rematerialize`: the same call."""
    return call


def every_input(ctx: OpContext) -> Iterable[int]:
    """For `Op.batched_inputs`: all inputs, where those that do not count samples broadcast."""
    return range(len(ctx.inputs))


def first_input(ctx: OpContext) -> Iterable[int]:
    """For `Op.batched_inputs`: the first input, where others are parameters."""
    return (0,)
