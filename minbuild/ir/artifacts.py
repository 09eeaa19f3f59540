"""Bundle: the artifacts as found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minbuild.ir.types import ElementType, TensorType

# What ONNX Runtime's training graphs call the buffer that a parameter's gradient is added to, behind the parameter's
# name, and the input that says whether to replace what is there.
GRADIENT_SUFFIX = "_grad.accumulation.buffer"
RESET_INPUT = "lazy_reset_grad"


@dataclass(frozen=True, slots=True)
class Node:
    """One operator application as the file has it. `version` is the opset its domain is imported at."""

    op_type: str
    domain: str
    version: int
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    # Values are int, float, str, bytes-decoded str, tuple of these, or np.ndarray.
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """`domain:Op` with the default domain left out."""
        return f"{self.domain}:{self.op_type}" if self.domain else self.op_type


@dataclass(frozen=True, slots=True)
class Graph:
    """One model file: nodes in execution order, typed inputs, output names, initializers by name."""

    source: str  # file name for messages, e.g. "training_model.onnx"
    nodes: tuple[Node, ...]
    inputs: Mapping[str, TensorType]  # tensors only; shape None when the file leaves it out
    sequences: Mapping[str, ElementType]  # inputs that are sequences of tensors (optimizer graphs)
    outputs: tuple[str, ...]
    initializers: Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A named tensor of the checkpoint. In a nominal checkpoint `data` is None."""

    name: str
    element: ElementType
    shape: tuple[int, ...]
    trainable: bool
    data: np.ndarray | None


@dataclass(frozen=True, slots=True)
class OptimizerGroup:
    """Optimizer state as a checkpoint stores it: one moment tensor per name and parameter."""

    name: str
    step: int
    initial_learning_rate: float
    moments: Mapping[str, Mapping[str, np.ndarray]]  # parameter -> momentum0, momentum1 -> data


@dataclass(frozen=True, slots=True)
class Seal:
    """The part of a checkpoint that minbuild adds to ONNX Runtime's."""

    fingerprint: int  # of the model, see `fingerprint`
    draws: tuple[int, ...]  # counters of random draws: of nodes with a seed, then the seed of all others


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The contents of a `checkpoint` file, in file order."""

    parameters: tuple[Parameter, ...]
    groups: tuple[OptimizerGroup, ...] = ()
    properties: Mapping[str, int | float | str] = field(default_factory=dict)
    nominal: bool = False
    seal: Seal | None = None


@dataclass(frozen=True, slots=True)
class TrainingArtifacts:
    """The artifacts as found. `notes` are one-line repairs and remarks a user must see. In a model that carries its own
    training, the training graph updates what it trains, and `initialization` resets it."""

    training: Graph
    evaluation: Graph | None
    optimizer: Graph | None
    checkpoint: Checkpoint
    digests: Mapping[str, str]  # file name -> sha256 of its bytes
    notes: tuple[str, ...] = ()
    initialization: Graph | None = None

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """Every graph there is."""
        found = (self.training, self.evaluation, self.optimizer, self.initialization)
        return tuple(g for g in found if g is not None)
