"""Scales and zero points of 8-bit numbers: of activations from what they were on batches, of weights channel by
channel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MOST, LARGEST_WEIGHT = 255, 127  # of activations in uint8, of weights in int8
_LEAST = 2.0**-20  # of the largest scale: that of channels whose weights are all zero
_LARGEST_PAIR = 128  # 128 * 255 fits in 16 bits; rounding both up costs one
_SHRUNK = np.arange(20, 41) / 40  # parts of the whole range that are tried
_SAMPLES = 1 << 16  # numbers that a range is chosen with


@dataclass(frozen=True)
class Quantized:
    """Linear quantisation: a number is (q - zero) * scale. Of weights, both are along one axis."""

    scale: np.ndarray
    zero: np.ndarray


def activation_range(values: np.ndarray) -> Quantized:
    """The range, within that of `values` and zero, with the least squared error of rounding and clipping them."""
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    if low == high:
        return Quantized(np.array(1.0, np.float32), np.array(0, np.uint8))
    flat = values.reshape(-1)
    sample = flat if flat.size <= _SAMPLES else np.random.default_rng(0).choice(flat, _SAMPLES)
    tried = (_linear(low * part, high * part) for part in _SHRUNK[::-1])
    return min(tried, key=lambda found: _squared_error(sample, found))


def _linear(low: float, high: float) -> Quantized:
    """From `low` to `high`, with zero exactly."""
    scale = np.float32(max((high - low) / MOST, float(np.finfo(np.float32).tiny)))
    zero = np.clip(np.rint(-low / scale), 0, MOST)
    return Quantized(np.array(scale, np.float32), zero.astype(np.uint8))


def _squared_error(values: np.ndarray, found: Quantized) -> float:
    zero = float(found.zero)
    near = (np.clip(np.rint(values / found.scale) + zero, 0, MOST) - zero) * found.scale
    return float(np.square(near - values).sum())


def weight_range(weight: np.ndarray, axis: int, pairs: bool) -> Quantized:
    """A scale for each channel along `axis`, zero points of 0, numbers from -127 to 127. With `pairs`, the magnitudes
    of no two weights of a channel add up to more than 128: x86 processors without VNNI multiply by activations of up
    to 255 and add two products in 16 bits, which saturate. `weight` is an array in float."""
    others = tuple(a for a in range(weight.ndim) if a != axis)
    magnitudes = np.sort(
        np.abs(weight.astype(np.float64)).transpose(axis, *others).reshape(weight.shape[axis], -1)
    )
    scale = magnitudes[:, -1] / LARGEST_WEIGHT
    if pairs:
        scale = np.maximum(scale, magnitudes[:, -2:].sum(1) / (_LARGEST_PAIR - 1))
    least = max(float(scale.max(initial=0)) * _LEAST, float(np.finfo(np.float32).tiny))
    return Quantized(np.maximum(scale, least).astype(np.float32), np.zeros(scale.shape, np.int8))


def quantized_weight(weight: np.ndarray, found: Quantized, axis: int) -> np.ndarray:
    """`weight` in int8, by the scales `found` for each channel along `axis`."""
    along = [-1 if a == axis else 1 for a in range(weight.ndim)]
    q = np.rint(weight.astype(np.float64) / found.scale.astype(np.float64).reshape(along))
    return np.clip(q, -LARGEST_WEIGHT, LARGEST_WEIGHT).astype(np.int8)


def quantized_bias(bias: np.ndarray, scale: np.ndarray) -> np.ndarray | None:
    """The bias in int32 at the scale of its products; None where a number does not fit."""
    q = np.rint(bias.astype(np.float64) / scale.astype(np.float64))
    return q.astype(np.int32) if (np.abs(q) < 2**31).all() else None
