"""Shared by operators on single elements: declarations, calls, references and cases."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType, Shape
from minbuild.ops.core.channel_slices import elementwise_channels
from minbuild.ops.core.definition import (
    ELEMENTS,
    FLOATS,
    KernelCall,
    KernelFunction,
    LowerRule,
    Op,
    OpContext,
    Reference,
    TestCase,
    same_as,
)
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value

Cases = Callable[[np.random.Generator], Iterable[TestCase]]
Gradient = Callable[[GradientBuilder], Results]
ParamRule = Callable[[OpContext], Sequence[float]]

LONG = {"long": "two vectors at once, for large tensors"}
MANY_ELEMENTS = 1 << 15  # elements from which on that pays for its bytes

SHAPES = ((), (1,), (7,), (3, 5), (2, 3, 4, 5))
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 30.0, -30.0, 700.0, -700.0, np.inf, -np.inf, np.nan])


def kernel_of(
    function: str,
    *inputs: str,
    params: tuple[str, ...] = (),
    types: tuple[ElementType, ...] = FLOATS,
    output: str = "y",
    features: Mapping[str, str] = {},  # noqa: B006 (only read)
) -> KernelFunction:
    """A kernel that makes `output` from inputs of the same type and size, by default from `x`.

    `function` is its name in C++, `params` its parameters ("alpha:float"), `types` the element types it is compiled
    for, `features` its parts that compile away: none, or LONG.
    """
    slots = (f"{output}:T=", *(f"{name}:T" for name in inputs or ("x",)))
    hints = frozenset(features.keys() & LONG.keys())
    return KernelFunction(
        function, slots, params=params, types={"T": types}, features=features, hints=hints, cut=ELEMENTS
    )


def gradient_kernel_of(
    function: str,
    saved: str = "x",
    params: tuple[str, ...] = (),
    features: Mapping[str, str] = {},  # noqa: B006 (only read)
) -> KernelFunction:
    """A kernel that makes `dx` from `dy` and `saved`, which the forward pass left: its input `x` or its output `y`.
    `function`, `params` and `features` are as of `kernel_of`."""
    return kernel_of(function, "dy", saved, params=params, output="dx", features=features)


def _is_long(shape: Shape) -> bool:
    """True if a tensor has many elements, by the sizes that are known when the trainer is built."""
    return math.prod(d for d in shape if isinstance(d, int)) >= MANY_ELEMENTS


def no_params(ctx: OpContext) -> Sequence[float]:
    """Of a kernel without parameters."""
    return ()


def numbers(*defaults: tuple[str, float]) -> ParamRule:
    """Parameters that are attributes, with their defaults."""
    return lambda ctx: [float(ctx.attribute(name, default)) for name, default in defaults]


def lower_to(kernel: KernelFunction, params: ParamRule = no_params, inputs: Sequence[int] = ()) -> LowerRule:
    """A call of `kernel` on `inputs` of the node, by default the first ones in order, with the values that `params`
    gives."""
    chosen = inputs or range(len(kernel.args) - 1)

    def lower(ctx: OpContext) -> Sequence[KernelCall]:
        names = (ctx.name(i) for i in chosen)
        features = tuple(name for name in kernel.features if name in LONG and _is_long(ctx.shape(0)))
        call = kernel.call(
            ctx.result(), *names, types=(ctx.element(),), params=params(ctx), features=features
        )
        return (call,)

    return lower


def computing(function: Callable[..., Any]) -> Reference:
    """A function of arrays as a reference: attributes are not looked at, floating-point errors are results."""

    def reference(attributes: Mapping[str, Any], *inputs: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(function(*inputs))

    return reference


def zero_gradient(b: GradientBuilder) -> Results:
    """Of functions that are constant between their jumps."""
    return None


def unary_cases(
    ulps: float,
    attributes: Sequence[Mapping[str, Any]] = ({},),
    inputs: Callable[[np.ndarray], np.ndarray] = lambda x: x * 3,
    special: np.ndarray | None = SPECIAL,
    smooth: bool = True,
) -> Cases:
    """All shapes with every set of `attributes`, then the values `special`. `inputs` turns normally distributed
    numbers into arguments; `ulps` is the tolerance, in units of float32's last place; `smooth` is False where finite
    differences do not apply."""

    def cases(random: np.random.Generator) -> Iterable[TestCase]:
        for given in attributes:
            label = "".join(f", {name} {value}" for name, value in given.items())
            for shape in SHAPES if given is attributes[0] else ((3, 5),):
                x = inputs(random.standard_normal(shape))
                yield TestCase(f"shape {list(shape)}{label}", (x,), given, ulps=ulps, smooth=smooth)
        if special is not None:
            yield TestCase("special values", (special,), attributes[0], ulps=ulps)

    return cases


def gradient_cases(
    ulps: float,
    attributes: Sequence[Mapping[str, Any]] = ({},),
    saved: Callable[[np.ndarray], np.ndarray] = lambda x: x * 3,
    smooth: bool = True,
) -> Cases:
    """All shapes of a gradient, then every set of `attributes`; `saved` makes what the forward pass left; `ulps` and
    `smooth` are as of `unary_cases`."""

    def cases(random: np.random.Generator) -> Iterable[TestCase]:
        for given in attributes:
            label = "".join(f", {name} {value}" for name, value in given.items())
            for shape in SHAPES if given is attributes[0] else ((3, 5),):
                inputs = random.standard_normal(shape), saved(random.standard_normal(shape))
                yield TestCase(f"shape {list(shape)}{label}", inputs, given, ulps=ulps, smooth=smooth)

    return cases


def unary(
    name: str,
    kernel: KernelFunction,
    reference: Reference,
    cases: Cases,
    gradient: Gradient | None = None,
    *,
    since: tuple[int, ...] = (6, 13),
    domain: str = "",
    params: ParamRule = no_params,
    rematerialize: Callable[..., Any] | None = None,
    batched_inputs: Callable[[OpContext], Iterable[int]] | None = None,
) -> Op:
    """An operator `name` of one input, whose memory its output may take.

    `reference` computes it in numpy, `kernel` on the device with the values of `params`; `cases` test it; `gradient`
    is its rule; `since` are the versions of `domain` that define it; `rematerialize` and `batched_inputs` are as in
    Op."""
    return Op(
        name,
        domain=domain,
        since=since,
        infer=same_as(0),
        reference=reference,
        lower=lower_to(kernel, params),
        kernels=(kernel,),
        in_place=((0, 0),),
        rematerialize=rematerialize,
        batched_inputs=batched_inputs,
        channels=elementwise_channels,
        cases=cases,
        gradient=gradient,
    )


def gradient_op(
    name: str,
    kernel: KernelFunction,
    reference: Reference,
    cases: Cases,
    gradient: Gradient | None = None,
    *,
    domain: str = "com.microsoft",
    params: ParamRule = no_params,
    batched_inputs: Callable[[OpContext], Iterable[int]] | None = None,
    slope: Callable[[GraphBuilder, Value], Value] | None = None,
) -> Op:
    """An operator `name` of `dy` and what the forward pass left; its output may take the memory of either.

    `slope` writes the factor of `dy`, for gradients of gradients, where there is no rule `gradient`. `kernel`,
    `reference`, `cases`, `domain`, `params` and `batched_inputs` are as of `unary`."""
    return Op(
        name,
        domain=domain,
        infer=same_as(0),
        reference=reference,
        lower=lower_to(kernel, params),
        kernels=(kernel,),
        in_place=((0, 0), (0, 1)),
        batched_inputs=batched_inputs,
        channels=elementwise_channels,
        cases=cases,
        gradient=gradient,
        decompose_for_grad=None if slope is None else lambda b: b.x[0] * slope(b, b.x[1]),
    )
