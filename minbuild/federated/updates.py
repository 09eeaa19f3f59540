"""Updates: the difference of parameters since a round began, one flat array of float32, and what is done to it before
it leaves a device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minbuild.errors import BadInput

_MOST = 127  # the largest int8 whose negative is one


def clipped(update: np.ndarray, norm: float) -> np.ndarray:
    """The update, scaled down to Euclidean norm `norm` where it is longer. Raises BadInput for a norm that is not
    positive, and for an update that is not finite, which no scale mends."""
    if not norm > 0:
        raise BadInput(f"clipping norm {norm}: give a number above 0.")
    length = float(np.linalg.norm(update.astype(np.float64)))
    if not np.isfinite(length):
        raise BadInput("the update is not finite: training diverged. Lower the learning rate.")
    return update if length <= norm else (update * (norm / length)).astype(np.float32)


def noised(update: np.ndarray, deviation: float, random: np.random.Generator) -> np.ndarray:
    """The update with Gaussian noise of standard deviation `deviation` added to each number. For central differential
    privacy of the mean of n clipped updates, each client adds noise_multiplier * norm / sqrt(n). `update` is an array
    of any shape; `random` draws the noise."""
    if not deviation >= 0:
        raise BadInput(f"deviation {deviation}: give 0 or more.")
    noise = random.standard_normal(update.shape) * deviation
    return (update + noise).astype(np.float32) if deviation else update


@dataclass(frozen=True, slots=True)
class QuantizedUpdate:
    """An update as int8: `values` times `scale`, one scale for every `block` numbers."""

    values: np.ndarray  # int8[n]
    scale: np.ndarray  # float32[ceil(n / block)]
    block: int

    def restored(self) -> np.ndarray:
        """The update as float32[n]."""
        scales = np.repeat(self.scale, self.block)[: self.values.size]
        return (self.values * scales).astype(np.float32)

    @property
    def nbytes(self) -> int:
        """Bytes that travel."""
        return self.values.nbytes + self.scale.nbytes


def quantized(update: np.ndarray, random: np.random.Generator, block: int = 256) -> QuantizedUpdate:
    """The update in int8, rounded up or down at random so that its expectation stays: errors of many clients cancel
    out in their mean. Every `block` numbers share a scale, the largest of them over 127. `update` is an array of any
    shape; `random` decides the rounding."""
    if block < 1:
        raise BadInput(f"block {block}: give 1 or more.")
    if not np.isfinite(update).all():
        raise BadInput("the update is not finite: training diverged. Lower the learning rate.")
    padded = np.zeros(-(-update.size // block) * block, np.float32)
    padded[: update.size] = update
    rows = padded.reshape(-1, block)
    scale = (np.abs(rows).max(1) / _MOST).astype(np.float32)
    steps = np.divide(rows, scale[:, None], out=np.zeros_like(rows), where=scale[:, None] > 0)
    rounded = np.clip(np.floor(steps + random.random(rows.shape)), -_MOST, _MOST)
    return QuantizedUpdate(rounded.astype(np.int8).ravel()[: update.size], scale, block)
