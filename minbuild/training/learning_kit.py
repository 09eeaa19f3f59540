"""Learning kit: what stands around training steps, with the numbers of include/minbuild/learning.h, which a package has
for C: schedules, early stopping, running means, a replay reservoir, and thresholds for anomaly scores.

rate = cosine_rate(0.01, 0.0, step, warmup=10, total=1000)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from minbuild.errors import BadInput

_WORD = 0xFFFFFFFF


def cosine_rate(rate: float, last: float, step: int, warmup: int, total: int) -> float:
    """The learning rate of step `step`, from 0: up to `rate` over `warmup` steps, then along half a cosine down to
    `last` at step `total`."""
    if step < warmup:
        return rate * (step / warmup)
    if step >= total:
        return last
    return last + (rate - last) * 0.5 * (1 + float(np.cos(np.pi * (step - warmup) / (total - warmup))))


def step_rate(rate: float, factor: float, step: int, every: int) -> float:
    """`rate`, multiplied by `factor` after every `every` steps. `step` counts from 0."""
    return rate * factor ** (step // every) if every else rate


@dataclass
class EarlyStopping:
    """Training should stop after `patience` losses in a row that are not lower than the best by more than `least_gain`.
    `best_at` is the number of the best loss, from 0."""

    patience: int
    least_gain: float = 0.0
    best: float = float("nan")
    best_at: int = 0
    count: int = 0

    def stop(self, loss: float) -> bool:
        """Takes the next loss of validation; True where training should stop. NaN is not better."""
        at, self.count = self.count, self.count + 1
        if loss < self.best - self.least_gain or (np.isnan(self.best) and not np.isnan(loss)):
            self.best, self.best_at = loss, at
        return at > self.best_at and at - self.best_at >= self.patience


@dataclass
class RunningMean:
    """The mean of what was added: losses, or accuracies."""

    mean: float = 0.0
    count: int = 0

    def add(self, value: float, count: int = 1) -> None:
        """Adds `count` values whose mean is `value`."""
        self.count += count
        if self.count:
            self.mean += (value - self.mean) * (count / self.count)

    def add_accuracy(self, scores: Any, labels: Any) -> None:
        """Adds the accuracy of a batch: scores [rows, classes], and labels [rows]."""
        right = np.argmax(np.asarray(scores), 1) == np.asarray(labels)
        if right.size:
            self.add(float(right.mean()), right.size)


class Reservoir:
    """Places for past samples, to replay: every sample so far is in one of `capacity` places with the same
    probability."""

    def __init__(self, capacity: int, seed: int = 0) -> None:
        if capacity < 1:
            raise BadInput(f"capacity {capacity}: give 1 or more.")
        self.capacity, self.count, self._seed = capacity, 0, seed & _WORD

    def place(self) -> int | None:
        """The place where the next sample goes; None where it is left out."""
        at = self.count
        self.count += 1
        if at >= self.capacity:
            at = self._draw(at + 1)
        return at if at < self.capacity else None

    def pick(self) -> int | None:
        """The place of a sample to replay; None while there is none."""
        held = min(self.count, self.capacity)
        return self._draw(held) if held else None

    def _draw(self, limit: int) -> int:
        self._seed = x = (self._seed + 0x9E3779B9) & _WORD
        x = ((x ^ (x >> 16)) * 0x85EBCA6B) & _WORD
        x = ((x ^ (x >> 13)) * 0xC2B2AE35) & _WORD
        return ((x ^ (x >> 16)) * limit) >> 32


@dataclass
class Threshold:
    """A threshold for anomaly scores, from mean and variance of the scores of normal samples. `forget` is the least
    weight of a new score: 0 for all alike."""

    forget: float = 0.0
    mean: float = 0.0
    variance: float = 0.0
    count: int = 0
    votes: int = 0

    def add(self, score: float) -> None:
        """Adds the score of a normal sample."""
        self.count += 1
        weight, difference = max(1 / self.count, self.forget), score - self.mean
        self.mean += weight * difference
        self.variance = (1 - weight) * (self.variance + weight * difference * difference)

    def exceeded(self, score: float, deviations: float) -> bool:
        """True where a score is more than `deviations` standard deviations above the mean, or NaN."""
        above = score - self.mean
        return not (above <= 0 or above * above <= deviations * deviations * self.variance)

    def vote(self, score: float, deviations: float, window: int, needed: int) -> bool:
        """True where at least `needed` of the last `window` scores, 1 to 32 of them, exceeded. `score` counts as
        exceeding above `deviations` standard deviations from the mean."""
        self.votes = (self.votes << 1 | self.exceeded(score, deviations)) & _WORD
        recent = self.votes & ((1 << window) - 1) if window < 32 else self.votes
        return recent.bit_count() >= needed
