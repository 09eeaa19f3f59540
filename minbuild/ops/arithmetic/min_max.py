"""Max and Min of any number of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from minbuild.ir.dims import dim_max, dim_min
from minbuild.ops.core.broadcasting import (
    binary_kernel,
    call_chain,
    integer_operands,
    joint_shape,
    joint_type,
    operands,
)
from minbuild.ops.core.definition import (
    NUMBERS,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
)
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results

maximum_kernel = binary_kernel("maximum", NUMBERS)
minimum_kernel = binary_kernel("minimum", NUMBERS)


def _lower(kernel: KernelFunction) -> Callable[[OpContext], Sequence[KernelCall]]:
    return lambda ctx: call_chain(kernel, ctx)


def _body(b: GraphBuilder) -> Results:
    return b.x if len(b.x) == 1 else None


def _reference(
    function: Callable[[Any, Any], Any], of_dims: Callable[[Any, Any], Any]
) -> Callable[..., np.ndarray]:
    def reference(attributes: Mapping[str, Any], *terms: np.ndarray) -> np.ndarray:
        dims = any(x.dtype == object for x in terms)
        return np.asarray(reduce(np.frompyfunc(of_dims, 2, 1) if dims else function, terms))

    return reference


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for name, a, b in operands(random):
        yield TestCase(name, (a, b), ulps=0)
    for name, a, b in integer_operands(random):
        yield TestCase(name, (a, b))
    for shapes in (((7,),), ((3, 7), (7,), ()), ((3, 1), (1, 7), (1, 1), (3, 7))):
        terms = tuple(random.standard_normal(s) for s in shapes)
        yield TestCase(" ".join(str(list(s)) for s in shapes), terms, ulps=0)
    special = np.array([0.0, 1.0, np.inf, -np.inf, np.nan])
    yield TestCase("special values", (special[:, None], special), ulps=0, smooth=False)


def _gradient(b: GradientBuilder) -> Results:
    """To the inputs that are the extremum; where several are, each has an equal share."""
    shape = joint_shape(b.ctx)
    masks = [x.equal(b.y[0]).cast(b.ctx.element()) for x in b.x]
    share = b.dy[0] / b.add("Sum", *masks) if len(masks) > 1 else b.dy[0]
    return tuple(b.summed_to(share * mask, shape, i) for i, mask in enumerate(masks))


def _op(name: str, kernel: KernelFunction, reference: Callable[..., np.ndarray]) -> Op:
    # Not in place: a later operand may be the same value as the first one.
    return Op(
        name,
        since=(6, 8, 12, 13),
        infer=joint_type,
        reference=reference,
        lower=_lower(kernel),
        kernels=(kernel,),
        decompose=_body,
        cases=_cases,
        gradient=_gradient,
    )


maximum = _op("Max", maximum_kernel, _reference(np.maximum, dim_max))
minimum = _op("Min", minimum_kernel, _reference(np.minimum, dim_min))

KERNELS = (maximum_kernel, minimum_kernel)
OPS = (maximum, minimum)
