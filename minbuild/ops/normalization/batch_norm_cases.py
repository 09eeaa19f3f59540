"""Test cases of batch normalisation: shapes [N,C,...], training, inference, and gradients."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from minbuild.ops.core.definition import TestCase

_SHAPES = (
    (1, 1, 1, 1),
    (4, 3),
    (33, 17),
    (2, 5, 7),
    (3, 4, 5, 5),
    (1, 3, 9, 9),
    (8, 6, 7, 7),
    (3, 2, 2, 3, 6),
)
_EPSILON = float(np.float32(1e-3))


def per_channel(x: np.ndarray, channel: np.ndarray) -> np.ndarray:
    """[C] as it broadcasts against [N,C,...]."""
    return channel.reshape((-1,) + (1,) * (x.ndim - 2))


def reduced_axes(x: np.ndarray) -> tuple[int, ...]:
    """All axes but that of the channels."""
    return tuple(a for a in range(x.ndim) if a != 1)


def _channel_inputs(random: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """x with another offset in each channel, scale, bias, mean, var."""
    channels = shape[1]
    x = random.standard_normal(shape)
    x = x * per_channel(x, random.uniform(0.5, 2, channels)) + per_channel(x, random.uniform(-3, 3, channels))
    scale, bias, mean = random.standard_normal((3, channels))
    return x, scale, bias, mean, random.uniform(0.5, 2, channels)


def train_cases(random: np.random.Generator) -> Iterable[TestCase]:
    attributes = {"epsilon": _EPSILON, "momentum": 0.75, "training_mode": 1}
    for shape in _SHAPES:
        inputs = _channel_inputs(random, shape)
        yield TestCase(f"{list(shape)}", inputs, attributes, outputs=5, ulps=32)
        constant = frozenset({3, 4})
        yield TestCase(
            f"{list(shape)} frozen", inputs, attributes, constant, absent=frozenset({1, 2}), ulps=32
        )
    x, *others = _channel_inputs(random, (4, 3, 8, 8))
    yield TestCase("far from zero", (x + 1000, *others), attributes, outputs=5, ulps=1000)
    x[0] += 1000  # a first row that says nothing about the others
    yield TestCase("one row far off", (x, *others), attributes, outputs=5, ulps=64)


def decomposed_cases(random: np.random.Generator) -> Iterable[TestCase]:
    attributes = {"epsilon": _EPSILON, "momentum": 0.75, "training_mode": 1}
    for shape in _SHAPES[1:]:
        yield TestCase(f"{list(shape)}", _channel_inputs(random, shape), attributes, outputs=5, ulps=64)


def inference_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in _SHAPES:
        inputs = _channel_inputs(random, shape)
        yield TestCase(f"{list(shape)}", inputs, {"epsilon": _EPSILON}, ulps=8)
        attributes = {"epsilon": _EPSILON, "momentum": 0.75, "training_mode": 1}
        for outputs in (1, 3):
            smooth = outputs == 1  # running statistics that are inputs cannot be updated in place
            name = f"{list(shape)} in training, {outputs} outputs"
            yield TestCase(name, inputs, attributes, outputs=outputs, ulps=64, smooth=smooth)


def recompute_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in _SHAPES:
        yield TestCase(f"{list(shape)}", _channel_inputs(random, shape), ulps=8)


def grad_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in _SHAPES:
        x, scale, _, _, _ = _channel_inputs(random, shape)
        mean, inv_std = x.mean(reduced_axes(x)), 1 / np.sqrt(x.var(reduced_axes(x)) + _EPSILON)
        inputs = (random.standard_normal(shape), x, scale, mean, inv_std)
        yield TestCase(f"{list(shape)}", inputs, {"epsilon": _EPSILON}, outputs=3, ulps=32)


OPS: tuple[()] = ()
