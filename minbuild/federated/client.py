"""A round of one client: training from the server's parameters, and the update that it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minbuild.errors import BadInput
from minbuild.federated.updates import clipped, noised
from minbuild.training.trainer import Trainer


@dataclass(frozen=True)
class LocalTraining:
    """Training between two rounds.

    - `epochs`, `batch`: passes over the client's samples, and samples of a step. `drop_last` leaves out those that do
      not fill the last batch, for trainers of a fixed batch
    - `clip`: norm that the update is clipped to; `noise`: deviation of the Gaussian noise that is added to it
    - `optimizer_state`: keep moments from round to round, as a device does that trains again; else they begin anew"""

    epochs: int = 1
    batch: int = 16
    learning_rate: float | None = None
    clip: float | None = None
    noise: float = 0.0
    drop_last: bool = False
    optimizer_state: bool = False

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1:
            raise BadInput(f"epochs {self.epochs}, batch {self.batch}: give 1 or more of each.")
        if self.noise and self.clip is None:
            raise BadInput(
                "noise without clip protects nothing: one update may be as long as it likes. Give clip."
            )

    def with_rate(self, learning_rate: float) -> LocalTraining:
        """The same with another learning rate."""
        return replace(self, learning_rate=learning_rate)


class Client:
    """A trainer and a client's samples: arrays with one row per sample, in the order of the trainer's inputs.

    `open_trainer` makes the trainer when a round needs it; nothing of it is kept after, so that thousands of clients
    fit into one process. `seed` decides the order of samples, and noise where it is not None. `data` are the client's
    samples."""

    def __init__(
        self, open_trainer: Callable[[], Trainer], data: Sequence[Any], seed: int | None = None
    ) -> None:
        self._open_trainer, self._data = open_trainer, [np.asarray(each) for each in data]
        counts = {len(each) for each in self._data}
        if len(counts) != 1 or not all(counts):
            raise BadInput(
                "a client's arrays hold different numbers of samples, or none. Give a row per sample."
            )
        (self.samples,) = counts
        self.random = np.random.default_rng(seed)
        self.checkpoint: bytes | None = (
            None  # the trainer's state after the last round, with `optimizer_state`
        )

    def parameters(self) -> np.ndarray:
        """The trained parameters of the package, for a server that begins with them."""
        return self._open_trainer().flat()

    def train(self, parameters: np.ndarray, how: LocalTraining) -> tuple[np.ndarray, float]:
        """The update from the server's `parameters`, float32[n], and the mean loss of the steps. Raises BadInput where
        `parameters` are of another model, or training diverged."""
        trainer = self._trainer_with(parameters)
        if how.learning_rate is not None:
            trainer.learning_rate = how.learning_rate
        losses = [trainer.step(*(each[chosen] for each in self._data)) for chosen in self._batches(how)]
        if not losses:
            raise BadInput(f"{self.samples} samples fill no batch of {how.batch}. Give a smaller batch.")
        update = trainer.flat() - parameters
        if not np.isfinite(update).all():
            raise BadInput("the update is not finite: training diverged. Lower the learning rate.")
        if how.optimizer_state:
            self.checkpoint = trainer.to_bytes()
        if how.clip is not None:
            update = noised(clipped(update, how.clip), how.noise, self.random)
        return update.astype(np.float32), float(np.mean(losses))

    def evaluate(self, parameters: np.ndarray, batch: int = 64) -> float:
        """The mean loss of the server's `parameters` on the client's samples."""
        trainer = self._trainer_with(parameters)
        total = 0.0
        for first in range(0, self.samples, batch):
            rows = [each[first : first + batch] for each in self._data]
            total += float(trainer.evaluate(*rows)[0]) * len(rows[0])
        return total / self.samples

    def _trainer_with(self, parameters: np.ndarray) -> Trainer:
        trainer = self._open_trainer()
        if self.checkpoint is not None:
            trainer.load_bytes(self.checkpoint)
        trainer.set_flat(parameters)
        return trainer

    def _batches(self, how: LocalTraining) -> Iterator[np.ndarray]:
        for _ in range(how.epochs):
            order = self.random.permutation(self.samples)
            for first in range(0, self.samples, how.batch):
                chosen = order[first : first + how.batch]
                if len(chosen) == how.batch or not how.drop_last:
                    yield chosen
