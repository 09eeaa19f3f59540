"""Sizes: free dimensions as numbers, for operators that compute with them on the device.

`passes/lowering/materialize_symbolic_dims.py` inserts it.
"""

from __future__ import annotations

from collections.abc import Sequence

from minbuild.ir import TensorType
from minbuild.ops.core.definition import INT64, KernelFunction, Launch, Op, Site, same_as

sizes_kernel = KernelFunction("sizes", ("y:T=", "x:extent"), types={"T": (INT64,)})


def _select(site: Site) -> Sequence[Launch]:
    tensor = TensorType(INT64, site.dims(0))
    return (sizes_kernel.launch(site.result(), tensor, types=(INT64,)),)


sizes = Op("Sizes", domain="minbuild", infer=same_as(0), select=_select)
