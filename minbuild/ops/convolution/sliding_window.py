"""Where a window that moves over an image stands: strides, padding, dilation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product as combinations
from typing import Any

from minbuild.ir import ElementType, Shape, TensorType
from minbuild.ir.dims import Dim, ceil_div, dim_max, dim_min, product
from minbuild.ops.core.definition import OpContext, UnsupportedUse
from minbuild.ops.core.graph_builder import GraphBuilder
from minbuild.ops.core.value import Value

ArrayIndex = tuple[Any, ...]  # of an array: what a tap reads, or what is inside of padding


@dataclass(frozen=True)
class Axis:
    """One spatial axis: output o sees input o * stride + tap * dilation - before. With `ceil` the last window may
    reach over the padded end, but not start there."""

    size: Dim
    taps: int
    stride: int
    before: int
    after: Dim
    dilation: int
    ceil: bool = False

    @property
    def span(self) -> int:
        return self.dilation * (self.taps - 1)

    @property
    def outputs(self) -> Dim:
        room = self.size + self.before + self.after - self.span - 1
        if not self.ceil:
            return room // self.stride + 1
        return dim_min(ceil_div(room, self.stride) + 1, ceil_div(self.size + self.before, self.stride))

    @property
    def extra(self) -> int:
        """The excess length of an input phase over the outputs."""
        return self.span // self.stride

    @property
    def phases(self) -> int:
        """The number of input phases that the taps read."""
        return min(self.stride, self.span + 1)

    @property
    def plain(self) -> bool:
        return self.stride == 1 and self.before == 0 and self.after == 0


def axes(attributes: Mapping[str, Any], sizes: Shape, taps: Sequence[int]) -> tuple[Axis, ...]:
    """The spatial axes of an input of these sizes under a window of `taps`, with `auto_pad` worked out. `attributes`
    are the operator's, `sizes` those of the spatial axes."""
    count = len(taps)
    strides = tuple(attributes.get("strides", ())) or (1,) * count
    dilations = tuple(attributes.get("dilations", ())) or (1,) * count
    mode = attributes.get("auto_pad", "NOTSET")
    pads = tuple(attributes.get("pads", ())) if mode == "NOTSET" else ()
    pads = pads or (0,) * (2 * count)
    if {len(sizes), len(strides), len(dilations), len(pads) / 2} != {count}:
        raise UnsupportedUse(
            f"strides, dilations or pads do not fit a window of {list(taps)} over {list(sizes)}"
        )
    ceil = bool(attributes.get("ceil_mode", 0)) and mode in ("NOTSET", "VALID")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        each = [_same_pads(*axis, mode) for axis in zip(sizes, taps, strides, dilations, strict=True)]
        pads = tuple(p[0] for p in each) + tuple(p[1] for p in each)
    columns = (sizes, taps, strides, pads[:count], pads[count:], dilations, (ceil,) * count)
    return tuple(Axis(*row) for row in zip(*columns, strict=True))


def _same_pads(size: Dim, taps: int, stride: int, dilation: int, mode: str) -> tuple[int, int]:
    """Padding that gives ceil(size / stride) outputs; an odd one goes to the end with SAME_UPPER.
    (ORT forgets dilations here.)"""
    total = dim_max((ceil_div(size, stride) - 1) * stride + dilation * (taps - 1) + 1 - size, 0)
    if not isinstance(total, int):
        raise UnsupportedUse(f"auto_pad {mode} needs spatial sizes that are known when the trainer is built")
    return split_padding(total, mode)


def split_padding(total: int, mode: str) -> tuple[int, int]:
    """Padding of `total` elements before and after; an odd one goes to the end with SAME_UPPER."""
    small, large = total // 2, total - total // 2
    return (small, large) if mode == "SAME_UPPER" else (large, small)


def explicit_pads(attributes: Mapping[str, Any], window: Sequence[Axis]) -> dict[str, Any]:
    """The attributes with `auto_pad` replaced by the padding it stands for (whose gradients ORT gets wrong)."""
    kept = {name: value for name, value in attributes.items() if name != "auto_pad"}
    return kept | {"pads": tuple(a.before for a in window) + tuple(int(a.after) for a in window)}  # type: ignore[arg-type]


def reshaped(b: GraphBuilder, x: Value, dims: Sequence[Dim]) -> Value:
    """`x` with these dimensions; one may be symbolic, and the first as well where it is that of `x`. `b` is the
    graph, `dims` are all dimensions."""
    words = [d if isinstance(d, int) else -1 for d in dims]
    if words.count(-1) > 1 and words[0] == -1:
        words[0] = 0  # as it is
    if words.count(-1) > 1:
        raise UnsupportedUse(
            f"the shape {list(dims)} must be known but for one dimension when the trainer is built"
        )
    return x.reshape(words)


# --------------------------------------------------------------------------------------------------- pooling

WINDOW_PARAMS = tuple(
    f"{name}_{axis}:int" for axis in "dhw" for name in ("taps", "stride", "pad", "dilation")
)


def pool_axes(ctx: OpContext, sizes: Shape) -> tuple[Axis, ...]:
    """The windows of a pooling operator over an input of shape `sizes`, [N,C,...]."""
    if not 3 <= len(sizes) <= 5:
        raise UnsupportedUse(f"pools {len(sizes) - 2} spatial axes; only one to three are supported")
    if "kernel_shape" not in ctx.attributes:
        raise UnsupportedUse("it has no kernel_shape. Give the window's size")
    return axes(ctx.attributes, sizes[2:], tuple(ctx.attributes["kernel_shape"]))


def pooled_shape(ctx: OpContext) -> Shape:
    """The shape of the result of a pooling operator on input 0."""
    shape = ctx.shape()
    return (*shape[:2], *(a.outputs for a in pool_axes(ctx, shape)))


def window_params(window: Sequence[Axis]) -> list[int]:
    """`WINDOW_PARAMS` of these axes, leading ones that are missing as windows of one element."""
    words = [(a.taps, a.stride, a.before, a.dilation) for a in window]
    return [word for axis in [(1, 1, 0, 1)] * (3 - len(words)) + words for word in axis]


def as_volumes(shape: Shape) -> TensorType:
    """[N,C,...] as [planes,D,H,W]; axes that are missing count as D or H of one."""
    planes, *rest = product(shape[:2]), *shape[2:]
    return TensorType(ElementType.UINT8, (planes, *(1,) * (3 - len(rest)), *rest))


def padding_of(window: Sequence[Axis]) -> list[tuple[int, int]]:
    """numpy's padding of a [N,C,...] array so that every tap of every window sees something."""
    pads = [(0, 0), (0, 0)]
    for a in window:
        need = (known(a.outputs) - 1) * a.stride + a.span + 1
        pads.append((a.before, max(0, known(a.after), need - a.before - known(a.size))))
    return pads


def taps_of(window: Sequence[Axis]) -> Iterator[tuple[ArrayIndex, ArrayIndex]]:
    """For every tap its place in the window, and what all windows see through it of the padded input."""
    for tap in combinations(*(range(a.taps) for a in window)):
        field = tuple(
            slice(t * a.dilation, t * a.dilation + (known(a.outputs) - 1) * a.stride + 1, a.stride)
            for t, a in zip(tap, window, strict=True)
        )
        yield (..., *tap), (..., *field)


def unpadded(shape: Sequence[int], pads: Sequence[tuple[int, int]]) -> ArrayIndex:
    """The index that cuts the padding off again."""
    return tuple(slice(before, before + size) for (before, _), size in zip(pads, shape, strict=True))


def known(dim: Dim) -> int:
    """A dimension that is not free."""
    assert isinstance(dim, int)
    return dim


OPS: tuple[()] = ()
