"""The optimizers of ai.onnx.preview.training: nodes of a graph, over any number of tensors, written as nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ops.body import Body
from minbuild.ops.definition import INT64, Case, Op
from minbuild.ops.update import Update, numbers

PREVIEW = "ai.onnx.preview.training"
Step = Callable[
    [Update, str, str, Sequence[str]], Sequence[str]
]  # rate, steps, then x, g and moments -> new ones
Meaning = Callable[[Mapping[str, Any], Any, Any, Sequence[np.ndarray]], Sequence[np.ndarray]]


def _groups(items: Sequence[Any], kinds: int) -> list[Sequence[Any]]:
    """Inputs come kind after kind: all tensors, then all gradients, ...; the answer is one group for each tensor."""
    count = len(items) // kinds
    return [items[i::count] for i in range(count)]


def _grouped(results: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """The way back."""
    return tuple(result for kind in zip(*results, strict=True) for result in kind)


def _adagrad(u: Update, rate: str, steps: str, given: Sequence[str]) -> Sequence[str]:
    x, g, h = given
    norm, decay, epsilon = numbers(u.site.attributes, norm_coefficient=0, decay_factor=0, epsilon=1e-6)
    slowed = u.sum(u.number(1), u.times(steps, u.number(decay)))
    g = u.regularized(norm, x, g)
    h = u.sum(h, u.times(g, g))
    direction = u.add("Div", g, u.slow(h, epsilon))
    return u.add("Sub", x, u.times(u.add("Div", rate, slowed), direction)), h


def _adagrad_meaning(
    attributes: Mapping[str, Any], rate: Any, steps: Any, given: Sequence[np.ndarray]
) -> Sequence[np.ndarray]:
    x, g, h = given
    norm, decay, epsilon = numbers(attributes, norm_coefficient=0, decay_factor=0, epsilon=1e-6)
    g = norm * x + g
    h = h + g * g
    return x - rate / (1 + steps * decay) * g / (np.sqrt(h) + epsilon), h


_ADAM = {"norm_coefficient": 0.0, "norm_coefficient_post": 0.0, "alpha": 0.9, "beta": 0.999, "epsilon": 1e-6}


def _adam(u: Update, rate: str, steps: str, given: Sequence[str]) -> Sequence[str]:
    x, g, v, h = given
    norm, after, alpha, beta, epsilon = numbers(u.site.attributes, **_ADAM)
    g = u.regularized(norm, x, g)
    v, h = u.mean(alpha, v, g), u.mean(beta, h, u.times(g, g))
    grown = u.add("Div", u.add("Sqrt", u.unbiased(beta, steps)), u.unbiased(alpha, steps))
    factor = u.add("Where", u.add("Greater", steps, u.number(0)), grown, u.number(1))
    update = u.add("Div", u.times(u.times(rate, factor), v), u.slow(h, epsilon))
    x = u.add("Sub", x, update)
    return u.times(u.number(1 - after), x) if after else x, v, h


def _adam_meaning(
    attributes: Mapping[str, Any], rate: Any, steps: Any, given: Sequence[np.ndarray]
) -> Sequence[np.ndarray]:
    x, g, v, h = given
    norm, after, alpha, beta, epsilon = numbers(attributes, **_ADAM)
    g = norm * x + g
    v, h = alpha * v + (1 - alpha) * g, beta * h + (1 - beta) * g * g
    if steps > 0:
        rate = rate * np.sqrt(1 - beta**steps) / (1 - alpha**steps)
    return (1 - after) * (x - rate * v / (np.sqrt(h) + epsilon)), v, h


def _momentum(u: Update, rate: str, steps: str, given: Sequence[str]) -> Sequence[str]:
    x, g, v = given
    norm, alpha, beta = numbers(u.site.attributes, norm_coefficient=0, alpha=0, beta=1)
    g = u.regularized(norm, x, g)
    factor = u.add("Where", u.add("Greater", steps, u.number(0)), u.number(beta), u.number(1))
    v = u.sum(u.times(u.number(alpha), v), u.times(factor, g))
    nesterov = u.site.attribute("mode", "standard") == "nesterov"
    direction = u.sum(g, u.times(u.number(alpha), v)) if nesterov else v
    return u.add("Sub", x, u.times(rate, direction)), v


def _momentum_meaning(
    attributes: Mapping[str, Any], rate: Any, steps: Any, given: Sequence[np.ndarray]
) -> Sequence[np.ndarray]:
    x, g, v = given
    norm, alpha, beta = numbers(attributes, norm_coefficient=0, alpha=0, beta=1)
    g = norm * x + g
    v = alpha * v + (beta if steps > 0 else 1.0) * g
    return x - rate * (g + alpha * v if attributes.get("mode") == "nesterov" else v), v


def _preview(
    name: str, kinds: int, step: Step, meaning: Meaning, variants: Sequence[Mapping[str, Any]]
) -> Op:
    """An operator over several tensors with `kinds` inputs for each: R, T, tensors, gradients, moments."""

    def body(b: Body) -> Sequence[str]:
        results = []
        for places in _groups(range(2, len(b.x)), kinds):
            u = Update.over(b, places[0])
            steps = u.cast(u.reshape(b.x[1], ()), INT64, u.element)
            made = step(u, u.scalar(0), steps, [u.input(i) for i in places])
            likes = (places[0], *places[2:])  # nothing comes of the gradient
            results.append([u.output(y, i) for y, i in zip(made, likes, strict=True)])
        return _grouped(results)

    def reference(
        attributes: Mapping[str, Any], rate: np.ndarray, steps: np.ndarray, *inputs: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        r, t = rate.ravel()[0], int(steps.ravel()[0])
        return _grouped([meaning(attributes, r, t, given) for given in _groups(inputs, kinds)])

    def cases(random: np.random.Generator) -> Iterable[Case]:
        for attributes in variants:
            for steps, shapes in ((0, ((2, 3),)), (3, ((1,), (2, 1, 4))), (1, ((),))):
                rate = np.array([0.125] if steps else 0.125)
                given = [
                    random.uniform(0.5, 2, shape) if kind > 1 else random.standard_normal(shape)
                    for kind in range(kinds)
                    for shape in shapes
                ]
                inputs = (rate, np.array(steps, np.int64), *given)
                label = f"{len(shapes)} tensors, step {steps} {dict(attributes)}"
                yield Case(label, inputs, attributes, outputs=len(given) - len(shapes), ulps=16)

    return Op(name, domain=PREVIEW, reference=reference, body=body, cases=cases)


adagrad = _preview(
    "Adagrad",
    3,
    _adagrad,
    _adagrad_meaning,
    ({}, {"norm_coefficient": 0.25, "decay_factor": 0.5, "epsilon": 0.0625}),
)
adam = _preview(
    "Adam",
    4,
    _adam,
    _adam_meaning,
    (
        {"alpha": 0.75, "beta": 0.875},
        {
            "alpha": 0.75,
            "beta": 0.5,
            "norm_coefficient": 0.25,
            "norm_coefficient_post": 0.125,
            "epsilon": 0.0625,
        },
    ),
)
momentum = _preview(
    "Momentum",
    3,
    _momentum,
    _momentum_meaning,
    (
        {"alpha": 0.75, "beta": 0.5, "norm_coefficient": 0.25, "mode": "standard"},
        {"alpha": 0.75, "beta": 0.5, "norm_coefficient": 0.0, "mode": "nesterov"},
    ),
)
