"""ReduceSum and ReduceMean. Real numbers are summed here, whole ones in reduce_fold.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from minbuild.ir import Shape, TensorType
from minbuild.ir.dims import Dim, evaluate, product, symbols_in
from minbuild.ops.core.definition import (
    FLOATS,
    EqualLowering,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
)
from minbuild.ops.core.graph_builder import MICROSOFT, GradientBuilder
from minbuild.ops.core.value import Results
from minbuild.ops.reduction import reduce_fold as _fold
from minbuild.ops.reduction.reduction_axes import (
    axes_of,
    cases,
    expanded,
    groups_of,
    in_steps,
    infer,
    reference,
    spread,
)

reduce_kernel = KernelFunction(
    "reduce",
    ("y:T=", "x:T", "groups:extent"),
    params=("flags:int",),
    types={"T": FLOATS},
    features={
        "mean": "divides by the number of elements",
        "rows": "reduces over the last axes",
        "columns": "keeps the last axes",
        "long": "sums more than 1,024 elements in blocks",
    },
    hints=frozenset({"long"}),
)


_MEAN, _LONG = 1, 2  # kDivides, kInBlocks of the kernel
_BLOCK = 1024  # its kSumBlock


def _usual(count: Dim) -> int:
    """A count of elements, with 8 for every size that is free: whether sums are made in blocks must be the same in
    every build."""
    return evaluate(count, dict.fromkeys(symbols_in(count), 8))


def reduce_over(
    result: str,
    source: str,
    tensor: TensorType,
    axes: Iterable[int],
    *,
    mean: bool = False,
    accumulate: int = 0,
) -> KernelCall:
    """The kernel call that sums, or with `mean` averages, `source` of type `tensor` over `axes` into `result`;
    `accumulate` are the outputs that are added to, a bit each. Other operators use it too. Raises UnsupportedUse
    where reduced and kept axes alternate too often."""
    groups = groups_of(tensor.shape or (), axes)
    rows = groups[4] != 1
    long = _usual(groups[4] if rows else groups[2]) > _BLOCK
    asked = {"mean": mean, "rows": rows, "columns": not rows, "long": long}
    return reduce_kernel.call(
        result,
        source,
        TensorType(tensor.element, groups),
        types=(tensor.element,),
        params=(_MEAN * mean + _LONG * long,),
        features=tuple(name for name, used in asked.items() if used),
        accumulate=accumulate,
    )


def _accumulated(call: KernelCall, shape: Callable[[str], Shape]) -> Sequence[KernelCall] | None:
    """A buffer plus a value is the sum over one row that adds to what is there."""
    buffer, value = call.args
    if call.types[0] not in FLOATS or not isinstance(value, str):
        return None
    row = TensorType(call.types[0], (1, 1, 1, product(shape(value)), 1))
    return (
        reduce_kernel.call(
            *(buffer, value, row),
            types=call.types,
            params=(0,),
            features=("columns",),
            accumulate=call.accumulate,
        ),
    )


def _lower(mean: bool) -> Callable[[OpContext], Sequence[KernelCall]]:
    def lower(ctx: OpContext) -> Sequence[KernelCall]:
        if not ctx.element().is_real:
            return (_fold.call_fold(ctx, "mean" if mean else "sum"),)
        tensor = TensorType(ctx.element(), ctx.shape())
        axes = axes_of(ctx)
        return (
            reduce_over(ctx.result(), ctx.name(0), tensor, axes, mean=mean, accumulate=ctx.accumulate & 1),
        )

    return lower


def _sum_gradient(b: GradientBuilder) -> Results:
    return expanded(b, b.dy[0])


def _mean_gradient(b: GradientBuilder) -> Results:
    count = b.x[0].size() / b.y[0].size()
    each = b.microsoft("Scale", spread(b, b.dy[0]), count, scale_down=1)
    return each.expand_like(b.x[0])


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    yield from cases()(random)
    yield from _fold.whole_cases(_fold.SUMMED)(random)


def _mean(x: np.ndarray, **options: Any) -> np.ndarray:
    """As numpy's, in whole numbers for whole numbers, rounded towards zero."""
    if x.dtype.kind == "f":
        return np.asarray(np.mean(x, **options))
    count = max(x.size // max(np.sum(x, **options).size, 1), 1)
    return np.trunc(np.sum(x, dtype=np.float64, **options) / count).astype(x.dtype)


def _batched(ctx: OpContext) -> Iterable[int]:
    """Samples of a mean over all positions of an image, which is a global average pool, are computed one by one. It
    follows from the shapes: contents of axes are not known to passes."""
    result = ctx.results[0] if ctx.results else None
    if result is None or not result.element.is_real:
        return ()
    shape = ctx.shape()
    return (0,) if len(shape) > 2 and result.shape == (*shape[:2], *[1] * (len(shape) - 2)) else ()


def _op(name: str, mean: bool, since: tuple[int, ...], domain: str = "") -> Op:
    return Op(
        name,
        domain=domain,
        since=since,
        infer=infer,
        reference=reference(_mean if mean else np.sum),
        lower=_lower(mean),
        kernels=(reduce_kernel, _fold.integer_kernel),
        accumulates=frozenset({0}),
        decompose=in_steps("ReduceMean" if mean else "ReduceSum"),
        decomposes_to=("ReduceMean" if mean else "ReduceSum",),
        batched_inputs=_batched if mean else None,
        cases=_cases,
        gradient=_mean_gradient if mean else _sum_gradient,
    )


reduce_sum = _op("ReduceSum", False, (1, 11, 13))
reduce_sum_training = _op("ReduceSumTraining", False, (1,), MICROSOFT)
reduce_mean = _op("ReduceMean", True, (1, 11, 13, 18))

KERNELS = (reduce_kernel,)
OPS = (reduce_sum, reduce_sum_training, reduce_mean)
EQUALS = (
    EqualLowering(
        "accumulation-by-reduction",
        "Accumulation by ReduceSum",
        {"accumulate": _accumulated},
        (reduce_kernel,),
        needs=frozenset({"reduce"}),
    ),
)
