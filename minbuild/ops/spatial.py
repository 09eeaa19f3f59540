"""Where a window that moves over an image stands: strides, padding, dilation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minbuild.dims import Dim, ceil_div, dim_max
from minbuild.model import Shape
from minbuild.ops.definition import Unknown


@dataclass(frozen=True)
class Axis:
    """One spatial axis: output o sees input o * stride + tap * dilation - before."""

    size: Dim
    taps: int
    stride: int
    before: int
    after: int
    dilation: int

    @property
    def reach(self) -> int:
        return self.dilation * (self.taps - 1)

    @property
    def outputs(self) -> Dim:
        return (self.size + (self.before + self.after - self.reach - 1)) // self.stride + 1

    @property
    def extra(self) -> int:
        """How much longer than the outputs a phase of the input is."""
        return self.reach // self.stride

    @property
    def phases(self) -> int:
        """How many phases of the input the taps look at."""
        return min(self.stride, self.reach + 1)

    @property
    def plain(self) -> bool:
        return self.stride == 1 and self.before == 0 and self.after == 0


def axes(attributes: Mapping[str, Any], sizes: Shape, taps: Sequence[int]) -> tuple[Axis, ...]:
    """The spatial axes of an input of these sizes under a window of `taps`, with `auto_pad` worked out."""
    count = len(taps)
    strides = tuple(attributes.get("strides", ())) or (1,) * count
    dilations = tuple(attributes.get("dilations", ())) or (1,) * count
    mode = attributes.get("auto_pad", "NOTSET")
    pads = tuple(attributes.get("pads", ())) if mode == "NOTSET" else ()
    pads = pads or (0,) * (2 * count)
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        each = [_same_pads(*axis, mode) for axis in zip(sizes, taps, strides, dilations, strict=True)]
        pads = tuple(p[0] for p in each) + tuple(p[1] for p in each)
    return tuple(map(Axis, sizes, taps, strides, pads[:count], pads[count:], dilations))


def _same_pads(size: Dim, taps: int, stride: int, dilation: int, mode: str) -> tuple[int, int]:
    """Padding that gives ceil(size / stride) outputs; an odd one goes to the end with SAME_UPPER.
    (ORT forgets dilations here.)"""
    total = dim_max((ceil_div(size, stride) - 1) * stride + dilation * (taps - 1) + 1 - size, 0)
    if not isinstance(total, int):
        raise Unknown(f"auto_pad {mode} needs spatial sizes that are known when the trainer is built")
    small, large = total // 2, total - total // 2
    return (small, large) if mode == "SAME_UPPER" else (large, small)
