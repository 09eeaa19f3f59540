"""The number of threads of a library, and the work that they share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from minbuild.ir import Program, TensorType
from minbuild.ir.dims import Dim, evaluate, product, symbols_in
from minbuild.ops import Registry
from minbuild.options.build_options import AUTO, OFF, ON
from minbuild.passes.analysis.instruction_selection import Selection, select_kernels
from minbuild.passes.rewrite.checkpointing import TRAIN

MOST_THREADS = 8  # where no number is given: memory for their scratch is planned
_LEAST_CALL = (
    1 << 20
)  # multiplications of a call that are worth dividing: kLeastWork of lib/threads/parallel.h
LEAST_STEP = 1 << 26  # multiplications of a step of one sample, about a millisecond of one core
_SAMPLES = 8  # of a step that must have as many in calls that are divided, where sizes are free
_ELEMENT = 8  # multiplications that take as long as reading an element from memory


@dataclass(frozen=True, slots=True)
class Work:
    """The multiplications of one call of a kernel."""

    procedure: str
    node: str
    kernel: str
    count: int
    elements: int  # of its largest operand or result
    divided: bool  # among threads

    @property
    def time(self) -> int:
        """The time of the call, in multiplications: memory bounds products of few rows."""
        return max(self.count, _ELEMENT * self.elements)


def threads_of(option: str, program: Program, registry: Registry) -> int:
    """The most threads that work on a call of the library of `program`, whose passes are done, under the value of
    --threads. `option` is that value, `registry` has the kernels."""
    if option in (OFF, ON):
        return 1 if option == OFF else MOST_THREADS
    if option != AUTO:
        return int(option)
    work = step_work(program, registry)
    return MOST_THREADS if min(work.one, work.divided) >= LEAST_STEP else 1


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work that decides on threads, in multiplications: the time of a step of one sample, and that of calls which
    threads share in a step of eight. `largest` is the work of the largest call of a training step of one sample."""

    one: int
    divided: int
    largest: int


def step_work(program: Program, registry: Registry) -> StepWork:
    """The work of a step of `program`, whose passes are done; `registry` has the kernels."""
    calls = list(_calls(program, registry))
    one, some = (dict.fromkeys(program.symbols, samples) for samples in (1, _SAMPLES))
    works = [call.work(one) for call in calls]
    return StepWork(
        sum(work.time for work in works),
        sum(work.time for call in calls if (work := call.work(some)).divided),
        max((work.count for work in works if work.procedure == TRAIN), default=0),
    )


def work_of(program: Program, registry: Registry, sizes: Mapping[str, int]) -> Iterable[Work]:
    """The multiplications of all calls that have any, with free dimensions of these `sizes`. `program` is lowered,
    `registry` has the kernels."""
    return (call.work(sizes) for call in _calls(program, registry))


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a kernel that multiplies."""

    procedure: str
    node: str
    kernel: str
    count: Dim  # of multiplications
    operands: tuple[Dim, ...]  # elements of each
    shares: bool  # it can divide its work

    def work(self, sizes: Mapping[str, int]) -> Work:
        count = _value(self.count, sizes)
        elements = max((_value(operand, sizes) for operand in self.operands), default=0)
        divided = self.shares and count >= _LEAST_CALL
        return Work(self.procedure, self.node, self.kernel, count=count, elements=elements, divided=divided)


def _calls(program: Program, registry: Registry) -> Iterable[_Call]:
    for procedure in program.procedures:
        for selection in select_kernels(procedure, registry):
            function = registry.functions[selection.kernel.function]
            if function.work is None:
                continue
            shapes = [
                (
                    arg.shape
                    if isinstance(arg, TensorType)
                    else procedure.values[arg].type.shape
                    if arg
                    else ()
                )
                or ()
                for arg in selection.args
            ]
            operands = [
                shape for arg, shape in zip(selection.args, shapes, strict=True) if isinstance(arg, str)
            ]
            yield _Call(
                *(procedure.name, selection.call.node, selection.kernel.function),
                count=function.work(selection.params, shapes),
                operands=tuple(product(shape) for shape in operands),
                shares=function.share is not None and _has_share(selection),
            )


def _value(dim: Dim, sizes: Mapping[str, int]) -> int:
    return evaluate(dim, {name: sizes[name] for name in symbols_in(dim)})


def _has_share(selection: Selection) -> bool:
    """True if a kernel that divides its work can do so on these arguments: it has scratch memory for that."""
    scratch = [
        a for s, a in enumerate(selection.args) if isinstance(a, TensorType) and selection.kernel.args[s][0]
    ]
    return any(a.shape != (0,) for a in scratch)
