"""Program: the graphs over known operators, every value with its type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from minbuild.ir.dims import Dim
from minbuild.ir.types import TensorType


class Role(IntEnum):
    """The owner of a value's bytes while the device runs."""

    TEMPORARY = 0  # the arena
    INPUT = 1  # the caller, for one call
    CONSTANT = 2  # the plan
    PARAMETER = 3  # trained: the persistent region
    BUFFER = 4  # changed by kernels but not trained (running statistics): the persistent region
    FROZEN = 5  # read only: the checkpoint's own bytes
    GRADIENT = 6  # accumulation buffer of a parameter
    MOMENT = 7  # optimizer state of a parameter
    SCALAR = 8  # learning rate, step count
    RNG_COUNTER = (
        9  # how many times random numbers were drawn: by the session, or by the node that `of` names
    )

    __hash__ = int.__hash__  # that of enumerations is a function in Python

    @property
    def persists(self) -> bool:
        """True if the bytes outlive a step and kernels may change them."""
        return self in PERSISTENT


PERSISTENT = frozenset(
    (Role.PARAMETER, Role.BUFFER, Role.GRADIENT, Role.MOMENT, Role.SCALAR, Role.RNG_COUNTER)
)


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of a Program. `constant` holds the elements of a CONSTANT; `of` names the parameter of a
    GRADIENT or MOMENT; `index` counts moments, inputs and parameters. `sample` says that it is one sample of the
    value it is an alias of, the next one in every round of a loop, or the one before it if `backward`."""

    name: str
    type: TensorType
    role: Role = Role.TEMPORARY
    constant: np.ndarray | None = None
    of: str = ""
    index: int = 0
    sample: bool = False
    backward: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """One operator application of a Program, with every name resolved to a Value of its Procedure."""

    op: str  # key into the operator registry, "domain:Name"
    version: int
    node: str  # the node that asked for it, for messages and for the report
    inputs: tuple[str, ...]  # "" where an optional input is absent
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    accumulate: frozenset[int] = frozenset()  # outputs that add into a gradient buffer


@dataclass(frozen=True, slots=True)
class Procedure:
    """One graph the device can run, in execution order. `alias` maps a value to the one whose bytes it is. The calls of
    each of the `loops` run once for each of the `samples` samples."""

    name: str  # "train", "eval", "optimize", "initialize"
    source: str
    calls: tuple[Call, ...]
    values: Mapping[str, Value]
    inputs: tuple[str, ...]  # user inputs in order
    outputs: tuple[str, ...]  # user outputs in order
    alias: Mapping[str, str] = field(default_factory=dict)
    loops: tuple[range, ...] = ()
    samples: Dim = 1


@dataclass(frozen=True, slots=True)
class Program:
    """All procedures over one set of parameters; `symbols` are the free dimensions, in order."""

    procedures: tuple[Procedure, ...]
    parameters: tuple[Value, ...]  # trainable first in training-graph order, then STATE, then FROZEN
    moments: int  # optimizer tensors per trainable parameter
    symbols: tuple[str, ...]
    fingerprint: int = 0  # of the model that it is of; 32 bits
    fused_updates: bool = False  # training steps update parameters, and no gradients are stored
    has_bodies: bool = True  # calls may be loops with bodies; False spares passes a look at each call
    idle_moments: bool = False  # no call has them: checkpoints name them, and memory has none

    @property
    def stored_moments(self) -> int:
        """Optimizer tensors per trainable parameter that memory has."""
        return 0 if self.idle_moments else self.moments
