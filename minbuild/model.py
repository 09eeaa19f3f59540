"""The nouns: plain frozen data that the verbs of the other modules turn one into the next.

artifacts --load--> Bundle --lower--> Program --plan--> Plan --emit--> Package --build--> Binary --measure--> SizeReport
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import ml_dtypes
import numpy as np

from minbuild.dims import Dim


class ElementType(IntEnum):
    """Element types, numbered as ONNX `TensorProto.DataType` numbers them."""

    FLOAT = 1
    UINT8 = 2
    INT8 = 3
    UINT16 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    BOOL = 9
    FLOAT16 = 10
    DOUBLE = 11
    UINT32 = 12
    UINT64 = 13
    BFLOAT16 = 16

    @property
    def label(self) -> str:
        """The name users know: `float`, `int64`, ..."""
        return self.name.lower()

    @property
    def size(self) -> int:
        """Bytes of one element."""
        return _ELEMENTS[self][0]

    @property
    def ctype(self) -> str:
        """The C++ type a kernel is instantiated with."""
        return _ELEMENTS[self][1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type of the same elements."""
        return np.dtype(_ELEMENTS[self][2])

    @property
    def is_real(self) -> bool:
        """Whether it holds real numbers."""
        return self in (ElementType.FLOAT, ElementType.DOUBLE, ElementType.FLOAT16, ElementType.BFLOAT16)

    @classmethod
    def of(cls, dtype: np.dtype[Any]) -> ElementType | None:
        """The element type of a numpy type; None where there is none."""
        return next((e for e in cls if e.dtype == dtype), None)


_ELEMENTS: Mapping[ElementType, tuple[int, str, Any]] = {
    ElementType.FLOAT: (4, "float", "float32"),
    ElementType.UINT8: (1, "uint8_t", "uint8"),
    ElementType.INT8: (1, "int8_t", "int8"),
    ElementType.UINT16: (2, "uint16_t", "uint16"),
    ElementType.INT16: (2, "int16_t", "int16"),
    ElementType.INT32: (4, "int32_t", "int32"),
    ElementType.INT64: (8, "int64_t", "int64"),
    ElementType.BOOL: (1, "bool", "bool"),
    ElementType.FLOAT16: (2, "half", "float16"),
    ElementType.DOUBLE: (8, "double", "float64"),
    ElementType.UINT32: (4, "uint32_t", "uint32"),
    ElementType.UINT64: (8, "uint64_t", "uint64"),
    ElementType.BFLOAT16: (2, "bfloat16", ml_dtypes.bfloat16),
}

Shape = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and symbolic shape. `shape` is None only in what a file says, never after lowering."""

    element: ElementType
    shape: Shape | None


# --------------------------------------------------------------------------------------------------- Bundle


@dataclass(frozen=True, slots=True)
class Node:
    """One operator application as the file has it. `version` is the opset its domain is imported at."""

    op_type: str
    domain: str
    version: int
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]  # int, float, str, bytes-decoded str, tuple of these, or np.ndarray

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
class Checkpoint:
    """What a `checkpoint` file holds, in file order."""

    parameters: tuple[Parameter, ...]
    groups: tuple[OptimizerGroup, ...] = ()
    properties: Mapping[str, int | float | str] = field(default_factory=dict)
    nominal: bool = False


@dataclass(frozen=True, slots=True)
class Bundle:
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


# -------------------------------------------------------------------------------------------------- Program


class Role(IntEnum):
    """Who owns a value's bytes while the device runs."""

    TEMPORARY = 0  # the arena
    INPUT = 1  # the caller, for one call
    CONSTANT = 2  # the plan
    PARAMETER = 3  # trained: the persistent region
    STATE = 4  # changed by kernels but not trained (running statistics): the persistent region
    FROZEN = 5  # read only: the checkpoint's own bytes
    GRADIENT = 6  # accumulation buffer of a parameter
    MOMENT = 7  # optimizer state of a parameter
    SCALAR = 8  # learning rate, step count
    DRAWS = 9  # how many times random numbers were drawn: by the session, or by the node that `of` names

    @property
    def persists(self) -> bool:
        """Whether the bytes outlive a step and kernels may change them."""
        return self in (Role.PARAMETER, Role.STATE, Role.GRADIENT, Role.MOMENT, Role.SCALAR, Role.DRAWS)


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of a Program. `constant` holds the elements of a CONSTANT; `of` names the parameter of a
    GRADIENT or MOMENT; `index` counts moments, inputs and parameters. `sample` says that it is one sample of the
    value it is an alias of, the next one in every round of a loop."""

    name: str
    type: TensorType
    role: Role = Role.TEMPORARY
    constant: np.ndarray | None = None
    of: str = ""
    index: int = 0
    sample: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """One operator application of a Program, with every name resolved to a Value of its Procedure."""

    op: str  # key into the operator registry, "domain:Name"
    version: int
    node: str  # the node that asked for it, for messages and for the report
    inputs: tuple[str, ...]  # "" where an optional input is absent
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    accumulate: frozenset[int] = frozenset()  # outputs that add into a gradient buffer


@dataclass(frozen=True, slots=True)
class Procedure:
    """One graph the device can run, in execution order. `alias` maps a value to the one whose bytes it is. The calls of
    each of the `loops` run once per sample, of which there are `samples`."""

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


# ----------------------------------------------------------------------------------------------------- Plan


@dataclass(frozen=True, slots=True, order=True)
class Kernel:
    """A kernel function with its template arguments. `args` are the argument slots, outputs first:
    (element type number or 0, written, optional)."""

    stem: str  # kernels/<stem>.cc
    function: str  # C++ function template, e.g. "gemm"
    types: tuple[str, ...]  # C++ template arguments
    args: tuple[tuple[int, bool, bool], ...]
    params: int  # int32 words it reads

    @property
    def symbol(self) -> str:
        """The instantiation as C++ writes it."""
        return f"{self.function}<{', '.join(self.types)}>"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A piece of the arena, alive from step `first` to step `last`; as large as its largest tensor."""

    name: str
    first: int
    last: int
    bytes: Dim


@dataclass(frozen=True, slots=True)
class PlanTensor:
    """A tensor as the device sees it: where (region and offset or index), what type, what shape. One that `walks`
    is as many bytes further in every round of a loop as it has."""

    region: int
    at: int
    element: ElementType
    shape: Shape
    walks: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """Run one kernel. `args` index the plan's tensors (-1 for absent), outputs, inputs, then scratch. The `loop`
    steps that end here, if any, run once per sample."""

    kernel: int
    args: tuple[int, ...]
    params: tuple[int, ...]
    accumulate: int  # bit i: output i adds to what is there unless gradients were reset
    node: str
    loop: int = 0


@dataclass(frozen=True, slots=True)
class Routine:
    """The steps of one procedure with its arena. Buffers stand in placement order: the device puts each one
    on top of all earlier ones it is alive together with."""

    name: str
    steps: tuple[Step, ...]
    buffers: tuple[Buffer, ...]
    inputs: tuple[tuple[str, int], ...]  # name, tensor
    outputs: tuple[tuple[str, int], ...]
    samples: Dim = 1  # rounds of a loop


@dataclass(frozen=True, slots=True)
class PlanParameter:
    """A checkpoint entry the device knows. `tensor` indexes the plan's tensors; `order` is its place among the
    training graph's inputs that are parameters."""

    name: str
    role: Role
    tensor: int
    order: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What the device executes."""

    kernels: tuple[Kernel, ...]
    features: tuple[str, ...]  # "stem.feature", sorted
    tensors: tuple[PlanTensor, ...]
    routines: tuple[Routine, ...]
    parameters: tuple[PlanParameter, ...]
    constants: bytes
    symbols: tuple[str, ...]
    trainable_bytes: int  # size of the trained parameters; gradients and moments repeat their layout
    moments: int
    persistent_bytes: int
    learning_rate_at: int  # persistent offset of the float32 learning rate
    step_at: int  # persistent offset of the int64 step count

    @property
    def loops(self) -> bool:
        """Whether there are steps that run once per sample."""
        return any(step.loop for routine in self.routines for step in routine.steps)


# -------------------------------------------------------------------------------------- Package and Binary


@dataclass(frozen=True, slots=True)
class Package:
    """The text and bytes of every file of a package, by path relative to its root."""

    files: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a linked file. `file_size` is 0 for sections without contents (.bss)."""

    name: str
    address: int
    offset: int
    size: int
    file_size: int
    allocated: bool


@dataclass(frozen=True, slots=True)
class Symbol:
    """A defined symbol with its demangled name and the section it lives in."""

    name: str
    section: str
    address: int
    size: int


@dataclass(frozen=True, slots=True)
class Binary:
    """A linked library: its bytes as shipped, and what the unstripped twin of the same link tells."""

    path: str
    target: str
    data: bytes  # the stripped file
    sections: tuple[Section, ...]  # of the stripped file
    symbols: tuple[Symbol, ...]  # of the unstripped twin
    exports: tuple[str, ...]
    imports: tuple[str, ...]
