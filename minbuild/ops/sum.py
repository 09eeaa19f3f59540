"""Sum of any number of tensors, as additions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.model import TensorType
from minbuild.ops import arithmetic as _arithmetic
from minbuild.ops import expand as _expand
from minbuild.ops.broadcasting import launch_binary
from minbuild.ops.definition import Case, Launch, Site, broadcast_shapes
from minbuild.ops.pattern import Match, Replacement, Rewrite, RewritingOp


def _infer(site: Site) -> Sequence[TensorType]:
    return (TensorType(site.element(), broadcast_shapes(*(site.shape(i) for i in range(len(site.inputs))))),)


def _reference(attributes: Mapping[str, Any], *terms: np.ndarray) -> np.ndarray:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _select(site: Site) -> Sequence[Launch]:
    """y = a + b, then y += c, ..."""
    if len(site.inputs) == 1:
        return (_expand.launch_copy(site),)
    add, result = _arithmetic.add_kernel, site.result()
    rest = (launch_binary(add, site, right=i, result_as=result) for i in range(2, len(site.inputs)))
    return (launch_binary(add, site), *rest)


def _cases(random: np.random.Generator) -> Iterable[Case]:
    for count in (1, 2, 3, 5):
        yield Case(f"{count} terms", tuple(random.standard_normal((3, 7)) for _ in range(count)), ulps=4)
    for shapes in (((3, 7), (7,), ()), ((7,), (1,), (3, 7)), ((3, 1), (1, 7), (1, 1), (3, 7))):
        terms = tuple(random.standard_normal(s) for s in shapes)
        yield Case(" ".join(str(list(s)) for s in shapes), terms, ulps=4)


def _of_one(match: Match) -> Replacement | None:
    return Replacement(":Identity", ("a",), {})


def _of_two(match: Match) -> Replacement | None:
    return Replacement(":Add", ("a", "b"), {})


# Not in place: a later term may be the same value as the first one.
total = RewritingOp(
    "Sum",
    since=(6, 8, 13),
    infer=_infer,
    reference=_reference,
    select=_select,
    cases=_cases,
    rewrites=(Rewrite(("Sum", "a"), _of_one), Rewrite(("Sum", "a", "b"), _of_two)),
)
