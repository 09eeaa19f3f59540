"""Shape rules that many operators share: broadcasting, axes, results of the type of an input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from minbuild.ir import Shape, TensorType
from minbuild.ir.dims import Dim
from minbuild.ops.core.context import OpContext, ShapeMismatch

ShapeRule = Callable[[OpContext], Sequence[TensorType]]


def same_as(i: int = 0) -> ShapeRule:
    """One output with the type of input `i`."""

    def infer(ctx: OpContext) -> Sequence[TensorType]:
        return (TensorType(ctx.element(i), ctx.shape(i)),)

    return infer


def in_shape_of(i: int, element: int = 0) -> ShapeRule:
    """One output with the element type of input `element` and the shape that input `i` holds, a vector of sizes."""

    def infer(ctx: OpContext) -> Sequence[TensorType]:
        return (TensorType(ctx.element(element), ctx.dims(i)),)

    return infer


def require_equal(left: Dim, right: Dim, text: str) -> None:
    """Raises ShapeMismatch where the sizes `left` and `right` differ, with `text` in front of the two."""
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
