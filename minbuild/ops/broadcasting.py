"""How kernels of shared/broadcast.h walk over operands of different shapes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from minbuild.dims import product
from minbuild.model import Shape, TensorType
from minbuild.ops.definition import FLOAT, KernelFunction, Launch, Site

FEATURES = {"broadcast": "operands of different shapes", "scalar": "operands of one element"}
WALK = "walk:extent?"  # argument 3 of such a kernel
AXES = ("a_axes", "b_axes")  # and its first two parameters


@dataclass(frozen=True)
class Walk:
    """The axes of a result, neighbours that every operand treats alike folded together. Bit i of an operand's
    axes says that it moves along axis i. Where each has all elements or one there is no walk, no `extent`."""

    extent: TensorType | None
    axes: tuple[int, ...]
    features: tuple[str, ...]

    @property
    def axes_count(self) -> int:
        """How many axes the kernel walks over; 0 where there is no walk."""
        return len(self.extent.shape or ()) if self.extent else 0


def walk_over(result: Shape, *operands: Shape) -> Walk:
    """The walk over a result and the shapes that broadcast to it."""
    padded = [(1,) * (len(result) - len(shape)) + tuple(shape) for shape in operands]
    moves = [(tuple(shape[i] != 1 for shape in padded), d) for i, d in enumerate(result) if d != 1]
    folded = [(flags, product([d for _, d in run])) for flags, run in groupby(moves, key=lambda m: m[0])]
    if len(folded) > 1:
        axes = tuple(sum(flags[o] << i for i, (flags, _) in enumerate(folded)) for o in range(len(operands)))
        return Walk(TensorType(FLOAT, tuple(d for _, d in folded)), axes, ("broadcast",))
    single = bool(folded) and not all(folded[0][0])
    return Walk(None, (0,) * len(operands), ("scalar",) * single)


def launch_binary(
    kernel: KernelFunction, site: Site, left: int = 0, right: int = 1, result_as: str | None = None
) -> Launch:
    """`kernel` on two inputs of a node, or with the result so far (`result_as`) in place of the left one."""
    shape = site.result_shape()
    walk = walk_over(shape, shape if result_as else site.shape(left), site.shape(right))
    return kernel.launch(
        site.result(),
        result_as or site.name(left),
        site.name(right),
        walk.extent,
        types=(site.element(),) if kernel.types else (),
        params=walk.axes,
        features=tuple(f for f in walk.features if f in kernel.features),
    )
