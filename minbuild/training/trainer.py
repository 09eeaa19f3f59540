"""A package's trainer as one object: steps, parameters by name and as one flat array, saving and going on.

trainer = Trainer("dist", learning_rate=0.01)
loss = trainer.step(images, labels)
trainer.save("trained.checkpoint")
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from minbuild.errors import BadInput
from minbuild.ir.size_report import SizeReport
from minbuild.training.api import CheckpointState, Module, Optimizer


class Trainer:
    """The trainer of package `package`, which begins with the package's own checkpoint or with `checkpoint`.

    `learning_rate` is 0.001 unless given, or what it was when the checkpoint was saved. `report` is the size report of
    the package, where it was just built. `module`, `optimizer` and `state` are what `minbuild.training.api` makes of
    the package, for gradients over several batches and the like. The package is opened when it is first used. Raises
    BadInput where the package has no library for this machine."""

    def __init__(
        self,
        package: str | os.PathLike[str],
        checkpoint: str | os.PathLike[str] | None = None,
        learning_rate: float | None = None,
        report: SizeReport | None = None,
    ) -> None:
        self.package, self.report = Path(package), report
        self._checkpoint = (
            Path(checkpoint) if checkpoint is not None else self.package / "model" / "checkpoint"
        )
        self._learning_rate = learning_rate
        self._opened: tuple[CheckpointState, Module, Optimizer] | None = None

    def _open(self) -> tuple[CheckpointState, Module, Optimizer]:
        if self._opened is None:
            compact = self._checkpoint.with_name(f"{self._checkpoint.name}.compact")
            if not self._checkpoint.exists() and compact.exists():
                raise BadInput(
                    f"{compact}: parameters without names, as they take 2 GB or more. Give the checkpoint that the "
                    'package was made of: Trainer(package, "artifacts/checkpoint").'
                )
            opened = self._use(CheckpointState.load_checkpoint(self._checkpoint))
            if self._learning_rate is not None:
                opened[2].set_learning_rate(self._learning_rate)
            return opened
        return self._opened

    def _use(self, state: CheckpointState) -> tuple[CheckpointState, Module, Optimizer]:
        module = Module(self.package, state)
        self._opened = state, module, Optimizer(None, module)
        return self._opened

    @property
    def state(self) -> CheckpointState:
        """Parameters, optimizer state and properties."""
        return self._open()[0]

    @property
    def module(self) -> Module:
        """Training and evaluation steps."""
        return self._open()[1]

    @property
    def optimizer(self) -> Optimizer:
        """Updates."""
        return self._open()[2]

    @property
    def learning_rate(self) -> float:
        """The rate of the steps to come."""
        return self.optimizer.get_learning_rate()

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self.optimizer.set_learning_rate(rate)

    def step(self, *inputs: Any) -> float:
        """One training step and one update on a batch: arrays or tensors, in the order of `module.input_names`.
        Returns the loss."""
        if self.module.fused_updates:
            outputs = self.module.train_and_update(*inputs)
            return float(outputs[0] if isinstance(outputs, tuple) else outputs)
        loss = self.accumulate(*inputs)
        self.update()
        return loss

    def accumulate(self, *inputs: Any, reset: bool = False) -> float:
        """One training step without an update: gradients add up, or replace those before with `reset`. Returns the
        loss."""
        if reset:
            self.module.lazy_reset_grad()
        outputs = self.module.train()(*inputs)
        return float(outputs[0] if isinstance(outputs, tuple) else outputs)

    def update(self) -> None:
        """One update by the gradients, which the next step replaces."""
        self.optimizer.step()
        self.module.lazy_reset_grad()

    def gradients(self) -> list[np.ndarray]:
        """The gradients in the order of `trained`: the trainer's own memory, until a larger batch makes it move.
        `update` takes what is written there."""
        session = self.module._device.session
        found = [session.gradient(name) for name in self.trained]
        return [each for each in found if each is not None]

    def evaluate(self, *inputs: Any) -> tuple[np.ndarray, ...]:
        """The outputs of the evaluation model on a batch: the loss, and what else it was made to return."""
        outputs = self.module.eval()(*inputs)
        self.module.train()
        return outputs if isinstance(outputs, tuple) else (outputs,)

    @property
    def trained(self) -> tuple[str, ...]:
        """Names of the parameters that train, in the order of `flat`."""
        return tuple(self.module.parameter_names(trainable_only=True))

    def parameter(self, name: str) -> np.ndarray:
        """A copy of a parameter. Raises KeyError."""
        return self.state.parameters[name].data

    def flat(self) -> np.ndarray:
        """A copy of the parameters that train, one after the other."""
        return self.module.get_contiguous_parameters(trainable_only=True).numpy()

    def set_flat(self, values: np.ndarray) -> None:
        """Replaces the parameters that train by those of an array as of `flat`. Raises BadInput for another size."""
        self.module.copy_buffer_to_parameters(np.asarray(values, np.float32), trainable_only=True)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a checkpoint with parameters, optimizer state and learning rate: `Trainer(package, path)` goes on
        from it. Raises BadInput."""
        CheckpointState.save_checkpoint(self.state, path, include_optimizer_state=True)

    def to_bytes(self) -> bytes:
        """The same as bytes."""
        return self.state._to_bytes(include_optimizer=True)

    def load_bytes(self, checkpoint: bytes) -> None:
        """Goes on from a checkpoint's bytes. Raises BadInput."""
        self._use(CheckpointState.load_checkpoint_from_buffer(checkpoint))
