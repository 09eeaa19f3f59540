"""Clip and its gradient. ORT writes the gradient as comparisons, a Cast and a Mul; here it is one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.model import ElementType
from minbuild.ops.definition import FLOATS, Case, KernelFunction, Launch, Op, Site, Unknown, itself, same_as
from minbuild.ops.pattern import Match, Replacement, Rewrite, RewritingOp

_PARAMS = ("low_0", "low_1", "high_0", "high_1")  # two words each: the bits of one element
clip_kernel = KernelFunction("clip", ("y:T=", "x:T"), params=_PARAMS, types={"T": FLOATS})
clip_grad_kernel = KernelFunction("clip_grad", ("dx:T=", "dy:T", "x:T"), params=_PARAMS, types={"T": FLOATS})


def _words(bounds: tuple[float, float], element: ElementType) -> tuple[int, ...]:
    words = [np.array(bound, element.dtype).reshape(1).view(np.int32).tolist() for bound in bounds]
    return tuple(word for pair in words for word in (pair + [0])[:2])


def _bound(site: Site, i: int, attribute: str, default: float) -> float:
    """A bound is an attribute up to opset 6, then an input."""
    if not site.has(i):
        return float(site.attribute(attribute, default))
    content = site.content(i)
    if content is None or content.size != 1 or content.dtype == object:
        raise Unknown(f"its {attribute} must be a constant")
    return float(content.item())


def _select(site: Site) -> Sequence[Launch]:
    bounds = _bound(site, 1, "min", -np.inf), _bound(site, 2, "max", np.inf)
    words = _words(bounds, site.element())
    return (clip_kernel.launch(site.result(), site.name(0), types=(site.element(),), params=words),)


def _reference(
    attributes: Mapping[str, Any],
    x: np.ndarray,
    low: np.ndarray | None = None,
    high: np.ndarray | None = None,
) -> np.ndarray:
    at_least = attributes.get("min", -np.inf) if low is None else low
    at_most = attributes.get("max", np.inf) if high is None else high
    return np.asarray(np.minimum(at_most, np.maximum(at_least, x)))


def _cases(random: np.random.Generator) -> Iterable[Case]:
    for shape in ((), (1,), (9,), (3, 5), (2, 3, 4, 5)):
        x = random.standard_normal(shape)
        for low, high in ((-0.5, 0.75), (None, 0.5), (-0.5, None), (None, None), (1.0, -1.0)):
            bounds = tuple(None if b is None else np.array(b) for b in (low, high))
            yield Case(f"{list(shape)} {low} to {high}", (x, *bounds), constant=frozenset({1, 2}), ulps=0)
    yield Case("attributes", (random.standard_normal(9),), {"min": -0.25, "max": 0.5}, ulps=0)
    yield Case(
        "special values", (np.array([np.nan, np.inf, -np.inf, 6.0]),), {"min": 0.0, "max": 6.0}, ulps=0
    )


clip = Op(
    "Clip",
    since=(6, 11, 12, 13),
    infer=same_as(0),
    reference=_reference,
    select=_select,
    in_place=((0, 0),),
    again=itself,
    cases=_cases,
)


def _grad_select(site: Site) -> Sequence[Launch]:
    words = _words((site.attribute("min", -np.inf), site.attribute("max", np.inf)), site.element())
    launch = clip_grad_kernel.launch(
        site.result(), site.name(0), site.name(1), types=(site.element(),), params=words
    )
    return (launch,)


def _grad_reference(attributes: Mapping[str, Any], dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    low, high = attributes.get("min", -np.inf), attributes.get("max", np.inf)
    return np.where((x >= low) & (x <= high), dy, 0)


def _grad_cases(random: np.random.Generator) -> Iterable[Case]:
    for shape in ((), (1,), (9,), (2, 3, 5, 5)):
        dy, x = random.standard_normal(shape), np.round(random.standard_normal(shape) * 4) / 4
        for bounds in ({"min": -0.5, "max": 0.75}, {"min": 0.0}, {"max": 0.5}):
            yield Case(f"{list(shape)} {bounds}", (dy, x), bounds, ulps=0)


def _fused(match: Match) -> Replacement | None:
    """dy * Cast(low <= x and x <= high), all of one shape and type, the bounds constant."""
    names = {"min": "low", "max": "high"}
    bounds = {bound: match.number(name) for bound, name in names.items() if name in match.names}
    same = match.types["dy"] == match.types["x"] == match.result
    if not same or any(b is None for b in bounds.values()) or match.result.element not in FLOATS:
        return None
    return Replacement("minbuild:ClipGrad", ("dy", "x"), bounds)


_LOW, _HIGH = ("GreaterOrEqual", "x", "low"), ("LessOrEqual", "x", "high")
clip_grad = RewritingOp(
    "ClipGrad",
    domain="minbuild",
    infer=same_as(0),
    reference=_grad_reference,
    select=_grad_select,
    in_place=((0, 0), (0, 1)),
    cases=_grad_cases,
    rewrites=tuple(
        Rewrite(("Mul", "dy", ("Cast", mask)), _fused) for mask in (("And", _LOW, _HIGH), _LOW, _HIGH)
    ),
)
