"""The number of threads of a library, and the work that they share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from minbuild.ir import Program, TensorType
from minbuild.ir.dims import Dim, evaluate, product, symbols_in
from minbuild.ops import Registry
from minbuild.options.build_options import AUTO, OFF, ON
from minbuild.passes.analysis.instruction_selection import Selection, select_kernels

MOST_THREADS = 8  # where no number is given: memory for their scratch is planned
_LEAST_CALL = (
    1 << 20
)  # multiplications of a call that are worth dividing: kLeastWork of lib/threads/parallel.h
_LEAST_STEP = 1 << 26  # multiplications of a step of one sample, about a millisecond of one core
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
    if sum(w.time for w in work_of(program, registry, dict.fromkeys(program.symbols, 1))) < _LEAST_STEP:
        return 1
    some = work_of(program, registry, dict.fromkeys(program.symbols, _SAMPLES))
    return MOST_THREADS if sum(w.time for w in some if w.divided) >= _LEAST_STEP else 1


def work_of(program: Program, registry: Registry, sizes: Mapping[str, int]) -> Iterable[Work]:
    """The multiplications of all calls that have any, with free dimensions of these `sizes`. `program` is lowered,
    `registry` has the kernels."""
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
            count = _value(function.work(selection.params, shapes), sizes)
            operands = [
                shape for arg, shape in zip(selection.args, shapes, strict=True) if isinstance(arg, str)
            ]
            elements = max((_value(product(shape), sizes) for shape in operands), default=0)
            shared = function.share is not None and _has_share(selection) and count >= _LEAST_CALL
            yield Work(
                *(procedure.name, selection.call.node, selection.kernel.function),
                count=count,
                elements=elements,
                divided=shared,
            )


def _value(dim: Dim, sizes: Mapping[str, int]) -> int:
    return evaluate(dim, {name: sizes[name] for name in symbols_in(dim)})


def _has_share(selection: Selection) -> bool:
    """True if a kernel that divides its work can do so on these arguments: it has scratch memory for that."""
    scratch = [
        a for s, a in enumerate(selection.args) if isinstance(a, TensorType) and selection.kernel.args[s][0]
    ]
    return any(a.shape != (0,) for a in scratch)
