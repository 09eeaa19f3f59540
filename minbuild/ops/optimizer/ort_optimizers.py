"""ONNX Runtime's optimizers that are nodes of a graph: SGDOptimizer, AdamOptimizer and LambOptimizer, written as
nodes. Its CPU kernels overlook the scale of the loss and the gradients' norm; its other kernels do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from minbuild.ops.core.definition import INT64, Op, TestCase
from minbuild.ops.core.graph_builder import MICROSOFT, GraphBuilder
from minbuild.ops.core.value import Results, Value
from minbuild.ops.optimizer.update_rules import Update, numbers


def _sgd_body(b: GraphBuilder) -> Results:
    u = Update.over(b, 1)
    delta = -(u.scalar(0) * u.input(2))
    return u.output(u.input(1) + delta, 1), u.output(delta, 2)


def _sgd_reference(
    attributes: Mapping[str, Any], rate: np.ndarray, x: np.ndarray, g: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    delta = -rate.ravel()[0] * g
    return x + delta, delta


def _sgd_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in ((), (3,), (2, 1, 5)):
        inputs = (np.array([0.125]), random.standard_normal(shape), random.standard_normal(shape))
        yield TestCase(f"{list(shape)}", inputs, outputs=2)
        yield TestCase(f"{list(shape)} gradients only", inputs, outputs=2, absent=frozenset({0}))


sgd = Op(
    "SGDOptimizer",
    domain=MICROSOFT,
    reference=_sgd_reference,
    decompose=_sgd_body,
    decomposes_to=("Add", "Mul", "Neg"),
    cases=_sgd_cases,
)


def _scaled(u: Update, g: Value, loss_scale: Value | None, norm: Value | None, limit: float) -> Value:
    """The gradient divided by the loss scale, or by norm / limit if that is larger."""
    scale = loss_scale or u.number(1)
    if norm:
        scale = u.add("Max", scale, norm / u.number(limit))
    return g / scale if loss_scale or norm else g


def _scale_of(loss_scale: Any, norm: Any, limit: float) -> Any:
    scale = 1.0 if loss_scale is None else loss_scale.ravel()[0]
    return scale if norm is None else max(scale, norm.ravel()[0] / limit)


_RUNTIME_ADAM = {"alpha": 0.9, "beta": 0.999, "lambda": 0.0, "epsilon": 1e-8, "max_norm_clip": 1.0}


def _runtime_adam_body(b: GraphBuilder) -> Results:
    """Inputs: rate, step, x, g, both moments; then parameters in half precision, scale of the loss, norm of all
    gradients, and whether to update at all."""
    u = Update.over(b, 2)
    alpha, beta, decay, epsilon, limit = numbers(b.ctx.attributes, **_RUNTIME_ADAM)
    rate, x = u.scalar(0), u.input(2)
    step = u.cast(u.x[1].reshape(()), INT64, u.element)
    g = _scaled(u, u.input(3), u.scalar_or_none(7), u.scalar_or_none(8), limit)
    m, v = u.average(alpha, u.input(4), g), u.average(beta, u.input(5), g * g)
    if int(b.ctx.attribute("do_bias_correction", 1)):
        first, second = u.unbiased(alpha, step), u.unbiased(beta, step)
    else:
        first = second = u.number(1)
    if int(b.ctx.attribute("weight_decay_mode", 0)) == 0:
        direction = m / first / u.root(v / second, epsilon)
        delta = -(rate * u.regularized(decay, x, direction))
    else:
        size = rate * second.sqrt() / first
        moved = -(size * m / u.root(v, epsilon))
        delta = moved - rate * u.number(decay) * (x + moved)
    made = [u.output(m, 4), u.output(v, 5), u.output(x + delta, 2), u.output(delta, 3)]
    count = u.x[1] + u.constant(1, INT64)
    if b.has(6):
        half = b.ctx.element(6)
        made.append(u.cast(made[2], b.ctx.element(2), half))
    results = [count, *made]
    if b.has(9):
        update = u.x[9].reshape(())
        zero = u.constant(0, b.ctx.element(3))
        old = (b.x[1], b.x[4], b.x[5], b.x[2], zero, *b.x[6:7])
        results = [u.where(update, new, kept) for new, kept in zip(results, old, strict=False)]
    return results


def _runtime_adam_reference(
    attributes: Mapping[str, Any], rate: np.ndarray, step: np.ndarray, *given: np.ndarray | None
) -> tuple[np.ndarray, ...]:
    padded: list[np.ndarray | None] = [*given, *[None] * (8 - len(given))]
    x, g, m, v, half, loss_scale, norm, update = padded
    assert x is not None and g is not None and m is not None and v is not None
    alpha, beta, decay, epsilon, limit = numbers(attributes, **_RUNTIME_ADAM)
    r, t = rate.ravel()[0], int(step.ravel()[0])
    g = g / _scale_of(loss_scale, norm, limit)
    new_m, new_v = alpha * m + (1 - alpha) * g, beta * v + (1 - beta) * g * g
    corrects = attributes.get("do_bias_correction", 1)
    first, second = (1 - b**t if corrects else 1.0 for b in (alpha, beta))
    if attributes.get("weight_decay_mode", 0) == 0:
        delta = -r * (new_m / first / (np.sqrt(new_v / second) + epsilon) + decay * x)
    else:
        moved = -r * np.sqrt(second) / first * new_m / (np.sqrt(new_v) + epsilon)
        delta = moved - r * decay * (x + moved)
    if update is not None and not update.ravel()[0]:
        return (step, m, v, x, np.zeros_like(g), *(() if half is None else (half,)))
    new = x + delta
    return (step + 1, new_m, new_v, new, delta, *(() if half is None else (new,)))


def _runtime_adam_cases(random: np.random.Generator) -> Iterable[TestCase]:
    rate, step = np.array([0.125]), np.array([3], np.int64)
    factors = {"alpha": 0.75, "beta": 0.875}
    for attributes in (
        factors,
        {**factors, "lambda": 0.25, "do_bias_correction": 0},
        {**factors, "lambda": 0.25, "weight_decay_mode": 1},
    ):
        for shape in ((3,), (2, 5)):
            x, g, m = random.standard_normal((3, *shape))
            given = (rate, step, x, g, m, random.uniform(0.5, 2, shape))
            yield TestCase(f"{list(shape)} {attributes}", given, attributes, outputs=5, ulps=16)
    scaled = (*given, None, np.array([4.0]), np.array([20.0]))
    limited = {**factors, "max_norm_clip": 2.0}
    yield TestCase("scaled", scaled, limited, outputs=5, ulps=16)
    for update in (True, False):
        yield TestCase(f"update {update}", (*scaled, np.array([update])), limited, outputs=5, ulps=16)


runtime_adam = Op(
    "AdamOptimizer",
    domain=MICROSOFT,
    reference=_runtime_adam_reference,
    decompose=_runtime_adam_body,
    decomposes_to=("Add", "Cast", "Div", "Max", "Mul", "Neg", "Pow", "Sqrt", "Sub", "Where"),
    cases=_runtime_adam_cases,
)


# ------------------------------------------------------------------------------------------------ LAMB

_LAMB = {"alpha": 0.9, "beta": 0.999, "lambda": 0.0, "epsilon": 1e-6, "max_norm_clip": 1.0}
_GROUP = 5  # parameters, gradients, both moments, parameters in half precision


def _lamb_numbers(attributes: Mapping[str, Any], group: int) -> tuple[float, ...]:
    """Every tensor has its own."""
    lists = {name: tuple(attributes.get(name, ())) for name in _LAMB}
    return tuple(float(lists[n][group] if group < len(lists[n]) else default) for n, default in _LAMB.items())


def _lamb_group(b: GraphBuilder, u: Update, group: int, at: int) -> list[Value | None]:
    """The results for the tensor whose inputs begin at `at`."""
    alpha, beta, decay, epsilon, limit = _lamb_numbers(b.ctx.attributes, group)
    x, m, v = u.input(at), u.input(at + 2), u.input(at + 3)
    g = _scaled(u, u.input(at + 1), u.scalar_or_none(1), u.scalar_or_none(2), limit)
    m, v = u.average(alpha, m, g), u.average(beta, v, g * g)
    first = second = u.number(1)
    if int(b.ctx.attribute("do_bias_correction", 1)):
        step = u.cast(u.x[4].reshape(()), INT64, u.element)
        first, second = u.unbiased(alpha, step), u.unbiased(beta, step)
    direction = u.regularized(decay, x, m / first / u.root(v / second, epsilon))
    own, other = (u.add("ReduceL2", t.reshape((-1,)), keepdims=0) for t in (x, direction))
    low, high = (float(b.ctx.attribute(f"ratio_{n}", d)) for n, d in (("min", -np.inf), ("max", np.inf)))
    ratio = u.add("Max", u.number(low), u.add("Min", u.number(high), own / other))
    zero = (own * other).equal(u.number(0))
    rate = u.scalar(3) * u.where(zero, u.number(1), ratio)
    delta = -(rate * direction)
    new = x + delta
    made: list[Value | None] = [u.output(y, at + i) for i, y in enumerate((new, delta, m, v))]
    made.append(u.cast(new, u.element, b.ctx.element(at + 4)) if b.has(at + 4) else None)
    if b.has(0):
        update = u.x[0].reshape(())
        nothing = u.constant(0, b.ctx.element(at + 1))
        old = (b.x[at], nothing, *b.x[at + 2 : at + 5])
        made = [u.where(update, n, kept) if n else None for n, kept in zip(made, old, strict=False)]
    return made


def _lamb_body(b: GraphBuilder) -> Results:
    """Inputs: whether to update, scale of the loss, norm of all gradients, rate, step; then groups of five."""
    count = None
    if b.has(4):
        count = b.x[4] + b.constant(1, INT64)
        if b.has(0):
            count = b.where(b.x[0].reshape(()), count, b.x[4])
    results: list[Value | None] = [count]
    for group, at in enumerate(range(5, len(b.x), _GROUP)):
        results += _lamb_group(b, Update.over(b, at), group, at)
    return results


def _lamb_reference(
    attributes: Mapping[str, Any],
    update: np.ndarray | None,
    loss_scale: np.ndarray | None,
    norm: np.ndarray | None,
    rate: np.ndarray,
    step: np.ndarray,
    *given: np.ndarray | None,
) -> tuple[np.ndarray, ...]:
    """The half-precision parameters of a group that has none come out as the others."""
    goes = update is None or bool(update.ravel()[0])
    results = [step + 1 if goes else step]
    for group, at in enumerate(range(0, len(given), _GROUP)):
        x, g, m, v = given[at : at + 4]
        assert x is not None and g is not None and m is not None and v is not None
        alpha, beta, decay, epsilon, limit = _lamb_numbers(attributes, group)
        g = g / _scale_of(loss_scale, norm, limit)
        new_m, new_v = alpha * m + (1 - alpha) * g, beta * v + (1 - beta) * g * g
        corrects, t = attributes.get("do_bias_correction", 1), int(step.ravel()[0])
        first, second = (1 - b**t if corrects else 1.0 for b in (alpha, beta))
        direction = new_m / first / (np.sqrt(new_v / second) + epsilon) + decay * x
        own, other = np.linalg.norm(x), np.linalg.norm(direction)
        bounds = attributes.get("ratio_min", -np.inf), attributes.get("ratio_max", np.inf)
        delta = -rate.ravel()[0] * (np.clip(own / other, *bounds) if own * other else 1.0) * direction
        results += [x + delta, delta, new_m, new_v, x + delta] if goes else [x, np.zeros_like(g), m, v, x]
    return tuple(results)


def _lamb_cases(random: np.random.Generator) -> Iterable[TestCase]:
    rate, step = np.array([0.125]), np.array([2], np.int64)
    two = {"alpha": (0.75, 0.5), "beta": (0.875, 0.75), "lambda": (0.0, 0.25), "epsilon": (0.0625, 0.125)}
    narrow = {"ratio_min": 0.5, "ratio_max": 0.75, "do_bias_correction": 0, "max_norm_clip": (2.0, 4.0)}

    def group(*shape: int) -> tuple[np.ndarray | None, ...]:
        x, g, m = random.standard_normal((3, *shape))
        return x, g, m, random.uniform(0.5, 2, shape), None

    first, second = group(2, 5), group(3)
    still = (np.zeros(4), *group(4)[1:])
    silent = frozenset({5, 10})  # parameters in half precision
    scales = np.array([4.0]), np.array([20.0])
    yield TestCase(
        "alone",
        (None, None, None, rate, step, *first),
        {n: v[:1] for n, v in two.items()},
        outputs=5,
        ulps=32,
    )
    for name, head, attributes in (
        ("two", (None, None, None), two),
        ("bounded", (None, None, None), {**two, **narrow}),
        ("scaled", (None, *scales), {**two, **narrow}),
        ("goes", (np.array([True]), *scales), two),
        ("stays", (np.array([False]), *scales), two),
    ):
        inputs = (*head, rate, step, *first, *second)
        yield TestCase(name, inputs, attributes, outputs=10, absent=silent, ulps=32)
    parameters = {n: v[:1] for n, v in two.items()}
    yield TestCase("zero parameters", (None, None, None, rate, step, *still), parameters, outputs=5, ulps=32)


lamb = Op(
    "LambOptimizer",
    domain=MICROSOFT,
    reference=_lamb_reference,
    decompose=_lamb_body,
    decomposes_to=(
        "Add",
        "Cast",
        "Div",
        "Equal",
        "Max",
        "Min",
        "Mul",
        "Neg",
        "Pow",
        "ReduceL2",
        "Sqrt",
        "Sub",
        "Where",
    ),
    cases=_lamb_cases,
)

OPS = (sgd, runtime_adam, lamb)
