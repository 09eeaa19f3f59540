"""Training with a package that minbuild made, in the shape of `onnxruntime.training.api`.

state = CheckpointState.load_checkpoint("dist/model/checkpoint")
module = Module("dist", state)
optimizer = Optimizer("dist", module)
for batch, labels in data:
    loss = module(batch, labels)
    optimizer.step()
    module.lazy_reset_grad()
CheckpointState.save_checkpoint(state, "checkpoint", include_optimizer_state=True)
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from minbuild.errors import BadInput
from minbuild.toolchain import host_target
from minbuild.training.growth import GrowingSession
from minbuild.training.library import EVAL, TRAIN, Library
from minbuild.training.state import CheckpointState, Parameter, Parameters, Properties

__all__ = [
    "CheckpointState",
    "LinearLRScheduler",
    "Module",
    "Optimizer",
    "Parameter",
    "Parameters",
    "Properties",
]

PLAN = Path("model/trainer.plan")
_LIBRARIES = ("libminbuild.so", "libminbuild.dylib", "minbuild.dll")


class Module:
    """The model of a package: calling it runs one training step, or an evaluation step after `eval()`.

    `train_model_uri` is the package's folder or its plan. The evaluation model is part of the package:
    `eval_model_uri` is there for calls written for onnxruntime and not read, as are `session_options`.
    The sizes of free dimensions may differ from call to call; the first batch larger than all before costs a
    copy of the state. Raises BadInput when the package cannot be used here.
    """

    training: bool

    def __init__(
        self,
        train_model_uri: str | os.PathLike[str],
        state: CheckpointState,
        eval_model_uri: str | os.PathLike[str] | None = None,
        device: str = "cpu",
        session_options: object | None = None,
    ) -> None:
        if device.split(":")[0] != "cpu":
            raise BadInput(f"device {device}: trainers run on the cpu only. Leave `device` out.")
        library, plan = _open_package(Path(train_model_uri))
        self.training = True
        self._device = GrowingSession(library, plan, state._to_bytes(include_optimizer=True))
        self._state = state
        state._attach(self._device)

    def __call__(self, *user_inputs: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
        """One step on a batch, inputs in the order of `input_names`: the output, or a tuple of several. A
        training step adds to the gradients, or replaces them after `lazy_reset_grad`."""
        outputs = self._device.run(self._graph, [np.asarray(x) for x in user_inputs])
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    @property
    def _graph(self) -> int:
        return TRAIN if self.training else EVAL

    def train(self, mode: bool = True) -> Module:
        """Calls train from here on, or evaluate with `mode` False."""
        self.training = mode
        return self

    def eval(self) -> Module:
        """Calls evaluate from here on."""
        return self.train(False)

    def set_seed(self, seed: int) -> None:
        """The seed of the next node that draws random numbers and has none of its own; the one after it takes the
        next number. 0 until set, and as `onnxruntime.set_seed` for every module."""
        self._device.session.seed = seed

    def initialize(self) -> None:
        """Resets parameters and state as the model's own training information says. Raises TrainerError where the
        package is of a model without."""
        self._device.session.initialize()

    def lazy_reset_grad(self) -> None:
        """The next training step replaces the gradients; until then they keep their values."""
        self._device.lazy_reset_grad()

    def get_parameters_size(self, trainable_only: bool = True) -> int:
        """Number of elements of the parameters."""
        return sum(array.size for array in self._arrays(trainable_only))

    def get_contiguous_parameters(self, trainable_only: bool = False) -> np.ndarray:
        """The parameters one after the other, as float32. Raises BadInput where some have another type."""
        arrays = [array.ravel() for array in self._arrays(trainable_only)]
        return np.concatenate(arrays) if arrays else np.empty(0, np.float32)

    def copy_buffer_to_parameters(self, buffer: np.ndarray, trainable_only: bool = True) -> None:
        """The inverse of `get_contiguous_parameters`. Raises BadInput for another size or type."""
        size, given = self.get_parameters_size(trainable_only), np.asarray(buffer)
        if given.dtype != np.float32 or given.shape != (size,):
            raise BadInput(
                f"the buffer is {given.dtype}{list(given.shape)}, the parameters are float32[{size}]. "
                f"`trainable_only` is {trainable_only}."
            )
        at = 0
        for array in self._arrays(trainable_only):
            array[...] = given[at : at + array.size].reshape(array.shape)
            at += array.size

    def _arrays(self, trainable_only: bool) -> list[np.ndarray]:
        session = self._device.session
        names = [n for n, p in session.parameters.items() if p.gradient or not trainable_only]
        arrays = [session.parameter(n) for n in names]
        for name, array in zip(names, arrays, strict=True):
            if array.dtype != np.float32:
                raise BadInput(f"parameter '{name}' is {array.dtype}; only float32 goes into one buffer.")
        return arrays

    def input_names(self) -> list[str]:
        """Inputs of the training or evaluation model, in order."""
        return self._device.session.names(self._graph, outputs=False)

    def output_names(self) -> list[str]:
        """Outputs of the training or evaluation model, in order."""
        return self._device.session.names(self._graph, outputs=True)


class Optimizer:
    """Updates the parameters of a module from their gradients. The optimizer is part of the package:
    `optimizer_uri` is there for calls written for onnxruntime and not read. A model that carries its own training
    updates in each training step and has none."""

    def __init__(self, optimizer_uri: str | os.PathLike[str] | None, module: Module) -> None:
        self._device = module._device

    def step(self) -> None:
        """One update. Raises TrainerError where the package has no optimizer."""
        self._device.session.optimizer_step()

    def set_learning_rate(self, learning_rate: float) -> None:
        self._device.session.learning_rate = learning_rate

    def get_learning_rate(self) -> float:
        """0.001 until set; no checkpoint restores it."""
        return self._device.session.learning_rate


class LinearLRScheduler:
    """The learning rate rises from 0 to `initial_lr` over `warmup_step_count` steps of the optimizer, then
    falls to 0 at step `total_step_count`.

    The arguments mean what they are called. The Python class of onnxruntime passes the two counts to its
    binding the wrong way round: there, (warmup 5, total 20) works as (warmup 20, total 5). To repeat such a
    run, swap them here.
    """

    def __init__(
        self, optimizer: Optimizer, warmup_step_count: int, total_step_count: int, initial_lr: float
    ) -> None:
        self._optimizer, self._initial = optimizer, initial_lr
        self._warmup, self._total = warmup_step_count, total_step_count
        self.step()

    def step(self) -> None:
        """Sets the learning rate for the next update of the optimizer."""
        done = self._optimizer._device.session.step_count
        if done < self._warmup:
            factor = done / max(1, self._warmup)
        else:
            factor = max(0.0, (self._total - done) / max(1, self._total - self._warmup))
        self._optimizer.set_learning_rate(self._initial * factor)


def _open_package(path: Path) -> tuple[Library, bytes]:
    """The library for this machine and the plan, of a package's folder or of a plan inside one."""
    plan = path if path.is_file() else path / PLAN
    folder = plan.parent.parent
    try:
        data = plan.read_bytes()
    except OSError as error:
        raise BadInput(
            f"{plan}: {error.strerror or error}. Give the folder that `minbuild reduce` wrote."
        ) from error
    target = str(host_target())
    found = [file for name in _LIBRARIES if (file := folder / "lib" / target / name).is_file()]
    if not found:
        there = sorted(p.name for p in (folder / "lib").glob("*") if p.is_dir())
        raise BadInput(
            f"{folder}: has no library for {target}, only for {', '.join(there) or 'no machine'}. "
            f"Reduce again with --target {target}."
        )
    return Library(found[0]), data
