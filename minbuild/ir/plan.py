"""Plan: what the device will execute."""

from __future__ import annotations

from dataclasses import dataclass

from minbuild.ir.dims import Dim
from minbuild.ir.mapped import FileBytes
from minbuild.ir.program import Role
from minbuild.ir.types import ElementType, Shape

LOOP_CONTROL = "loop_control"  # the stem of kernels that the session acts on
LONGEST_COUNTED = 254  # steps of a loop that may begin anywhere; longer ones begin with the first step


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
    """A tensor as the device sees it: where (region and offset or index), what type, what shape. A
    `per_sample` one starts one sample later, which is its own size in bytes, in every round of a loop; where it is 2,
    one earlier, from the last sample on."""

    region: int
    at: int
    element: ElementType
    shape: Shape
    per_sample: int = 0


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
    """The program of the device."""

    kernels: tuple[Kernel, ...]
    features: tuple[str, ...]  # "stem.feature", sorted
    tensors: tuple[PlanTensor, ...]
    routines: tuple[Routine, ...]
    parameters: tuple[PlanParameter, ...]
    constants: FileBytes
    symbols: tuple[str, ...]
    trainable_bytes: (
        int  # size of the trained parameters; gradients, if stored, and moments repeat their layout
    )
    moments: int
    persistent_bytes: int
    learning_rate_at: int  # persistent offset of the float32 learning rate
    step_at: int  # persistent offset of the int64 step count
    rollback_bytes: int = 0  # at the end of what persists: what a failed call restores from a copy
    draw_bytes: int = 0  # of counters of random draws, before seed, step count and learning rate
    fingerprint: int = 0  # of the model; 32 bits
    fused_updates: bool = False  # training steps update parameters, and no gradients are stored
    idle_moments: bool = False  # no kernel reads them: checkpoints name them, and memory has none

    @property
    def gradient_bytes(self) -> int:
        """Size of the stored gradients."""
        return 0 if self.fused_updates else self.trainable_bytes

    @property
    def stored_moments(self) -> int:
        """Optimizer tensors per trainable parameter that memory has."""
        return 0 if self.idle_moments else self.moments

    @property
    def moment_bytes(self) -> int:
        """Size of the stored moments."""
        return self.trainable_bytes * self.stored_moments

    @property
    def counted_bytes(self) -> int:
        """Size of what persists, and of the moments that checkpoints have and memory has not."""
        return self.persistent_bytes + self.trainable_bytes * (self.moments - self.stored_moments)

    @property
    def frozen_parameters(self) -> bool:
        """True if there are parameters that training does not update, such as running statistics."""
        return any(parameter.role is not Role.PARAMETER for parameter in self.parameters)

    @property
    def loops(self) -> int:
        """1 if there are steps that run once per sample, 2 if some of these begin with the last sample, 3 if kernels
        control how often they run, 4 if a loop has more than 254 steps, else 0."""
        longest = max((step.loop for routine in self.routines for step in routine.steps), default=0)
        if longest > LONGEST_COUNTED:
            return 4
        if longest and any(kernel.stem == LOOP_CONTROL for kernel in self.kernels):
            return 3
        return max(1, *(t.per_sample for t in self.tensors)) if longest else 0
