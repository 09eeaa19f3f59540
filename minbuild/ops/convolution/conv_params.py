"""Arguments, parameters and work that all kernels of convolutions have in common."""

from __future__ import annotations

from collections.abc import Sequence

from minbuild.ir import Shape
from minbuild.ir.dims import Dim, product

OUTPUT, INPUT_GRADIENT, WEIGHT_GRADIENT = range(3)  # the tensor that the kernel computes
ARGS = ("out:T=", "a:T", "b:T", "bias:T?", "bytes:scratch")
PARAMS = ("propagation:int", "groups:int") + tuple(
    f"{name}_{axis}:int" for name in ("stride", "pad", "dilation") for axis in "dhw"
)
# As in lib/nn/packed_conv.h: outputs of a pass at least, and of an image that passes alone where it lies in memory.
PASS_OUTPUTS, PLACED_OUTPUTS = 256, 128


def multiplications(params: Sequence[int], shapes: Sequence[Shape]) -> Dim:
    """Outputs, each from all weights of its filter: arguments are the one computed, then the others of (y, x, w)."""
    y, weights = shapes[0 if params[0] == OUTPUT else 2 if params[0] == WEIGHT_GRADIENT else 1], shapes[2]
    if params[0] == WEIGHT_GRADIENT:
        weights = shapes[0]
    return product(y) * product(weights[1:])


def images_of_pass(image: int) -> int:
    """The images, of `image` elements a channel, that pass at once in packed_conv.h: a power of two, as most batches
    are, with PASS_OUTPUTS elements at least."""
    return 1 << (-(-PASS_OUTPUTS // image) - 1).bit_length()


OPS: tuple[()] = ()
