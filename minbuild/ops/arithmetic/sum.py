"""Sum and Mean of any number of tensors, as additions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ops.arithmetic import arithmetic as _arithmetic
from minbuild.ops.core.broadcasting import call_chain, joint_shape, joint_type
from minbuild.ops.core.definition import KernelCall, Op, OpContext, TestCase
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.pattern import Match, Replacement, Rewrite, RewritingOp
from minbuild.ops.core.value import Results, Value


def _reference(attributes: Mapping[str, Any], *terms: np.ndarray) -> np.ndarray:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _mean_reference(attributes: Mapping[str, Any], *terms: np.ndarray) -> np.ndarray:
    return np.asarray(_reference(attributes, *terms) / len(terms))


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    return call_chain(_arithmetic.add_kernel, ctx)


def _body(b: GraphBuilder) -> Results:
    return b.x if len(b.x) == 1 else None


def _mean_body(b: GraphBuilder) -> Results:
    if len(b.x) == 1:
        return b.x
    return b.add("Sum", *b.x) / len(b.x)


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for count in (1, 2, 3, 5):
        yield TestCase(f"{count} terms", tuple(random.standard_normal((3, 7)) for _ in range(count)), ulps=4)
    for shapes in (
        ((3, 7), (7,), ()),
        ((7,), (1,), (3, 7)),
        ((3, 1), (1, 7), (1, 1), (3, 7)),
        ((0, 2), (2,)),
    ):
        terms = tuple(random.standard_normal(s) for s in shapes)
        yield TestCase(" ".join(str(list(s)) for s in shapes), terms, ulps=4)


def _gradient(b: GradientBuilder) -> Results:
    return _spread(b, b.dy[0])


def _mean_gradient(b: GradientBuilder) -> Results:
    return _spread(b, b.dy[0] / len(b.x))


def _spread(b: GradientBuilder, gradient: Value) -> Results:
    """The same gradient for every input, summed where the input was broadcast."""
    shape = joint_shape(b.ctx)
    return tuple(b.summed_to(gradient, shape, i) for i in range(len(b.x)))


def _of_two(match: Match) -> Replacement | None:
    return Replacement(":Add", ("a", "b"), {})


# Not in place: a later term may be the same value as the first one.
total = RewritingOp(
    "Sum",
    since=(6, 8, 13),
    infer=joint_type,
    reference=_reference,
    lower=_lower,
    kernels=(_arithmetic.add_kernel,),
    decompose=_body,
    cases=_cases,
    gradient=_gradient,
    rewrites=(Rewrite(("Sum", "a", "b"), _of_two),),
)
mean = Op(
    "Mean",
    since=(6, 8, 13),
    reference=_mean_reference,
    decompose=_mean_body,
    decomposes_to=("Div", "Sum"),
    cases=_cases,
    gradient=_mean_gradient,
)

OPS = (total, mean)
