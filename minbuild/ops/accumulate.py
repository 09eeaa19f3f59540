"""InPlaceAccumulatorV2: adds a gradient to its buffer, or replaces the buffer after a reset."""

from __future__ import annotations

from collections.abc import Sequence

from minbuild.model import TensorType
from minbuild.ops.definition import BOOL, FLOATS, KernelFunction, Launch, Op, Site

accumulate_kernel = KernelFunction("accumulate", ("buffer:T=", "value:T"), types={"T": FLOATS})


def _infer(site: Site) -> Sequence[TensorType]:
    return (TensorType(BOOL, (1,)),)


def _select(site: Site) -> Sequence[Launch]:
    # The buffer is input 0 of the node and output 0 of the kernel, which the accumulate pass sees to.
    return (accumulate_kernel.launch(site.result(), site.name(0), types=(site.element(),), accumulate=1),)


accumulator = Op("InPlaceAccumulatorV2", domain="com.microsoft", infer=_infer, updates={0: None})
# What the accumulate pass leaves where the kernel that makes a gradient cannot add it to the buffer itself.
add_to_gradient = Op(
    "AddToGradient",
    domain="minbuild",
    infer=lambda site: (TensorType(site.element(), site.shape()),),
    select=_select,
)
