"""A convolution as its kernels see it: which of them computes it, with which features and how much scratch memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minbuild.ir import ElementType, Shape, TensorType
from minbuild.ir.dims import Dim, dim_min, never_negative, product
from minbuild.ir.kernel_choice import KernelChoice
from minbuild.ops.convolution.conv_params import (
    INPUT_GRADIENT,
    OUTPUT,
    PLACED_OUTPUTS,
    WEIGHT_GRADIENT,
    images_of_pass,
)
from minbuild.ops.convolution.sliding_window import Axis, axes, known
from minbuild.ops.core.definition import OpContext, UnsupportedUse
from minbuild.ops.linear_algebra.gemm_packing import packed_bytes

MADE_ELEMENTS, _MADE_COLUMNS, _BEYOND, _BEYOND_PANELS = 1 << 16, 512, 16, 512  # as in lib/nn/packed_conv.h
_TILE_COLUMNS = 32  # of packed products, float by AVX-512
# As in lib/nn/output_order.h and packed_conv.h.
MOST_PADDED, _MOST_TAPS, _UNIT, _MOST_GROUPS, _UNIT_BYTES, _RUN_BYTES, _TALLEST = 512, 32, 16, 8, 8, 20, 8
_FEW_PANELS = 8  # of packed products, that half a panel less makes much faster
LARGE_WORK = 1 << 22  # multiplications per image, where packing gains most
_SOME_WORK = 1 << 16  # and where it gains
_WHOLE = 16  # elements that rows of the outputs' grid are a multiple of


def conv_window(attributes: Mapping[str, Any], x: Shape, w: Shape) -> tuple[Axis, ...]:
    """The spatial axes of a convolution with these `attributes`; `x` and `w` are the shapes of images and weights.
    Raises UnsupportedUse where they do not fit each other or the weights have no fixed shape."""
    if len(w) != len(x) or not 3 <= len(x) <= 5:
        raise UnsupportedUse(
            f"convolves {list(x)} with {list(w)}; only one to three spatial axes are supported"
        )
    taps = [d for d in w[2:] if isinstance(d, int)]
    if len(taps) != len(w) - 2 or not isinstance(w[0], int) or not isinstance(w[1], int):
        raise UnsupportedUse(f"the shape of its weights, {list(w)}, must be known when the trainer is built")
    if tuple(attributes.get("kernel_shape", taps)) != tuple(taps):
        raise UnsupportedUse(f"kernel_shape {attributes['kernel_shape']} disagrees with weights {list(w)}")
    return axes(attributes, x[2:], taps)


@dataclass(frozen=True)
class Layer:
    """A convolution as its kernels see it: their choice, their parameters, and the scratch memory that conv.cc lays
    out."""

    element: ElementType
    groups: int
    channels: int  # per group
    filters: int
    axes: tuple[Axis, ...]
    batch: Dim
    kernels: KernelChoice
    function: str = "conv"  # of the kernel that does not pack
    exchanges_another: bool = False  # it is a packed layer whose inputs and outputs have changed places

    @classmethod
    def of(cls, ctx: OpContext, x: Shape, w: Shape) -> Layer:
        """The convolution that `ctx` computes, of x in shape `x` with weights in shape `w`."""
        return cls.over(ctx, w, conv_window(ctx.attributes, x, w))

    @classmethod
    def over(cls, ctx: OpContext, w: Shape, window: tuple[Axis, ...]) -> Layer:
        """The convolution with these weights that an operator computes, or whose gradient it computes. `ctx` is the
        operator's, `w` the shape of the weights, `window` has an entry per spatial axis."""
        groups = int(ctx.attribute("group", 1))
        return cls(
            ctx.element(),
            groups=groups,
            channels=known(w[1]),
            filters=known(w[0]) // groups,
            axes=window,
            batch=ctx.shape()[0],
            kernels=ctx.kernels,
        )

    @property
    def depthwise(self) -> bool:
        return self.groups > 1 and self.channels == self.filters == 1 and not self.pointwise

    @property
    def pointwise(self) -> bool:
        return all(a.plain and a.taps == 1 for a in self.axes)

    @property
    def strided(self) -> bool:
        return any(a.stride > 1 for a in self.axes)

    @property
    def taps(self) -> int:
        return int(np.prod([a.taps for a in self.axes]))

    def scratch(self) -> TensorType:
        """One image of x as padded phases, its outputs on the grid of a phase, and where each tap begins."""
        if self.pointwise:
            return TensorType(ElementType.UINT8, (0,))
        lengths = [a.outputs + a.extra for a in self.axes]
        phases = int(np.prod([a.phases for a in self.axes]))
        planes = product(lengths) * (self.channels * phases) + _WHOLE
        grid = (self.axes[0].outputs * product(lengths[1:]) + _WHOLE) * self.filters
        return TensorType(ElementType.UINT8, ((planes + grid) * self.element.size + self.taps * 4,))

    @property
    def packs(self) -> bool:
        """True from the size on at which packing was measured to gain enough, if the plan has both kernels."""
        if self.exchanges_another:
            return True
        outputs, depth = product([a.outputs for a in self.axes]), self.channels * self.taps
        if self.depthwise or not isinstance(outputs, int):
            return False
        least = LARGE_WORK if self.kernels.largest is None else _SOME_WORK
        pays = min(self.filters, depth) >= 16 and depth * self.filters * outputs >= least
        return self.kernels.takes(f"{self.function}_packed", self.function, pays=pays)

    def exchanges(self, propagation: int) -> bool:
        """True of input gradients that are computed as outputs of another convolution, as packed_conv.h says."""
        if propagation != INPUT_GRADIENT or not self.packs or self.taps == 1:
            return False
        if not self.kernels.has("conv.exchanged"):
            return False
        image = product([a.size for a in self.axes])
        often = isinstance(image, int) and 2 * image * images_of_pass(image) >= self.filters
        return often and all(a.stride == 1 and a.before <= a.span for a in self.axes)

    def images_of_pass(self, image: int) -> int:
        """Images that pass at once: one that is large enough is multiplied as it lies in memory."""
        return 1 if self.pointwise and image >= PLACED_OUTPUTS else images_of_pass(image)

    def has_half_panels(self, propagation: int) -> bool:
        """True if the outputs of a pass, or the inputs of one whose roles are exchanged, half fill their last tile."""
        if self.exchanges(propagation):
            return self.exchanged().has_half_panels(OUTPUT)
        image, depth = product([a.outputs for a in self.axes]), self.channels * self.taps
        if propagation == WEIGHT_GRADIENT and self.packs and not self.pointwise:
            return depth <= _FEW_PANELS * _TILE_COLUMNS and _half_fills(depth)
        if propagation != OUTPUT or not self.packs or not isinstance(image, int):
            return False
        if self.leaves_padding_out(propagation):  # each of its panels is as wide as it asks for
            return False
        images = self.images_of_pass(image)
        if isinstance(self.batch, int):
            images = min(images, self.batch)
        if self.pointwise and images == 1:  # the image is multiplied as it lies in memory
            return False
        return _half_fills(image * images)

    @property
    def moves_pairs(self) -> bool:
        """True if neighbours along a line are in turn in two planes."""
        last = self.axes[-1]
        return self.packs and len(self.axes) == 2 and last.stride == 2 and last.span > 0

    def fills_patches(self, propagation: int) -> bool:
        """True if neighbours along a line are in turn in as many planes as the window moves by, a multiple of four."""
        last = self.axes[-1]
        whole = last.stride % 4 == 0 and last.phases == last.stride
        return self.packs and len(self.axes) == 2 and whole and propagation != INPUT_GRADIENT

    def has_wide_images(self, propagation: int) -> bool:
        """True if tiles collect the panels of outputs, or of inputs whose roles are exchanged, from a row or two."""
        if self.exchanges(propagation):
            return self.exchanged().has_wide_images(OUTPUT)
        width = self.axes[-1].outputs
        if (
            propagation != OUTPUT
            or not self.packs
            or not isinstance(width, int)
            or self.leaves_padding_out(propagation)
        ):
            return False
        return not self.pointwise and width >= _TILE_COLUMNS // 2

    def leaves_padding_out(self, propagation: int) -> bool:
        """True of outputs whose products leave padding out, as packed_conv.h says."""
        if self.exchanges(propagation):
            return self.exchanged().leaves_padding_out(OUTPUT)
        image = product([a.outputs for a in self.axes])
        if propagation != OUTPUT or not self.packs or not isinstance(image, int) or len(self.axes) != 2:
            return False
        if image > MOST_PADDED or self.taps > _MOST_TAPS or not self.kernels.has("conv.padded"):
            return False
        return any(
            a.before > 0 or (known(a.outputs) - 1) * a.stride + a.span >= known(a.size) + a.before
            for a in self.axes
        )

    def exchanged(self) -> Layer:
        """That convolution: channels and filters, inputs and outputs have changed places."""
        axes = tuple(
            replace(a, size=a.outputs, before=a.span - a.before, after=a.size - a.outputs + a.before)
            for a in self.axes
        )
        return replace(self, channels=self.filters, filters=self.channels, axes=axes, exchanges_another=True)

    def packed_scratch(self, propagation: int, *, quantized: bool = False) -> TensorType:
        """As packed_conv.h lays it out: places of taps, the order of outputs, planes of the images of a pass, their
        outputs side by side, rows of X, packed blocks. `propagation` says which tensor is computed,
        `quantized` that weights keep their bytes, so that outputs keep their own order."""
        if self.exchanges(propagation):
            return self.exchanged().packed_scratch(OUTPUT, quantized=quantized)
        image = product([a.outputs for a in self.axes])
        assert isinstance(image, int)
        images: Dim = self.images_of_pass(image)
        if isinstance(self.batch, int) or self.kernels.has("Min"):
            images = dim_min(self.batch, images)
        in_place = self.pointwise and images == 1
        phases = int(np.prod([a.phases for a in self.axes]))
        planes = images * product([a.outputs + a.extra for a in self.axes]) * (self.channels * phases)
        planes = 0 if in_place else planes
        gathered = images * (image * self.filters) if self.images_of_pass(image) > 1 else 0
        outputs, depth = images * image, self.channels * self.taps
        ordered: Dim = 0
        if not quantized and self.leaves_padding_out(propagation):
            units = outputs // _UNIT + (_MOST_GROUPS + 1)
            runs = images * (known(self.axes[0].outputs) * (2 * self.axes[1].taps + 1)) + units
            ordered = units * _UNIT_BYTES + runs * _RUN_BYTES + 16
            outputs = units * _UNIT
            gathered = outputs * (self.filters + _TALLEST)
        sizes: tuple[Dim, Dim, Dim] = (self.filters, outputs, depth)
        made: Dim = 0
        if propagation == WEIGHT_GRADIENT:
            sizes = (self.filters, depth, outputs)
        elif propagation == INPUT_GRADIENT:
            columns = outputs if in_place else dim_min(outputs, _MADE_COLUMNS)
            made = 0 if in_place else max(MADE_ELEMENTS, self.taps * _MADE_COLUMNS)
            sizes = (depth, columns, self.filters)
        rest = self.taps * 4 + 16 + packed_bytes(self.element, *sizes) + _BEYOND_PANELS
        return TensorType(
            ElementType.UINT8, ((planes + gathered + made + _BEYOND) * self.element.size + ordered + rest,)
        )

    def may_have(self, scratch: TensorType, propagation: int) -> bool:
        """True if memory has room for the `scratch` of a kernel of its own, or the one that the layer takes otherwise
        has no less. `propagation` says which tensor is computed."""
        other = self.packed_scratch(propagation) if self.packs else self.scratch()
        needed = known(product(scratch.shape or ()))
        return self.kernels.affords(needed) or never_negative(product(other.shape or ()) - needed)

    def params(self) -> list[int]:
        padded = (Axis(1, taps=1, stride=1, before=0, after=0, dilation=1),) * (
            3 - len(self.axes)
        ) + self.axes
        words = [(a.stride, a.before, a.dilation) for a in padded]
        return [self.groups] + [word for row in zip(*words, strict=True) for word in row]

    def features(self, **others: bool) -> tuple[str, ...]:
        asked = {
            "pointwise": self.pointwise,
            "depthwise": self.depthwise,
            "groups": self.groups > 1,
            "strides": self.strided,
            "dilations": any(a.dilation > 1 for a in self.axes),
            "volume": len(self.axes) == 3,
            "lines": len(self.axes) == 1,
        }
        return tuple(name for name, used in (asked | others).items() if used)


def _half_fills(columns: int) -> bool:
    return 0 < columns % _TILE_COLUMNS <= _TILE_COLUMNS // 2


OPS: tuple[()] = ()
