"""Loops of lib/loops/broadcast.h over operands of different shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from minbuild.ir import ElementType, Shape, TensorType
from minbuild.ir.dims import product
from minbuild.ops.core.definition import (
    BROADCAST,
    FLOAT,
    INTEGERS,
    KernelCall,
    KernelFunction,
    OpContext,
    broadcast_shapes,
    storage_type,
)

FEATURES = {"broadcast": "operands of different shapes", "scalar": "operands of one element"}
WALK = "walk:extent?"  # argument 3 of such a kernel
AXES = ("a_axes:int", "b_axes:int")  # and its first two parameters


def binary_kernel(function: str, types: tuple[ElementType, ...]) -> KernelFunction:
    """A kernel of two operands that broadcast, with a result of their type."""
    return KernelFunction(
        function,
        ("y:T=", "a:T", "b:T", WALK),
        params=AXES,
        types={"T": types},
        features=FEATURES,
        cut=BROADCAST,
    )


@dataclass(frozen=True)
class BroadcastLoop:
    """The axes of a result, neighbours that every operand treats alike folded together. Bit i of an operand's
    axes says that it moves along axis i. Where each has all elements or one there is no walk, no `extent`."""

    extent: TensorType | None
    axes: tuple[int, ...]
    features: tuple[str, ...]

    @property
    def axes_count(self) -> int:
        """The number of axes of the kernel's loop; 0 without a loop."""
        return len(self.extent.shape or ()) if self.extent else 0


def broadcast_loop_of(result: Shape, *operands: Shape) -> BroadcastLoop:
    """The walk over a result and the shapes that broadcast to it."""
    padded = [(1,) * (len(result) - len(shape)) + tuple(shape) for shape in operands]
    moves = [(tuple(shape[i] != 1 for shape in padded), d) for i, d in enumerate(result) if d != 1]
    folded = [(flags, product([d for _, d in run])) for flags, run in groupby(moves, key=lambda m: m[0])]
    if len(folded) > 1:
        axes = tuple(sum(flags[o] << i for i, (flags, _) in enumerate(folded)) for o in range(len(operands)))
        return BroadcastLoop(TensorType(FLOAT, tuple(d for _, d in folded)), axes, ("broadcast",))
    single = bool(folded) and not all(folded[0][0])
    return BroadcastLoop(None, (0,) * len(operands), ("scalar",) * single)


def joint_shape(ctx: OpContext) -> Shape:
    """The shape to which all inputs broadcast."""
    return broadcast_shapes(*(ctx.shape(i) for i in range(len(ctx.inputs))))


def joint_type(ctx: OpContext) -> Sequence[TensorType]:
    """For `Op.infer`: elements of input 0, over the shape to which all inputs broadcast."""
    return (TensorType(ctx.element(), joint_shape(ctx)),)


def kernel_element(kernel: KernelFunction, element: ElementType) -> ElementType:
    """The type under which a kernel works on `element`: where it has unsigned integers only, signs do not matter."""
    offered = kernel.types["T"]
    unsigned = storage_type(element) if element in INTEGERS else element
    return element if element in offered or unsigned not in offered else unsigned


def call_binary(
    kernel: KernelFunction, ctx: OpContext, left: int = 0, right: int = 1, result_as: str | None = None
) -> KernelCall:
    """`kernel` on the inputs `left` and `right` of the application `ctx`, or with the result so far (`result_as`) in
    place of the left one."""
    shape = ctx.result_shape()
    loop = broadcast_loop_of(shape, shape if result_as else ctx.shape(left), ctx.shape(right))
    return kernel.call(
        ctx.result(),
        result_as or ctx.name(left),
        ctx.name(right),
        loop.extent,
        types=(kernel_element(kernel, ctx.element()),) if kernel.types else (),
        params=loop.axes,
        features=tuple(f for f in loop.features if f in kernel.features),
    )


def lower_binary(kernel: KernelFunction) -> Callable[[OpContext], Sequence[KernelCall]]:
    """For `Op.lower` of two operands."""
    return lambda ctx: (call_binary(kernel, ctx),)


def call_chain(kernel: KernelFunction, ctx: OpContext) -> Sequence[KernelCall]:
    """y = f(x0, x1), then y = f(y, x2), ... for two inputs or more."""
    result = ctx.result()
    rest = (call_binary(kernel, ctx, right=i, result_as=result) for i in range(2, len(ctx.inputs)))
    return (call_binary(kernel, ctx), *rest)


_SHAPES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((), ()),
    ((1,), (1,)),
    ((7,), (7,)),
    ((2, 3, 5), (2, 3, 5)),
    ((33,), (1,)),
    ((1,), (33,)),
    ((4, 9), ()),
    ((1, 9), (9,)),
    ((5, 9), (9,)),
    ((9,), (5, 9)),
    ((5, 1), (5, 9)),
    ((5, 1), (1, 9)),
    ((2, 3, 4, 5), (3, 1, 1)),
    ((2, 3, 4, 5), (2, 1, 1, 5)),
    ((2, 1, 4, 1), (1, 3, 1, 5)),
    ((1, 1, 1), (2, 1, 3)),
    ((0, 3), (3,)),
    ((2, 1), (2, 0)),
)


def operands(random: np.random.Generator) -> Iterable[tuple[str, np.ndarray, np.ndarray]]:
    """For tests: pairs of arrays that broadcast, in every way that matters."""
    for a, b in _SHAPES:
        yield f"{list(a)} with {list(b)}", random.standard_normal(a), random.standard_normal(b)


def integer_operands(
    random: np.random.Generator, types: Iterable[ElementType] = INTEGERS
) -> Iterable[tuple[str, np.ndarray, np.ndarray]]:
    """For tests: pairs of arrays of each type over its whole range, zeros and the ends among them."""
    for element in types:
        limits = np.iinfo(element.dtype)
        for a_shape, b_shape in (((3, 5), (3, 5)), ((3, 5), (5,)), ((), (3, 1))):
            a, b = (
                random.integers(limits.min, limits.max, s, element.dtype, True) for s in (a_shape, b_shape)
            )
            small = random.integers(0, 9, b_shape).astype(element.dtype)
            yield f"{element.label} {list(a_shape)} with {list(b_shape)}", np.asarray(a), np.asarray(b)
            yield f"{element.label} {list(a_shape)} with small {list(b_shape)}", np.asarray(a), small
        ends = np.array([limits.min, limits.max, 0, 1, limits.min, limits.max], element.dtype)
        others = np.array(
            [limits.max, limits.max, 0, 0, -1 if limits.min else 1, 2], np.int64 if limits.min else np.uint64
        )
        yield f"{element.label} ends", ends, others.astype(element.dtype)
