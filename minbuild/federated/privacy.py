"""DP-SGD (Abadi et al., 2016): gradients are clipped per sample, added up, and noised before each update; and the
privacy that it spends, by the moments accountant of the subsampled Gaussian mechanism (Mironov et al., 2019)."""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, inf, lgamma, log, log1p
from typing import Any

import numpy as np

from minbuild.errors import BadInput
from minbuild.training.trainer import Trainer

_TINY = 1e-6  # added to norms, as Opacus does
ORDERS = (*range(2, 64), 80, 96, 128, 256, 512)


class PrivateOptimizer:
    """Updates of `trainer` by gradients that are private per sample.

    - `noise_multiplier`: standard deviation of the noise over `max_norm`
    - `max_norm`: norm to which the gradient of one sample is clipped
    - `expected_batch`: what the sum is divided by: the mean size of a batch that `poisson_batches` draws, or the fixed
      size of a batch
    - `random`: of the noise; unpredictable by default

    The loss must be a mean over the batch, or a sum. Layers that mix samples, which is batch normalisation in training
    mode, have no gradient per sample: here each sample is a batch of its own."""

    def __init__(
        self,
        trainer: Trainer,
        noise_multiplier: float,
        max_norm: float,
        expected_batch: float,
        random: np.random.Generator | None = None,
    ) -> None:
        for name, value in (("noise_multiplier", noise_multiplier), ("max_norm", max_norm)):
            if not value >= 0 or (name == "max_norm" and not value > 0):
                raise BadInput(
                    f"{name} {value}: give {'0 or more' if name != 'max_norm' else 'a number above 0'}."
                )
        if not expected_batch > 0:
            raise BadInput(f"expected_batch {expected_batch}: give a number above 0.")
        self._trainer, self._deviation, self._max_norm = trainer, noise_multiplier * max_norm, max_norm
        self._expected, self._random = expected_batch, random or np.random.default_rng()

    def step(self, *inputs: Any) -> float:
        """One private update by a batch of any size, with no samples too. Returns the mean loss of its samples, which
        is not private."""
        arrays = [np.asarray(x) for x in inputs]
        sizes = {len(x) for x in arrays}
        if len(sizes) != 1:
            raise BadInput(
                f"the inputs hold {', '.join(map(str, sorted(sizes)))} samples. Give one of each per sample."
            )
        trainer, losses = self._trainer, []
        gradients = trainer.gradients()
        total = [np.zeros(g.shape) for g in gradients]
        for sample in range(*sizes):
            losses.append(trainer.accumulate(*(x[sample : sample + 1] for x in arrays), reset=True))
            gradients = trainer.gradients()
            norm = np.sqrt(sum(float(np.vdot(g, g)) for g in (each.astype(np.float64) for each in gradients)))
            if not np.isfinite(norm):
                raise BadInput(f"the gradient of sample {sample} is not finite. Lower the learning rate.")
            factor = min(1.0, self._max_norm / (norm + _TINY))
            for whole, each in zip(total, gradients, strict=True):
                whole += factor * each
        for whole, each in zip(total, trainer.gradients(), strict=True):
            each[...] = (whole + self._deviation * self._random.standard_normal(whole.shape)) / self._expected
        trainer.update()
        return float(np.mean(losses)) if losses else float("nan")


def poisson_batches(count: int, rate: float, steps: int, random: np.random.Generator) -> Iterable[np.ndarray]:
    """Sample numbers of `steps` batches: each of `count` samples is in a batch with probability `rate`, as the
    accountant assumes. `random` draws them. Raises BadInput."""
    _check_rate(rate)
    return (np.flatnonzero(random.random(count) < rate) for _ in range(steps))


def epsilon(noise_multiplier: float, rate: float, steps: int, delta: float) -> float:
    """The epsilon of (epsilon, delta) differential privacy after `steps` updates by batches of `poisson_batches` with
    `rate`. Renyi divergences of whole orders are used, so it is an upper bound a little above that of accountants
    with fractional ones. Infinite without noise. `noise_multiplier` is the standard deviation of the noise over the
    clipping norm, `delta` the probability that the bound may fail with. Raises BadInput."""
    _check_rate(rate)
    if not 0 < delta < 1:
        raise BadInput(f"delta {delta}: give a number between 0 and 1, below one over the number of samples.")
    if not noise_multiplier > 0:
        return inf if steps and rate else 0.0
    if not steps or not rate:
        return 0.0
    # Balle et al., 2020, theorem 21: from Renyi divergences to epsilon and delta.
    found = (
        steps * _divergence(rate, noise_multiplier, order)
        + log1p(-1 / order)
        - (log(delta) + log(order)) / (order - 1)
        for order in ORDERS
    )
    return max(0.0, min(found))


def _divergence(rate: float, noise: float, order: int) -> float:
    """The Renyi divergence of whole order of one step (Mironov et al., 2019, section 3.3), in logarithms."""
    if rate == 1:
        return order / (2 * noise * noise)
    terms = [
        lgamma(order + 1) - lgamma(k + 1) - lgamma(order - k + 1)
        + k * log(rate) + (order - k) * log1p(-rate) + k * (k - 1) / (2 * noise * noise)
        for k in range(order + 1)
    ]  # fmt: skip
    largest = max(terms)
    return (largest + log1p(sum(exp(t - largest) for t in terms) - 1)) / (order - 1)


def _check_rate(rate: float) -> None:
    if not 0 <= rate <= 1:
        raise BadInput(f"rate {rate}: give the probability of a sample to be in a batch, from 0 to 1.")
