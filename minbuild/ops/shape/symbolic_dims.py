"""Sizes: free dimensions as numbers, for operators that compute with them on the device.

`passes/lowering/materialize_symbolic_dims.py` inserts it.
"""

from __future__ import annotations

from collections.abc import Sequence

from minbuild.ir import TensorType
from minbuild.ops.core.definition import INT64, KernelCall, KernelFunction, Op, OpContext, same_as

sizes_kernel = KernelFunction("sizes", ("y:T=", "x:extent"), types={"T": (INT64,)})


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    tensor = TensorType(INT64, ctx.dims(0))
    return (sizes_kernel.call(ctx.result(), tensor, types=(INT64,)),)


sizes = Op("Sizes", domain="minbuild", infer=same_as(0), lower=_lower, kernels=(sizes_kernel,))

KERNELS = (sizes_kernel,)
OPS = (sizes,)
