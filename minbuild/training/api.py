"""Training in the shape of `onnxruntime.training.api`, with the files that it would be given, or with a package.

state = CheckpointState.load_checkpoint("artifacts/checkpoint")
module = Module("artifacts/training_model.onnx", state, "artifacts/eval_model.onnx")
optimizer = Optimizer("artifacts/optimizer_model.onnx", module)
for batch, labels in data:
    loss = module(batch, labels)
    optimizer.step()
    module.lazy_reset_grad()
CheckpointState.save_checkpoint(state, "checkpoint", include_optimizer_state=True)

`Module("dist", state)` runs the library of a package instead. Either way it is the code that ships.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minbuild.codegen.atomic_write import write_file
from minbuild.codegen.ownership import MANIFEST
from minbuild.codegen.package_layout import abi_version
from minbuild.errors import BadInput
from minbuild.frontend.checkpoint import read_checkpoint
from minbuild.frontend.files import read_file
from minbuild.ir.mapped import map_large
from minbuild.options.build_options import COMPILED
from minbuild.planning.inference_export import fill_template
from minbuild.planning.plan_outline import PlanOutline, SessionPlan
from minbuild.toolchain import host_target
from minbuild.training.arrays import Buffer, as_array, wrapped_like
from minbuild.training.jit_build import SUFFIXES, ArtifactFiles
from minbuild.training.library import EVAL, TRAIN, TRAIN_AND_UPDATE, Library, TrainerError
from minbuild.training.refusals import UNSUPPORTED
from minbuild.training.resizing_session import ResizingSession
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

PLAN, _EXPORT_TEMPLATE = Path("model/trainer.plan"), "inference.template"
_LIBRARIES = ("libminbuild.so", "libminbuild.dylib", "minbuild.dll")


class Module:
    """The model of training artifacts or of a package: calling it runs one training step, or an evaluation step after
    `eval()`.

    `train_model_uri` is a training model (.onnx, .ort), a package's folder, or its plan. Trainers of artifacts are
    built when they are first needed, and kept. A package has its evaluation model: `eval_model_uri` is not read then,
    nor are `session_options` ever. `state` holds the parameters; one state serves one model and its optimizer.
    `device` is "cpu". The sizes of free dimensions may differ from call to call; the first batch larger than all
    before costs a copy. Raises BadInput and Unsupported when the files cannot be used.
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
        path = Path(train_model_uri)
        self.training = True
        self._state = state
        self._artifacts: ArtifactFiles | None = None
        self._plan: Path | None = None
        if path.suffix in SUFFIXES:
            evaluation = None if eval_model_uri is None else Path(eval_model_uri)
            self._artifacts = ArtifactFiles.read(path, evaluation, None, state._checkpoint)
            state._claim(self._build)
        else:
            self._plan, library, plan = _open_package(path)
            state._claim(lambda: (library, plan))
            state._opened()

    def _build(self) -> tuple[Library, SessionPlan]:
        assert self._artifacts is not None
        return self._artifacts.build()

    def _use_optimizer(self, path: Path) -> None:
        """Train with this optimizer model from here on; a package has its own."""
        if self._artifacts is not None and self._artifacts.optimizer != path:
            self._artifacts = self._artifacts.with_optimizer(path)
            self._state._reopen()

    @property
    def _device(self) -> ResizingSession:
        return self._state._opened()

    def __call__(self, *user_inputs: Any) -> np.ndarray | tuple[np.ndarray, ...]:
        """One step on a batch, inputs in the order of `input_names`: arrays, or anything that shares its memory by
        DLPack or the buffer protocol. The output, or a tuple of several; where an input is an OrtValue of onnxruntime,
        they are too. A training step adds to the gradients, or replaces them after `lazy_reset_grad`. Raises
        TrainerError, of training steps where the package was reduced with --updates fused."""
        self._state._check_filled()
        if self.training:
            self._refuse_updates(fused=True)
        outputs = wrapped_like(user_inputs, self._device.run(self._graph, [as_array(x) for x in user_inputs]))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def train_and_update(self, *user_inputs: Any) -> np.ndarray | tuple[np.ndarray, ...]:
        """One training step with the update of the parameters, of a package that was reduced with --updates fused: the
        outputs as of a call. Raises TrainerError for other packages; where a gradient is not finite, its text names the
        parameter, and the state takes nothing but a checkpoint from then on."""
        self._state._check_filled()
        self._refuse_updates(fused=False)
        arrays = [as_array(x) for x in user_inputs]
        outputs = wrapped_like(user_inputs, self._device.run(TRAIN_AND_UPDATE, arrays))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _refuse_updates(self, fused: bool) -> None:
        """Raises TrainerError, which names the call to make, where the updates of training steps are as `fused`."""
        if self.fused_updates and fused:
            text = (
                "no such graph: the package was reduced with --updates fused. Call train_and_update(*inputs)."
            )
            raise TrainerError(UNSUPPORTED, text)
        if not self.fused_updates and not fused:
            text = "no such graph: --updates fused was left out. Call the module, then Optimizer.step()."
            raise TrainerError(UNSUPPORTED, text)

    @property
    def fused_updates(self) -> bool:
        """True if training steps update parameters: `train_and_update` is then the only way to train."""
        return self._device.fused_updates

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
        model has none."""
        self._device.session.initialize()

    def lazy_reset_grad(self) -> None:
        """The next training step replaces the gradients; until then they keep their values."""
        self._device.lazy_reset_grad()

    def parameter_names(self, trainable_only: bool = False) -> list[str]:
        """Names of the parameters in the order of `get_contiguous_parameters`."""
        device = self._device
        return [n for n in device.order if device.session.is_trained(n) or not trainable_only]

    def get_parameters_size(self, trainable_only: bool = True) -> int:
        """Number of elements of the parameters."""
        return sum(array.size for array in self._arrays(trainable_only))

    def get_contiguous_parameters(self, trainable_only: bool = False) -> Buffer:
        """The parameters one after the other in the order of the training model's inputs, as float32. Raises BadInput
        where some have another type."""
        self._state._check_filled()
        arrays = [array.ravel() for array in self._arrays(trainable_only)]
        return (np.concatenate(arrays) if arrays else np.empty(0, np.float32)).view(Buffer)

    def copy_buffer_to_parameters(self, buffer: Any, trainable_only: bool = True) -> None:
        """The inverse of `get_contiguous_parameters`. All parameters of a nominal state are filled first. Raises
        BadInput for another size or type."""
        if trainable_only:
            self._state._check_filled()
        size, given = self.get_parameters_size(trainable_only), as_array(buffer)
        if given.dtype != np.float32 or given.shape != (size,):
            raise BadInput(
                f"the buffer is {given.dtype}{list(given.shape)}, the parameters are float32[{size}]. "
                f"`trainable_only` is {trainable_only}."
            )
        at = 0
        for array in self._arrays(trainable_only):
            array[...] = given[at : at + array.size].reshape(array.shape)
            at += array.size
        self._state._nominal = False

    def _arrays(self, trainable_only: bool) -> list[np.ndarray]:
        session = self._device.session
        names = self.parameter_names(trainable_only)
        arrays = [session.parameter(n) for n in names]
        for name, array in zip(names, arrays, strict=True):
            if array.dtype != np.float32:
                raise BadInput(f"parameter '{name}' is {array.dtype}; only float32 goes into one buffer.")
        return arrays

    def export_model_for_inferencing(
        self, inference_model_uri: str | os.PathLike[str], graph_output_names: Sequence[str]
    ) -> None:
        """Writes an ONNX file that makes these outputs with the parameters as they are. A package exports the outputs
        it was reduced for. Raises BadInput."""
        self._state._check_filled()
        names = list(graph_output_names)
        if self._artifacts is not None:
            held = self._state._large() or read_checkpoint(self._state._to_bytes(False))
            data = self._artifacts.export(held, names)
        else:
            assert self._plan is not None
            session = self._device.session
            arrays = [session.parameter(name) for name in session.parameters]
            data = fill_template(_export_template(self._plan), arrays, names)
        write_file(Path(inference_model_uri), data)

    def input_names(self) -> list[str]:
        """Inputs of the training or evaluation model, in order."""
        return self._device.session.names(self._graph, outputs=False)

    def output_names(self) -> list[str]:
        """Outputs of the training or evaluation model, in order."""
        return self._device.session.names(self._graph, outputs=True)


class Optimizer:
    """Updates the parameters of a module from their gradients. `optimizer_uri` is an optimizer model; it is not read
    for a module of a package, which has its own. A model that carries its own training updates in each training step
    and has none. Raises BadInput and Unsupported."""

    def __init__(self, optimizer_uri: str | os.PathLike[str] | None, module: Module) -> None:
        self._module = module
        if optimizer_uri is not None:
            module._use_optimizer(Path(optimizer_uri))

    def step(self) -> None:
        """One update. Raises TrainerError where there is no optimizer, and where training steps update parameters."""
        self._module._state._check_filled()
        self._module._refuse_updates(fused=True)
        self._module._device.session.optimizer_step()

    def set_learning_rate(self, learning_rate: float) -> None:
        """The rate of the steps to come."""
        self._module._device.session.learning_rate = learning_rate

    def get_learning_rate(self) -> float:
        """0.001 until set, or what it was when the state was saved with its optimizer state."""
        return self._module._device.session.learning_rate


class LinearLRScheduler:
    """The learning rate of `optimizer` rises from 0 to `initial_lr` over `warmup_step_count` steps of the optimizer,
    then falls to 0 at step `total_step_count`.

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
        done = self._optimizer._module._device.session.step_count
        if done < self._warmup:
            factor = done / max(1, self._warmup)
        else:
            factor = max(0.0, (self._total - done) / max(1, self._total - self._warmup))
        self._optimizer.set_learning_rate(self._initial * factor)


def _open_package(path: Path) -> tuple[Path, Library, SessionPlan]:
    """The plan's path, the library for this machine and the plan: of a package's folder, of a plan inside one, or of
    the folder that a plan is in. Where the library has the plan compiled in, the path is where it would be."""
    plan = (
        path
        if path.is_file()
        else next((p for p in (path / PLAN, path / PLAN.name) if p.is_file()), path / PLAN)
    )
    folder = next((p for p in plan.parents if (p / "lib").is_dir()), plan.parent.parent)
    outline = _compiled_in(folder)
    try:
        data = SessionPlan(b"", outline) if outline else SessionPlan.of(map_large(plan) or plan.read_bytes())
    except OSError as error:
        several = sorted(str(p.parent) for p in path.glob(f"model/*/{PLAN.name}"))
        cure = (
            f"one of {', '.join(several)}"
            if several
            else "the folder that `minbuild reduce` wrote, or a training model"
        )
        raise BadInput(f"{plan}: {error.strerror or error}. Give {cure}.") from error
    target = str(host_target())
    found = [file for name in _LIBRARIES if (file := folder / "lib" / target / name).is_file()]
    if not found:
        there = sorted(p.name for p in (folder / "lib").glob("*") if p.is_dir())
        raise BadInput(
            f"{folder}: has no library for {target}, only for {', '.join(there) or 'no machine'}. "
            f"Reduce again with --target {target}."
        )
    return plan, Library(found[0]), data


def _compiled_in(folder: Path) -> PlanOutline | None:
    """The outline, from the manifest of a package, of the plan that its library has compiled in; None where plans are
    read. Raises BadInput for a manifest that cannot be understood, or of a library with another interface."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        manifest = json.loads(read_file(path))
        if (abi := manifest.get("abi", abi_version())) != abi_version():
            raise BadInput(
                f"{folder}: its library has version {abi} of the interface, this minbuild has {abi_version()}. Reduce "
                "again, or use the minbuild that it was built with."
            )
        return PlanOutline.from_dict(manifest["plan"]) if manifest.get("flavor") == COMPILED else None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(
            f"{path}: does not say what plan the library has ({type(error).__name__}: {error}). Reduce again."
        ) from error


def _export_template(plan: Path) -> bytes:
    """The template of inference models that stands beside a plan."""
    path = plan.with_name(_EXPORT_TEMPLATE)
    if not path.is_file():
        raise BadInput(
            f"{path}: no such file, so there is nothing to export. Reduce again with --with export."
        )
    return read_file(path)
