"""Strided copies from one tensor to another: the walk that kernels/ops/movement/strided_copy.cc follows.

Transpose, Slice, Pad, Tile and their like say for every axis of the result how far it goes and how it stands in
the result and in the source; what they have in common, and how axes fold into fewer, is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from minbuild.ir import ElementType, TensorType
from minbuild.ir.dims import Dim, product
from minbuild.ops.core.definition import (
    STORAGE_TYPES,
    KernelCall,
    KernelFunction,
    UnsupportedUse,
    storage_type,
)

MAX_RANK = 8  # of the device's tensors
_STANDS = 15  # in place of an axis: nothing moves there

move_kernel = KernelFunction(
    "move_elements",
    (
        "y:T=",
        "x:T",
        "walk:extent",
        "to:extent",
        "from:extent",
        "to_start:extent?",
        "from_start:extent?",
        "steps:extent?",
    ),
    params=("to_axes:int", "from_axes:int", "backwards:int", "steps_to:int"),
    types={"T": STORAGE_TYPES},
    features={"windows": "parts of tensors, and elements some steps apart"},
)


@dataclass(frozen=True)
class Along:
    """The range along an axis of `dim` elements: from `start` on, every `step`th (backwards where negative)."""

    dim: Dim
    start: Dim = 0
    step: int = 1

    def takes_all(self, size: Dim) -> bool:
        return self.step == 1 and self.start == 0 and self.dim == size


@dataclass(frozen=True)
class Axis:
    """`size` elements along one axis of the result; `source` is None where all are the same element."""

    size: Dim
    result: Along
    source: Along | None

    @property
    def trivial(self) -> bool:
        """True if there is only one place to be."""
        return self.size == 1 and self.result.dim == 1 and (self.source is None or self.source.dim == 1)

    @property
    def complete(self) -> bool:
        """True if every element along the axis moves, on both sides."""
        return self.result.takes_all(self.size) and (self.source is None or self.source.takes_all(self.size))


@dataclass(frozen=True)
class Movement:
    """All axes in the order of the result, and in which order the source has those that move there."""

    axes: tuple[Axis, ...]
    order: tuple[int, ...]

    def folded(self) -> Movement:
        """The same movement over as few axes as possible."""
        axes, order = list(self.axes), list(self.order)
        for i in reversed([i for i, axis in enumerate(axes) if axis.trivial]):
            del axes[i]
            order = [o - (o > i) for o in order if o != i]
        for i in reversed(range(len(axes) - 1)):
            both = _merged(axes[i], axes[i + 1])
            if both is None or (both.source is not None and not _follow(order, i)):
                continue
            axes[i : i + 2] = [both]
            order = [o - (o > i) for o in order if o != i + 1]
        return Movement(tuple(axes), tuple(order))


def _follow(order: Sequence[int], i: int) -> bool:
    """True if the source has axis i + 1 right behind axis i."""
    return order.index(i + 1) == order.index(i) + 1


def _merged(outer: Axis, inner: Axis) -> Axis | None:
    """Two neighbouring axes as one, where the inner one is complete on both sides."""
    if (outer.source is None) != (inner.source is None) or not inner.complete:
        return None
    if outer.result.step != 1 or (outer.source is not None and outer.source.step != 1):
        return None
    source = None if outer.source is None else _scaled(outer.source, inner.size)
    return Axis(outer.size * inner.size, _scaled(outer.result, inner.size), source)


def _scaled(along: Along, by: Dim) -> Along:
    return replace(along, dim=along.dim * by, start=along.start * by)


def whole(size: Dim) -> Axis:
    """An axis that moves as it is."""
    return Axis(size, Along(size), Along(size))


def straight(axes: Sequence[Axis]) -> Movement:
    """A movement that keeps the order of axes."""
    return Movement(tuple(axes), tuple(i for i, axis in enumerate(axes) if axis.source is not None))


def call_move(y: str, x: str, element: ElementType, movement: Movement) -> KernelCall:
    """The kernel call that makes `movement` of `x` into `y`, of elements of type `element`. Raises UnsupportedUse
    where it is too complicated for one walk."""
    folded = movement.folded()
    if not folded.axes:
        folded = straight([whole(1)])
    axes, order = folded.axes, folded.order
    if len(axes) > MAX_RANK:
        raise UnsupportedUse(
            f"it moves along {len(axes)} axes that cannot be joined; {MAX_RANK} are possible"
        )
    sources = [axes[i].source or Along(1) for i in order] or [Along(1)]
    results = [axis.result for axis in axes]
    paces = [a.source.step if a.source and a.source.step != 1 else a.result.step for a in axes]
    args = (
        _extent([a.size for a in axes]),
        _extent([a.dim for a in results]),
        _extent([a.dim for a in sources]),
        _extent([a.start for a in results], unless=0),
        _extent([a.start for a in sources], unless=0),
        _extent([min(abs(p), 2**30) for p in paces], unless=1),
    )
    backwards = sum(1 << i for i, p in enumerate(paces) if p < 0)
    moves = [order.index(i) if a.source is not None else _STANDS for i, a in enumerate(axes)]
    params = (_nibbles(range(len(axes))), _nibbles(moves), backwards, any(a.step != 1 for a in results))
    whole_layouts = product([a.size for a in axes]) == product([a.dim for a in results])
    plain = whole_layouts and not any(args[3:]) and not backwards and all(_all_of(a) for a in axes)
    return move_kernel.call(
        y, x, *args, types=(storage_type(element),), params=params, features=() if plain else ("windows",)
    )


def _all_of(axis: Axis) -> bool:
    return axis.source is None or axis.source.takes_all(axis.size)


def _extent(dims: Sequence[Dim], unless: int | None = None) -> TensorType | None:
    """Numbers that the device computes; None where all are what they are anyway."""
    return None if all(d == unless for d in dims) else TensorType(ElementType.UINT8, tuple(dims))


def _nibbles(numbers: Sequence[int] | range) -> int:
    """Four bits each, as an int32."""
    packed = sum(n << 4 * i for i, n in enumerate(numbers))
    return packed - (1 << 32) if packed >= 1 << 31 else packed


KERNELS = (move_kernel,)
OPS: tuple[()] = ()
