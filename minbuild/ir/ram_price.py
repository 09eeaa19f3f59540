"""The price of a budget of RAM: time of a training step over memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RamPoint:
    """A plan on the curve of time over memory: bytes of RAM, and what its training step takes longer than without a
    budget, as an estimated share."""

    ram: int
    added_time: float


@dataclass(frozen=True, slots=True)
class RamPrice:
    """A plan that was fitted into a budget: its bytes of `ram` and those of the plan without one, what its training
    step takes longer as an estimated share and, where both plans ran on this machine, a measured one; and the curve,
    the most RAM first, where it was asked for."""

    ram: int
    unlimited: int
    added_time: float
    measured: float | None = None
    curve: tuple[RamPoint, ...] = ()
