"""The variants of inner loops that a library has, where that follows from the sizes of its models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from minbuild.ir import Plan
from minbuild.options.build_options import ALL, AUTO, ONE, BuildOptions
from minbuild.planning.compiled_model import CompiledModel

# Elements of the largest tensor: up to here a step takes as long with one variant of each loop. Nets with tensors of
# 128 took 0.98 to 1.02 of the time on x86-64, of 256 1.36 times, of 1,024 1.85 times.
FEW_ELEMENTS = 128


def with_loop_variants(
    models: Sequence[CompiledModel], build_options: BuildOptions, others: bool = False
) -> BuildOptions:
    """`build_options` with the value that `--loop-variants auto` comes to for a library of these `models`: one, where
    none of them has a size that is free or a tensor with many elements. A library that runs `others`, too, has all."""
    if build_options.loop_variants != AUTO:
        return build_options
    wanted = others or ALL in (build_options.kernel_features, build_options.shape_ops)
    small = not wanted and all(_is_small(m.plan) for m in models)
    return replace(build_options, loop_variants=ONE if small else ALL)


def _is_small(plan: Plan) -> bool:
    """True if all sizes of a plan are known and its tensors have few elements."""
    sizes = [d for tensor in plan.tensors for d in tensor.shape]
    if plan.symbols or not all(isinstance(d, int) for d in sizes):
        return False
    return all(prod(d for d in t.shape if isinstance(d, int)) <= FEW_ELEMENTS for t in plan.tensors)
