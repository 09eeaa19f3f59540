"""Steps of a compiled plan as straight calls: code with the arguments as constants in place of a row of tables.

A kernel with constant sizes and parameters loses its checks and much of its arithmetic, and tables lose its tensors;
but every step has a copy of its own, and code takes more bytes than a row. It pays for kernels with few steps that are
little more than a loop. Which those are is measured, see `straight_choice`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from minbuild.codegen.compiled_plan_amounts import Amount, place_of
from minbuild.codegen.compiled_plan_steps import Step
from minbuild.ir import Kernel

_BASES = ("temporaries", "kept", "kept")  # of the first regions
_NOTHING, _CONSTANTS = 3, 4  # regions
_REACHED = 3  # arguments that a call has at least: others are counted from its middle


@dataclass(frozen=True, slots=True)
class StraightStep:
    """A step as a call: the symbol of its kernel and the row of that, tensors and parameters as C++ has them, and the
    outputs to which it adds."""

    symbol: str
    row: int
    tensors: tuple[str, ...]
    params: tuple[str, ...]
    accumulate: int


class StraightSteps:
    """The steps of kernels that are straight calls; equal ones are one. `kernels` are those of the library by row,
    `symbols` those whose steps are straight, `tables` the decoded plan, `amounts` its expressions."""

    def __init__(
        self,
        tables: Mapping[str, Any],
        amounts: Sequence[Amount],
        kernels: Sequence[Kernel],
        symbols: Iterable[str],
    ) -> None:
        chosen = set(symbols)
        self.rows = {row: kernel for row, kernel in enumerate(kernels) if kernel.symbol in chosen}
        self.first = len(kernels) + 1  # behind the row of a kernel that is left out
        self.amounts = amounts
        self.tensors = tables["tensors"].tolist()
        self.shapes = tables["shapes"].tolist()
        self.params = tables["params"].tolist()
        self.numbers: dict[StraightStep, int] = {}

    def take(self, steps: Iterable[Step]) -> list[Step]:
        """`steps`, where those of the chosen kernels have rows behind those of kernels, and no arguments."""
        return [self._taken(step) if step.row in self.rows else step for step in steps]

    def _taken(self, step: Step) -> Step:
        kernel = self.rows[step.row]
        tensors = [self._tensor(each) for each in step.args]
        tensors += ["{}"] * (_REACHED - len(tensors))
        words = self.params[step.params : step.params + kernel.params]
        params = tuple(f"INT32_C({word})" if word > -(2**31) else "INT32_MIN" for word in words)
        straight = StraightStep(kernel.symbol, step.row, tuple(tensors), params, step.accumulate)
        row = self.first + self.numbers.setdefault(straight, len(self.numbers))
        return replace(step, row=row, params=0, args=())

    def _tensor(self, number: int) -> str:
        at, shape, region, _, _ = self.tensors[number]
        dims = [self.amounts[e] for e in self.shapes[shape + 1 : shape + 1 + self.shapes[shape]]]
        sizes = [f"{d.free} * size" if d.free else f"{d.fixed}" for d in dims]
        if region < len(_BASES):
            place = place_of(self.amounts[at]) if region == 0 else self.amounts[at]
            data = f"{_BASES[region]} + "
            data += f"align16({place.free}u * size) + {place.fixed}" if place.free else f"{place.fixed}"
        elif region == _CONSTANTS:
            data = f"s->regions[kConstants].data + {self.amounts[at].fixed}"
        else:
            data = "nullptr" if region == _NOTHING else f"s->regions[{region}].data"
        count = " * ".join(sizes) or "1"
        return f"{{{data}, {count}, {len(sizes)}, {{{', '.join(sizes)}}}}}"


def candidates(
    tables: Mapping[str, Any], steps: Sequence[Step], kernels: Sequence[Kernel], most: int
) -> list[str]:
    """Symbols of those of `kernels` that have at most `most` different steps among `steps`, those with the fewest
    first. `tables` are those of the decoded plan, `kernels` by row."""
    different: dict[int, set[object]] = {}
    params = tables["params"].tolist()
    for step in steps:
        if step.row < len(kernels):
            words = tuple(params[step.params : step.params + kernels[step.row].params])
            different.setdefault(step.row, set()).add((step.args, words, step.accumulate))
    few = sorted((len(found), row) for row, found in different.items() if len(found) <= most)
    return [kernels[row].symbol for _, row in few]
