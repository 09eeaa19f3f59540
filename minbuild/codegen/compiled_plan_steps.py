"""The steps of a compiled plan as bytes, and the pool of the parameters of kernels.

A step is the number of its kind (kernel, parameters, accumulation, loop), which is one byte, then its arguments:
numbers of tensors in the order of their first use, or with more than 255 tensors how far back each is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minbuild.codegen.compiled_plan_amounts import CURE
from minbuild.errors import Unsupported
from minbuild.ir.plan import LONGEST_COUNTED

_UNPACKING = 48  # bytes of code that packed parameters take
_ESCAPE = 0xFF  # in code with relative arguments: the next two bytes are the tensor itself


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the plan: the row of its kernel in the library, and the arguments as tensors of the plan."""

    row: int
    params: int  # the place of its parameters
    args: tuple[int, ...]
    accumulate: int
    loop: int  # the number of steps of the loop that ends here, or 0


@dataclass(frozen=True, slots=True)
class StepCode:
    """The encoded steps. `graphs` end with the expression of the number of samples; `relative` is the encoding of
    arguments; `params` are places among `param_values` where there are any."""

    graphs: list[tuple[int, ...]]
    code: list[int]
    kinds: list[tuple[int, ...]]
    loops: list[tuple[int, ...]]
    params: list[int]
    param_values: list[int]
    relative: bool


def steps_of(tables: Mapping[str, Any], rows: Mapping[int, int], counts: Sequence[int]) -> list[Step]:
    """The steps of a decoded plan. `rows` are the rows of the library's kernels by key, `counts` the numbers of their
    arguments; a kernel that is left out has the row behind them and none. `tables` are those of the plan."""
    keys = [int(key) for key, _ in tables["kernels"].tolist()]
    args, steps = tables["args"].tolist(), tables["steps"].tolist()
    found = []
    for kernel, params, first, accumulate, loop in steps:
        row = rows.get(keys[kernel], len(rows))
        given = args[first : first + counts[row]] if row < len(rows) else ()
        found.append(Step(row, params, tuple(given), accumulate, loop))
    return found


def encode_steps(
    tables: Mapping[str, Any], steps: Sequence[Step], counts: Sequence[int], number: Mapping[int, int]
) -> StepCode:
    """The steps as bytes, graph by graph. `counts` are the parameters of a kernel by row, `number` those of tensors
    in the order of their first use. `tables` are those of the decoded plan, `steps` all of its steps. Raises
    Unsupported for more than 255 kinds of steps."""
    relative = len(number) > 0xFF
    words = tables["params"].tolist()
    step_params = [tuple(words[step.params : step.params + counts[step.row]]) for step in steps]
    pool = _superstring(step_params)
    where = {each: _find(pool, each) for each in set(step_params)}
    kinds: dict[tuple[int, ...], int] = {}
    code: list[int] = []
    loops: list[tuple[int, ...]] = []
    graphs: list[tuple[int, ...]] = []
    newest = 0
    for first, count, samples, port, inputs, outputs, _ in tables["graphs"].tolist():
        graphs.append((len(code), newest, count, port, inputs, outputs, samples))
        starts = []
        for step, given in zip(steps[first : first + count], step_params[first : first + count], strict=True):
            starts.append((len(code), newest))
            if step.loop:
                rounds = step.loop if step.loop <= LONGEST_COUNTED else len(starts)
                loops.append((*starts[-rounds], rounds))
            ends = len(loops) if step.loop else 0
            kind = (step.row, len(step.args), where[given], step.accumulate, ends)
            code.append(kinds.setdefault(kind, len(kinds)))
            for tensor in step.args:
                newest, piece = _argument(number[tensor], newest, relative)
                code += piece
    if len(kinds) > 0xFF:
        raise Unsupported([f"--flavor compiled: the plan has more than 255 kinds of steps. {CURE}"])
    kind_rows = list(kinds) or [(0,) * 5]
    params, values = _packed(pool or [0], kind_rows, max(counts))
    return StepCode(
        graphs,
        code=code or [0],
        kinds=kind_rows,
        loops=loops,
        params=params,
        param_values=values,
        relative=relative,
    )


def _argument(tensor: int, newest: int, relative: bool) -> tuple[int, list[int]]:
    """The number of tensors that were used so far, and an argument in code."""
    if not relative:
        return newest, [tensor]
    if tensor == newest:
        return newest + 1, [0]
    back = newest - tensor
    assert back > 0, "tensors are in the order of their first use"
    return newest, [back] if back < _ESCAPE else [_ESCAPE, tensor & 0xFF, tensor >> 8]


def _packed(params: list[int], kinds: Sequence[tuple[int, ...]], most: int) -> tuple[list[int], list[int]]:
    """Parameters as numbers of their values, which are few, with those values; or as they are, and none. The device
    copies the `most` parameters that any kernel reads."""
    values = sorted(set(params) | {0})
    end = max(kind[2] for kind in kinds) + most
    packed = [values.index(word) for word in params] + [0] * max(0, end - len(params))
    if len(values) > 0xFF or len(packed) + 4 * len(values) + _UNPACKING >= 4 * len(params):
        return params, []
    return packed, values


def _superstring(lists: Iterable[tuple[int, ...]]) -> list[int]:
    """Words among which every list is somewhere: again and again, the two that overlap most become one."""
    pieces = sorted(set(lists), key=lambda piece: (-len(piece), piece))
    pieces = [p for i, p in enumerate(pieces) if not any(_has(other, p) for other in pieces[:i])]
    while len(pieces) > 1:
        overlap, left, right = max(
            (_overlap(a, b), -i, -k) for i, a in enumerate(pieces) for k, b in enumerate(pieces) if i != k
        )
        a, b = pieces[-left], pieces[-right]
        pieces = [p for i, p in enumerate(pieces) if i not in (-left, -right)] + [(*a, *b[overlap:])]
    return list(pieces[0]) if pieces else []


def _overlap(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the longest end of `a` that `b` begins with."""
    return next(n for n in range(min(len(a), len(b)), -1, -1) if a[len(a) - n :] == b[:n])


def _has(whole: Sequence[int], part: Sequence[int]) -> bool:
    return any(whole[at : at + len(part)] == part for at in range(len(whole) - len(part) + 1))


def _find(pool: Sequence[int], params: Sequence[int]) -> int:
    """Where `params` is in the pool."""
    return next(at for at in range(len(pool) + 1) if tuple(pool[at : at + len(params)]) == tuple(params))
