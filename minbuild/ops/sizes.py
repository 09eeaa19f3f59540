"""Sizes: free dimensions as numbers, for what computes with them on the device (passes/sizes_as_data.py)."""

from __future__ import annotations

from collections.abc import Sequence

from minbuild.model import TensorType
from minbuild.ops.definition import INT64, KernelFunction, Launch, Op, Site, same_as

sizes_kernel = KernelFunction("sizes", ("y:T=", "x:extent"), types={"T": (INT64,)})


def _select(site: Site) -> Sequence[Launch]:
    tensor = TensorType(INT64, site.dims(0))
    return (sizes_kernel.launch(site.result(), tensor, types=(INT64,)),)


sizes = Op("Sizes", domain="minbuild", infer=same_as(0), select=_select)
