"""The state of a training session: parameters, optimizer state and properties, as a checkpoint holds them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from minbuild import ir as model
from minbuild.codegen.atomic_write import write_file
from minbuild.errors import BadInput
from minbuild.frontend.checkpoint import (
    LARGEST_FILE,
    parameter_bytes,
    read_checkpoint,
    write_checkpoint,
    write_checkpoint_files,
)
from minbuild.ir.mapped import FileBytes
from minbuild.planning.compact_checkpoint import compact_checkpoint
from minbuild.planning.plan_outline import SessionPlan
from minbuild.training.arrays import as_array
from minbuild.training.library import Library
from minbuild.training.resizing_session import ResizingSession

Property = int | float | str


LEARNING_RATE = (
    "minbuild.learning_rate"  # the property that it is saved as, which onnxruntime does not restore
)


class CheckpointState:
    """The state that `load_checkpoint` read; once a Module uses it, what the module has made of it."""

    def __init__(self, checkpoint: model.Checkpoint) -> None:
        # What the device does not have: everything before there is one, then what its graphs do not use.
        self._checkpoint = checkpoint
        self._kept = {p.name: p for p in checkpoint.parameters}
        self._bag: dict[str, Property] = dict(checkpoint.properties)
        rate = self._bag.pop(LEARNING_RATE, None)
        self._rate = rate if isinstance(rate, float) else None
        self._nominal = checkpoint.nominal
        self._open: Callable[[], tuple[Library, SessionPlan]] | None = None
        self._device: ResizingSession | None = None

    @classmethod
    def load_checkpoint(cls, checkpoint_uri: str | os.PathLike[str]) -> CheckpointState:
        """Reads an ONNX Runtime checkpoint, with its separate data file if it has one. Raises BadInput."""
        return cls(read_checkpoint(Path(checkpoint_uri)))

    @classmethod
    def load_checkpoint_from_buffer(cls, checkpoint: bytes) -> CheckpointState:
        """The same of a checkpoint's bytes, which cannot have a separate data file. Raises BadInput."""
        return cls(read_checkpoint(bytes(checkpoint)))

    @classmethod
    def save_checkpoint(
        cls,
        state: CheckpointState,
        checkpoint_uri: str | os.PathLike[str],
        include_optimizer_state: bool = False,
    ) -> None:
        """Writes `state` to the file `checkpoint_uri`, in ONNX Runtime's format. The old file survives any failure.

        `include_optimizer_state` adds moments, the step count and the learning rate. Without them, parameters of 2 GB
        and more go into a second file, `<checkpoint_uri>.data`. Raises BadInput when a file cannot be written, and
        TrainerError for optimizer state beside those."""
        path = Path(checkpoint_uri)
        if include_optimizer_state or (held := state._large()) is None:
            write_file(path, state._to_bytes(include_optimizer_state))
            return
        files = write_checkpoint_files(held, path.name, LARGEST_FILE)
        for name, data in reversed(files.items()):
            write_file(path.with_name(name), data)

    @property
    def parameters(self) -> Parameters:
        """The parameters by name."""
        return Parameters(self)

    @property
    def properties(self) -> Properties:
        """Numbers and texts the user keeps with the model."""
        return Properties(self)

    def _claim(self, build: Callable[[], tuple[Library, SessionPlan]]) -> None:
        """Belong to a module; `build` gives the library and the plan to use when there must be a session."""
        if self._open is not None:
            raise BadInput("this CheckpointState already belongs to a Module. Load the checkpoint once more.")
        self._open = build

    def _opened(self) -> ResizingSession:
        """The session of the module that the state belongs to, made by the first who asks."""
        if self._device is None:
            assert self._open is not None
            library, plan = self._open()
            self._device = ResizingSession(library, plan, None if self._nominal else self._first(plan.data))
            if self._rate is not None:
                self._device.session.learning_rate = self._rate
            self._forget_what_the_device_has()
        return self._device

    def _first(self, plan: FileBytes) -> FileBytes:
        """The checkpoint of the first session. Parameters beyond the format of ONNX Runtime go into a compact one for
        `plan`, and properties stay here."""
        held = replace(self._checkpoint, parameters=tuple(self._kept.values()), properties={})
        size = parameter_bytes(held)
        if size < LARGEST_FILE or not plan:
            return self._to_bytes(True)
        wish = f"checkpoint: {size:,} bytes of parameters are more than a file of ONNX Runtime's format holds"
        return compact_checkpoint(held, plan, wish)

    def _reopen(self) -> None:
        """Go on with what the module builds now, if there is a session already."""
        if self._device is not None:
            assert self._open is not None
            library, plan = self._open()
            self._device.change(library, plan, self._to_bytes(True))
            self._forget_what_the_device_has()

    def _forget_what_the_device_has(self) -> None:
        assert self._device is not None
        held = self._device.session.parameters
        self._kept = {n: p for n, p in self._kept.items() if n not in held}
        groups = () if self._device.optimizes else self._checkpoint.groups
        self._checkpoint = replace(self._checkpoint, parameters=(), groups=groups)

    def _check_filled(self, what: str = "the model parameters") -> None:
        """Raises BadInput while a nominal state waits for its values."""
        if self._nominal:
            raise BadInput(
                f"the checkpoint is nominal: its parameters have no values yet. Please load {what} first. Call "
                "copy_buffer_to_parameters(buffer, trainable_only=False), or load a full checkpoint."
            )

    def _to_bytes(self, include_optimizer: bool) -> bytes:
        held, groups, rate = self._checkpoint, self._checkpoint.groups, self._rate
        parameters = tuple(self._kept.values())
        if self._device is not None:
            self._check_filled()
            held = read_checkpoint(self._device.session.checkpoint(include_optimizer))
            parameters = held.parameters + parameters
            if self._device.optimizes:
                groups, rate = held.groups, self._device.session.learning_rate
        kept: dict[str, Property] = {LEARNING_RATE: rate} if include_optimizer and rate is not None else {}
        return write_checkpoint(
            replace(
                held,
                parameters=parameters,
                groups=groups if include_optimizer else (),
                properties={**self._bag, **kept},
            )
        )

    def _large(self) -> model.Checkpoint | None:
        """Parameters and properties, read in place, where they are too many for one file."""
        held = tuple(self._kept.values())
        if self._device is not None:
            self._check_filled()
            session = self._device.session
            arrays = {name: session.parameter(name) for name in session.parameters}
            held = (*(_parameter(n, a, session.is_trained(n)) for n, a in arrays.items()), *held)
        whole = replace(self._checkpoint, parameters=held, groups=(), properties=self._bag, seal=None)
        return None if parameter_bytes(whole) < LARGEST_FILE else whole

    def _names(self) -> list[str]:
        known = self._device.session.parameters if self._device else {}
        return sorted({*self._kept, *known})


def _parameter(name: str, array: np.ndarray, trains: bool) -> model.Parameter:
    element = model.ElementType.of(array.dtype)
    assert element is not None, "devices have no others"
    return model.Parameter(name, element, array.shape, trains, array)


class Parameter:
    """One parameter of a state. `data` and `grad` are copies; `np.from_dlpack(parameter)`, or that of another library,
    is the memory itself: it shows every update, until a larger batch makes the state move."""

    def __init__(self, name: str, state: CheckpointState) -> None:
        self._name, self._state = name, state

    @property
    def name(self) -> str:
        return self._name

    @property
    def data(self) -> np.ndarray:
        """The values."""
        return self._memory().copy()

    @data.setter
    def data(self, value: Any) -> None:
        """New values of the same shape and type. Raises BadInput for others."""
        old, new = self._memory(), as_array(value)
        if old.shape != new.shape or old.dtype != new.dtype:
            raise BadInput(
                f"parameter '{self._name}' is {old.dtype}{list(old.shape)}, the new data "
                f"{new.dtype}{list(new.shape)}. Convert it."
            )
        kept = self._state._kept.get(self._name)
        if kept is not None:
            self._state._kept[self._name] = replace(kept, data=new.copy())
        else:
            old[...] = new

    def _memory(self) -> np.ndarray:
        self._state._check_filled()
        kept = self._state._kept.get(self._name)
        if kept is None:
            return self._state._opened().session.parameter(self._name)
        assert kept.data is not None, "only nominal states have none"
        return kept.data

    def __dlpack__(self, **arguments: Any) -> Any:
        return self._memory().__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._memory().__dlpack_device__()

    @property
    def grad(self) -> np.ndarray | None:
        """The gradient; None before there is a Module, and for what is not trained."""
        if self._state._open is None:
            return None
        device = self._state._opened()
        gradient = None if self._name in self._state._kept else device.session.gradient(self._name)
        return None if gradient is None else gradient.copy()

    @property
    def requires_grad(self) -> bool:
        kept = self._state._kept.get(self._name)
        if kept is not None:
            return kept.trainable
        assert self._state._device is not None
        return self._state._device.session.is_trained(self._name)

    def __repr__(self) -> str:
        return f"Parameter(name={self.name}, requires_grad={self.requires_grad})"


class Parameters:
    """The parameters of a state: `state.parameters["fc.weight"]`. Iterating gives (name, Parameter) pairs in
    order of names, as onnxruntime does."""

    def __init__(self, state: CheckpointState) -> None:
        self._state = state

    def __getitem__(self, name: str) -> Parameter:
        if name not in self:
            raise KeyError(f"Parameter {name} not found.")
        self._state._check_filled("the parameter states")
        return Parameter(name, self._state)

    def __setitem__(self, name: str, value: Any) -> None:
        self._state._check_filled("all the parameter states")
        self[name].data = value

    def __contains__(self, name: str) -> bool:
        return name in self._state._names()

    def __iter__(self) -> Iterator[tuple[str, Parameter]]:
        return ((name, self[name]) for name in self._state._names())

    def __len__(self) -> int:
        return len(self._state._names())

    def __repr__(self) -> str:
        return repr(self._state._names())


class Properties:
    """The properties of a state by name: int, float or str. Iterating gives (name, value) pairs."""

    def __init__(self, state: CheckpointState) -> None:
        self._bag = state._bag

    def __getitem__(self, name: str) -> Property:
        if name not in self._bag:
            raise KeyError(f"Property {name} not found.")
        return self._bag[name]

    def __setitem__(self, name: str, value: Property) -> None:
        if not isinstance(value, (int, float, str)):
            raise TypeError(f"property '{name}': {type(value).__name__} is not int, float or str")
        if isinstance(value, str):
            self._bag[name] = value
        else:  # as checkpoints hold it
            self._bag[name] = int(value) if isinstance(value, int) else float(np.float32(value))

    def __contains__(self, name: str) -> bool:
        return name in self._bag

    def __iter__(self) -> Iterator[tuple[str, Property]]:
        return iter(sorted(self._bag.items()))

    def __len__(self) -> int:
        return len(self._bag)

    def __repr__(self) -> str:
        return repr(sorted(self._bag))
