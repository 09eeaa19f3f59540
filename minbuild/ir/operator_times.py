"""Times and memory of operators, as measured on the machine that builds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Timing:
    """The measurement behind the times of a target's operators. `target` is that of the library that ran, on one thread
    of `machine`; `graphs` are the milliseconds of one run of each graph, the sum of its steps; each step is the fastest
    of `runs`. `peak_gflops` is what independent multiplications and additions of float reach there in the vectors
    that the library may use. Where nothing was measured, `reason` says why and the rest is empty."""

    target: str
    machine: str = ""
    runs: int = 0
    graphs: tuple[tuple[str, float], ...] = ()
    peak_gflops: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """One operator: milliseconds in a training step with its update, and in an evaluation step; the arithmetic rate of
    its products and convolutions, None without any; bytes live in the arena at the worst of its steps."""

    milliseconds: float
    eval_milliseconds: float
    gflops: float | None
    live_bytes: int


@dataclass(frozen=True, slots=True)
class OperatorTimes:
    """The measurement, and the times of operators by kernel file."""

    timing: Timing
    operators: Mapping[str, OperatorTime] = field(default_factory=dict)
