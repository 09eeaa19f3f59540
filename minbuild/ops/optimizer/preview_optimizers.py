"""The optimizers of ai.onnx.preview.training: nodes of a graph, over any number of tensors, a kernel call for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType, TensorType
from minbuild.ops.core.definition import (
    FLOAT,
    FLOATS,
    HALVES,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    UnsupportedUse,
)
from minbuild.ops.core.graph_builder import GraphBuilder
from minbuild.ops.core.value import Results, Value
from minbuild.ops.optimizer.update_rules import numbers

PREVIEW = "ai.onnx.preview.training"
FIRST = 2  # inputs before the tensors: rate and count of steps
Meaning = Callable[[Mapping[str, Any], Any, Any, Sequence[np.ndarray]], Sequence[np.ndarray]]
Numbers = Callable[[Mapping[str, Any]], Sequence[int | float]]

_TYPES = {"T": FLOATS}
_RESULTS = ("new_x:T=?", "new_v:T=?")
_GIVEN = ("rate:T", "step:int64", "x:T", "g:T", "v:T")
momentum_kernel = KernelFunction(
    "preview_momentum",
    (*_RESULTS, *_GIVEN),
    ("norm_coefficient:float", "alpha:float", "beta:float", "nesterov:int"),
    _TYPES,
)
adagrad_kernel = KernelFunction(
    "preview_adagrad",
    (*_RESULTS, *_GIVEN),
    ("norm_coefficient:float", "decay_factor:float", "epsilon:float"),
    _TYPES,
)
adam_kernel = KernelFunction(
    "preview_adam",
    (*_RESULTS, "new_h:T=?", *_GIVEN, "h:T"),
    ("norm_coefficient:float", "norm_coefficient_post:float", "alpha:float", "beta:float", "epsilon:float"),
    _TYPES,
)


# ------------------------------------------------------------------------------------------------ formulas


def _adagrad_numbers(attributes: Mapping[str, Any]) -> tuple[float, ...]:
    return numbers(attributes, norm_coefficient=0, decay_factor=0, epsilon=1e-6)


def _adagrad_meaning(
    attributes: Mapping[str, Any], rate: Any, steps: Any, given: Sequence[np.ndarray]
) -> Sequence[np.ndarray]:
    x, g, h = given
    norm, decay, epsilon = _adagrad_numbers(attributes)
    g = norm * x + g
    h = h + g * g
    return x - rate / (1 + steps * decay) * g / (np.sqrt(h) + epsilon), h


def _adam_numbers(attributes: Mapping[str, Any]) -> tuple[float, ...]:
    found = numbers(
        attributes, norm_coefficient=0, norm_coefficient_post=0, alpha=0.9, beta=0.999, epsilon=1e-6
    )
    for name, factor in zip(("alpha", "beta"), found[2:4], strict=True):
        if not 0 <= np.float32(factor) < 1:
            raise UnsupportedUse(f"{name} is {factor:g}; it must be at least 0 and less than 1")
    return found


def _adam_meaning(
    attributes: Mapping[str, Any], rate: Any, steps: Any, given: Sequence[np.ndarray]
) -> Sequence[np.ndarray]:
    x, g, v, h = given
    norm, after, alpha, beta, epsilon = _adam_numbers(attributes)
    g = norm * x + g
    v, h = alpha * v + (1 - alpha) * g, beta * h + (1 - beta) * g * g
    if steps > 0:
        rate = rate * np.sqrt(1 - beta**steps) / (1 - alpha**steps)
    return (1 - after) * (x - rate * v / (np.sqrt(h) + epsilon)), v, h


def _momentum_numbers(attributes: Mapping[str, Any]) -> tuple[int | float, ...]:
    mode = attributes.get("mode", "standard")
    if mode not in ("standard", "nesterov"):
        raise UnsupportedUse(f"mode is '{mode}'; it must be 'standard' or 'nesterov'")
    return *numbers(attributes, norm_coefficient=0, alpha=0, beta=1), int(mode == "nesterov")


def _momentum_meaning(
    attributes: Mapping[str, Any], rate: Any, steps: Any, given: Sequence[np.ndarray]
) -> Sequence[np.ndarray]:
    x, g, v = given
    norm, alpha, beta, nesterov = _momentum_numbers(attributes)
    g = norm * x + g
    v = alpha * v + (beta if steps > 0 else 1.0) * g
    return x - rate * (g + alpha * v if nesterov else v), v


# ----------------------------------------------------------------------------------------------- operators


def _groups(items: Sequence[Any], kinds: int) -> list[Sequence[Any]]:
    """Tensors come kind after kind: all variables, then all gradients, ...; the result is one group for each
    variable."""
    count = len(items) // kinds
    return [items[i::count] for i in range(count)]


def _grouped(results: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """The way back."""
    return tuple(result for kind in zip(*results, strict=True) for result in kind)


def _body(kinds: int) -> Callable[[GraphBuilder], Results]:
    """A node for each variable, with the rate in its type; None where it is such a node already."""

    def body(b: GraphBuilder) -> Results:
        count, rest = divmod(len(b.x) - FIRST, kinds)
        if count < 1 or rest:
            raise UnsupportedUse(
                f"it has {len(b.x)} inputs; they must be {FIRST} and {kinds} for each variable"
            )
        if not all(b.x):
            raise UnsupportedUse(
                f"input {[bool(x) for x in b.x].index(False)} is left out; it needs all of them"
            )
        rates = [_rate_type(b.ctx, FIRST + i) for i in range(count)]
        if count == 1 and rates[0] is b.ctx.element() and len(b.y) == kinds - 1:
            return None
        groups = _groups(b.x[FIRST:], kinds)
        return _grouped([_alone(b, *pair) for pair in zip(groups, rates, strict=True)])

    return body


def _rate_type(ctx: OpContext, variable: int) -> ElementType:
    """The type in which the rate of this input is computed with: halves are updated as floats."""
    element = ctx.element(variable)
    return FLOAT if element in HALVES else element


def _alone(b: GraphBuilder, group: Sequence[Value], element: ElementType) -> tuple[Value, ...]:
    """The operator on one variable."""
    rate = b.x[0] if b.ctx.element() is element else b.x[0].cast(element)
    title = b.ctx.op.split(":")[1]
    return b.many(len(group) - 1, title, rate, b.x[1], *group, domain=PREVIEW, **b.ctx.attributes)


def _inferring(params: Numbers) -> Callable[[OpContext], Sequence[TensorType]]:
    """For a node with one variable; looks at its attributes too, so that all findings come at once."""

    def infer(ctx: OpContext) -> Sequence[TensorType]:
        params(ctx.attributes)
        for i, name in enumerate(("the learning rate", "the count of steps")):
            if any(d != 1 for d in ctx.shape(i)):
                raise UnsupportedUse(f"{name} has the shape {list(ctx.shape(i))}; it must be a single number")
        types = [TensorType(ctx.element(i), ctx.shape(i)) for i in range(FIRST, len(ctx.inputs))]
        if len(set(types)) > 1:
            texts = ", ".join(f"{t.element.label}{list(t.shape or ())}" for t in types)
            raise UnsupportedUse(f"a variable, its gradient and its state must be alike; they are {texts}")
        return [types[0], *types[2:]]  # nothing comes of the gradient

    return infer


def _lower_with(kernel: KernelFunction, params: Numbers) -> Callable[[OpContext], Sequence[KernelCall]]:
    def lower(ctx: OpContext) -> Sequence[KernelCall]:
        names = (*ctx.result_names, *ctx.names)
        return (kernel.call(*names, types=(ctx.element(FIRST),), params=params(ctx.attributes)),)

    return lower


def _preview(
    name: str,
    kernel: KernelFunction,
    params: Numbers,
    meaning: Meaning,
    variants: Sequence[Mapping[str, Any]],
) -> Op:
    """The operator. Inputs: rate, count of steps, variables, gradients, one or two tensors of state for each."""
    results = sum("=" in arg for arg in kernel.args)
    kinds = results + 1

    def reference(
        attributes: Mapping[str, Any], rate: np.ndarray, steps: np.ndarray, *inputs: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        r, t = rate.ravel()[0], int(steps.ravel()[0])
        return _grouped([meaning(attributes, r, t, given) for given in _groups(inputs, kinds)])

    def cases(random: np.random.Generator) -> Iterable[TestCase]:
        for attributes in variants:
            for steps, shapes in ((0, ((2, 3),)), (3, ((1,), (2, 1, 41))), (1000, ((),)), (1, ((8,),))):
                rate = np.array([0.125] if steps else 0.125)
                given = [
                    random.uniform(0.5, 2, shape) if kind > 1 else random.standard_normal(shape)
                    for kind in range(kinds)
                    for shape in shapes
                ]
                inputs = (rate, np.array(steps, np.int64), *given)
                label = f"{len(shapes)} tensors, step {steps} {dict(attributes)}"
                yield TestCase(label, inputs, attributes, outputs=len(given) - len(shapes), ulps=4)

    return Op(
        name,
        domain=PREVIEW,
        infer=_inferring(params),
        reference=reference,
        lower=_lower_with(kernel, params),
        kernels=(kernel,),
        in_place=((0, FIRST), *((i, FIRST + 1 + i) for i in range(1, results))),
        decompose=_body(kinds),
        decomposes_to=("Cast",),
        cases=cases,
    )


adagrad = _preview(
    "Adagrad",
    adagrad_kernel,
    _adagrad_numbers,
    _adagrad_meaning,
    ({}, {"norm_coefficient": 0.25, "decay_factor": 0.5, "epsilon": 0.0625}),
)
adam = _preview(
    "Adam",
    adam_kernel,
    _adam_numbers,
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
        {"alpha": 0.0, "beta": 0.0, "epsilon": 0.5},
    ),
)
momentum = _preview(
    "Momentum",
    momentum_kernel,
    _momentum_numbers,
    _momentum_meaning,
    (
        {"alpha": 0.75, "beta": 0.5, "norm_coefficient": 0.25, "mode": "standard"},
        {"alpha": 0.75, "beta": 0.5, "norm_coefficient": 0.0, "mode": "nesterov"},
    ),
)

KERNELS = (momentum_kernel, adagrad_kernel, adam_kernel)
OPS = (adagrad, adam, momentum)
