"""AdamWOptimizer and AdamOptimizer: one pass over all trained parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir.dims import Dim, product
from minbuild.ops.core.definition import (
    ELEMENTS,
    FLOATS,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
)
from minbuild.ops.optimizer.update_rules import numbers, updated_flag

adamw_kernel = KernelFunction(
    "adamw",
    ("p:T=", "m:T=", "v:T=", "g:T", "rate:float", "step:int64"),
    params=(
        "alpha:float",
        "beta:float",
        "epsilon:float",
        "weight_decay:float",
        "correct_bias:int",
        "adam_mode:int",
    ),
    types={"T": FLOATS},
    features={
        "decay": "weight decay",
        "decay_first": "adam_mode 0: decay before the update",
        "regular": "Adam: weight decay added to the gradient",
        "uncorrected": "correct_bias 0: moments as they are",
        "tail": "numbers of elements that are no multiple of 32 bytes",
    },
    cut=ELEMENTS,
)
_VECTOR = 32  # bytes of the longest one
REGULAR = 2  # the kernel's mode for Adam, beside AdamW's adam_mode


def _is_whole(shape: Sequence[Dim], size: int) -> bool:
    """True if the elements of a parameter's `shape`, of `size` bytes each, are whole vectors."""
    count = product(tuple(shape))
    return isinstance(count, int) and count % (_VECTOR // size) == 0


def _call(ctx: OpContext, decay: float, mode: int, corrects: int) -> KernelCall:
    asked = {
        "decay": decay != 0,
        "decay_first": mode != 1,
        "regular": mode == REGULAR,
        "uncorrected": not corrects,
        "tail": not _is_whole(ctx.shape(2), ctx.element(2).size),
    }
    rate, step, p, g, m, v = (ctx.name(i) for i in range(6))
    return adamw_kernel.call(
        *(p, m, v, g, rate, step),
        types=(ctx.element(2),),
        params=(
            float(ctx.attribute("alpha", 0.9)),
            float(ctx.attribute("beta", 0.999)),
            float(ctx.attribute("epsilon", 1e-8)),
            decay or -0.0,  # p - 0 p would turn -0.0 into 0.0, which a kernel without decay does not
            corrects,
            mode,
        ),
        features=tuple(name for name, used in asked.items() if used),
    )


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    mode, corrects = int(ctx.attribute("adam_mode", 0)), int(ctx.attribute("correct_bias", 1))
    return (_call(ctx, float(ctx.attribute("weight_decay", 0.01)), mode, corrects),)


def _lower_adam(ctx: OpContext) -> Sequence[KernelCall]:
    decay = float(ctx.attribute("weight_decay", 0.0))
    return (_call(ctx, decay, REGULAR if decay else 0, 1),)


def _moments(
    attributes: Mapping[str, Any],
    step: np.ndarray,
    g: np.ndarray,
    m: np.ndarray,
    v: np.ndarray,
    corrects: bool,
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Both moments, and what they are divided by because they began at zero."""
    alpha, beta = numbers(attributes, alpha=0.9, beta=0.999)
    first, second = (1 - float(b) ** int(step[0]) if corrects else 1.0 for b in (alpha, beta))
    return alpha * m + (1 - alpha) * g, beta * v + (1 - beta) * g * g, first, second


def _reference(
    attributes: Mapping[str, Any],
    rate: np.ndarray,
    step: np.ndarray,
    p: np.ndarray,
    g: np.ndarray,
    m: np.ndarray,
    v: np.ndarray,
) -> tuple[np.ndarray, ...]:
    decay, epsilon = numbers(attributes, weight_decay=0.01, epsilon=1e-8)
    m, v, first, second = _moments(
        attributes, step, g=g, m=m, v=v, corrects=bool(attributes.get("correct_bias", 1))
    )
    if attributes.get("adam_mode", 0) == 0:
        p = p - rate * decay * p
        return np.array([True]), p - rate * (m / first) / (np.sqrt(v / second) + epsilon), m, v
    p = p - rate * np.sqrt(second) / first * m / (np.sqrt(v) + epsilon)
    return np.array([True]), p - rate * decay * p, m, v


def _adam_reference(
    attributes: Mapping[str, Any],
    rate: np.ndarray,
    step: np.ndarray,
    p: np.ndarray,
    g: np.ndarray,
    m: np.ndarray,
    v: np.ndarray,
) -> tuple[np.ndarray, ...]:
    """torch.optim.Adam."""
    decay, epsilon = numbers(attributes, weight_decay=0.0, epsilon=1e-8)
    g = g + decay * p
    m, v, first, second = _moments(attributes, step, g=g, m=m, v=v, corrects=True)
    update = (m / first) / (np.sqrt(v / second) + epsilon)
    return np.array([True]), p - rate * update, m, v


def _cases_of(*variants: Mapping[str, Any]) -> Any:
    def cases(random: np.random.Generator) -> Iterable[TestCase]:
        for attributes in variants:
            for count, step in (
                (8, 1),
                (64, 2),
                (1000, 1000),
                (1001, 3),
                (3, 2),
            ):  # whole vectors, as all regions of parameters are; and single parameters
                p, g, m = random.standard_normal((3, count))
                moments = (
                    (m, random.uniform(0.5, 2, count)) if step > 1 else (np.zeros(count), np.zeros(count))
                )
                inputs = (np.array([0.125], np.float32), np.array([step], np.int64), p, g, *moments)
                name = f"{count} parameters, step {step} {dict(attributes)}"
                yield TestCase(name, inputs, attributes, absent=frozenset({0}), ulps=8)

    return cases


adamw = Op(
    "AdamWOptimizer",
    domain="com.microsoft",
    infer=updated_flag,
    reference=_reference,
    lower=_lower,
    kernels=(adamw_kernel,),
    mutates={2: None, 4: None, 5: None},
    cases=_cases_of(
        {},
        {"adam_mode": 1, "weight_decay": 0.25, "epsilon": 0.0625},
        {"adam_mode": 1, "weight_decay": 0.0, "correct_bias": 0},
        {"weight_decay": 0.125, "alpha": 0.75, "beta": 0.5},
    ),
)
adam = Op(
    "AdamOptimizer",
    domain="minbuild",
    infer=updated_flag,
    reference=_adam_reference,
    lower=_lower_adam,
    kernels=(adamw_kernel,),
    mutates={2: None, 4: None, 5: None},
    cases=_cases_of({}, {"weight_decay": 0.25, "epsilon": 0.0625}, {"alpha": 0.75, "beta": 0.5}),
)

KERNELS = (adamw_kernel,)
OPS = (adamw, adam)
