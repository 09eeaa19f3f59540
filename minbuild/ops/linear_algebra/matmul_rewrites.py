"""Shared by MatMul, Gemm and their relatives: which product they are, and what around them becomes part of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from minbuild.ir import Call
from minbuild.ops.core.definition import FLOAT
from minbuild.ops.core.pattern import Match, Replacement, Rewrite, RewritingOp
from minbuild.ops.linear_algebra.einsum_equation import Equation


def as_contraction(call: Call, equation: Equation) -> Call:
    """A product of two tensors by its equation."""
    attributes = {"equation": str(equation), "alpha": float(call.attributes.get("alpha", 1.0))}
    return replace(call, op="minbuild:Contraction", version=1, attributes=attributes)


@dataclass(frozen=True)
class ProductOp(RewritingOp):
    """An operator that is a product of its first two inputs.

    equation   what product it is, from attributes and the ranks of both inputs
    reordered  the call that reads or writes axes in another order: the call with its new inputs and outputs, and the
               new equation; None where it cannot
    """

    equation: Callable[[Mapping[str, Any], Sequence[int]], Equation] = field(kw_only=True)
    reordered: Callable[[Call, Equation], Call | None] = as_contraction


def scaled(y: np.ndarray, attributes: Mapping[str, Any]) -> np.ndarray:
    """A product times attribute `alpha`; whole numbers stay whole."""
    alpha = attributes.get("alpha", 1.0)
    return y if alpha == 1 else y * alpha


def _with_bias(match: Match) -> bool:
    """True if what is added has the last axes of the product, and not all of them."""
    shape, result = match.types["c"].shape or (), match.result.shape or ()
    while shape and shape[0] == 1:
        shape = shape[1:]
    return 0 < len(shape) < len(result) and shape == result[len(result) - len(shape) :]


def _factor(match: Match, down: bool) -> float | None:
    """The scale of a product, if it is as exact in float32, which kernels take, as in its own type."""
    number = match.number("s")
    if not number or match.types["s"].shape not in ((), (1,)):
        return None
    alpha = match.calls[0].attributes.get("alpha", 1.0) * (1 / number if down else number)
    return alpha if match.result.element is FLOAT or float(np.float32(alpha)) == alpha else None


def product_rewrites(
    op: str, equation: Callable[[Mapping[str, Any], Sequence[int]], Equation]
) -> tuple[Rewrite, ...]:
    """The rewrites of calls behind a product `op` that become part of it: the bias of a layer, and a scale."""

    def build(match: Match, inputs: tuple[str, ...], alpha: float | None) -> Replacement | None:
        shapes = [match.types[name].shape or () for name in ("a", "b")]
        own = equation(match.calls[0].attributes, [len(shape) for shape in shapes])
        sizes = own.extents(shapes)
        whole = tuple(sizes[c] for c in own.y) == match.result.shape
        if alpha is None or not whole or not match.result.element.is_real:
            return None
        return Replacement("minbuild:Contraction", inputs, {"equation": str(own), "alpha": float(alpha)})

    def bias(match: Match) -> Replacement | None:
        alpha = match.calls[0].attributes.get("alpha", 1.0)
        return build(match, ("a", "b", "c"), alpha) if _with_bias(match) else None

    product = (op, "a", "b")
    return (
        Rewrite(("Add", product, "c"), bias),
        Rewrite(("Mul", product, "s"), lambda match: build(match, ("a", "b"), _factor(match, False))),
        Rewrite(("Div", product, "s"), lambda match: build(match, ("a", "b"), _factor(match, True))),
    )


OPS: tuple[()] = ()
