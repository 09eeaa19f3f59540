"""The state of a training session: parameters, optimizer state and properties, as a checkpoint holds them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from minbuild import model
from minbuild.artifacts.checkpoint import read_checkpoint, write_checkpoint
from minbuild.errors import BadInput
from minbuild.training.growth import GrowingSession

Property = int | float | str


class CheckpointState:
    """What `load_checkpoint` read; once a Module uses it, what the module has made of it."""

    def __init__(self, checkpoint: model.Checkpoint) -> None:
        self._saved = checkpoint
        # What the device does not have: everything before there is one, then what its graphs do not use.
        self._kept = {p.name: p for p in checkpoint.parameters}
        self._bag: dict[str, Property] = dict(checkpoint.properties)
        self._device: GrowingSession | None = None

    @classmethod
    def load_checkpoint(cls, checkpoint_uri: str | os.PathLike[str]) -> CheckpointState:
        """Reads an ONNX Runtime checkpoint, with its separate data file if it has one. Raises BadInput."""
        return cls(read_checkpoint(Path(checkpoint_uri)))

    @classmethod
    def save_checkpoint(
        cls,
        state: CheckpointState,
        checkpoint_uri: str | os.PathLike[str],
        include_optimizer_state: bool = False,
    ) -> None:
        """Writes a checkpoint that ONNX Runtime reads. The old file survives any failure."""
        path = Path(checkpoint_uri)
        beside = path.with_name(f"{path.name}.{os.getpid()}.new")
        try:
            beside.write_bytes(state._to_bytes(include_optimizer_state))
            beside.replace(path)
        except OSError as error:
            raise BadInput(
                f"{path}: the checkpoint cannot be written: {error.strerror or error}. Choose another place."
            ) from error
        finally:
            beside.unlink(missing_ok=True)

    @property
    def parameters(self) -> Parameters:
        """The parameters by name."""
        return Parameters(self)

    @property
    def properties(self) -> Properties:
        """Numbers and texts the user keeps with the model."""
        return Properties(self)

    def _attach(self, device: GrowingSession) -> None:
        if self._device is not None:
            raise BadInput("this CheckpointState already belongs to a Module. Load the checkpoint once more.")
        self._device = device
        self._kept = {n: p for n, p in self._kept.items() if n not in device.session.parameters}
        self._saved = replace(self._saved, parameters=(), groups=())

    def _to_bytes(self, include_optimizer: bool) -> bytes:
        if self._device is None:
            groups = self._saved.groups if include_optimizer else ()
            held = replace(
                self._saved, parameters=tuple(self._kept.values()), groups=groups, properties=self._bag
            )
            return write_checkpoint(held)
        data = self._device.session.checkpoint(include_optimizer)
        if not self._kept and not self._bag:
            return data
        held = read_checkpoint(data)
        everything = held.parameters + tuple(self._kept.values())
        return write_checkpoint(replace(held, parameters=everything, properties=self._bag))

    def _names(self) -> list[str]:
        known = self._device.session.parameters if self._device else {}
        return sorted({*self._kept, *known})


class Parameter:
    """One parameter of a state. Arrays it returns are copies."""

    def __init__(self, name: str, state: CheckpointState) -> None:
        self._name, self._state = name, state

    @property
    def name(self) -> str:
        return self._name

    @property
    def data(self) -> np.ndarray:
        """The values."""
        kept = self._state._kept.get(self._name)
        if kept is None:
            assert self._state._device is not None
            return self._state._device.session.parameter(self._name).copy()
        if kept.data is None:
            raise BadInput(f"parameter '{self._name}' has no data: the checkpoint is nominal.")
        return kept.data.copy()

    @data.setter
    def data(self, value: np.ndarray) -> None:
        """New values of the same shape and type. Raises BadInput for others."""
        old, new = self.data, np.asarray(value)
        if old.shape != new.shape or old.dtype != new.dtype:
            raise BadInput(
                f"parameter '{self._name}' is {old.dtype}{list(old.shape)}, the new data "
                f"{new.dtype}{list(new.shape)}. Convert it."
            )
        kept = self._state._kept.get(self._name)
        if kept is not None:
            self._state._kept[self._name] = replace(kept, data=new.copy())
        else:
            assert self._state._device is not None
            self._state._device.session.parameter(self._name)[...] = new

    @property
    def grad(self) -> np.ndarray | None:
        """The gradient; None before there is a Module, and for what is not trained."""
        if self._name in self._state._kept or self._state._device is None:
            return None
        gradient = self._state._device.session.gradient(self._name)
        return None if gradient is None else gradient.copy()

    @property
    def requires_grad(self) -> bool:
        kept = self._state._kept.get(self._name)
        if kept is not None:
            return kept.trainable
        assert self._state._device is not None
        return bool(self._state._device.session.parameters[self._name].gradient)

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
        return Parameter(name, self._state)

    def __setitem__(self, name: str, value: np.ndarray) -> None:
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
        self._bag[name] = int(value) if isinstance(value, bool) else value

    def __contains__(self, name: str) -> bool:
        return name in self._bag

    def __iter__(self) -> Iterator[tuple[str, Property]]:
        return iter(sorted(self._bag.items()))

    def __len__(self) -> int:
        return len(self._bag)

    def __repr__(self) -> str:
        return repr(sorted(self._bag))
