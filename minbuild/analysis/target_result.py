"""The results of one target, gathered: what was built, verified and measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from minbuild.codegen.library_builder import TrimmedAndFull
from minbuild.ir.operator_times import OperatorTimes
from minbuild.ir.size_report import Bar, SessionMemory, SpeedFeature, Suggestion, Verification


@dataclass(frozen=True, slots=True)
class FeatureCost:
    """Bytes of the library's file and of RAM that a build without a feature does not have."""

    file: int
    ram: int


@dataclass(frozen=True, slots=True)
class WhatIfResults:
    """Sizes of variants of one target's library; empty with --no-analysis."""

    waterfall: tuple[Bar, ...] = ()
    leave_one_out: Mapping[str, int] = field(default_factory=dict)  # kernel file -> bytes
    suggestions: tuple[Suggestion, ...] = ()
    costs: Mapping[str, FeatureCost] = field(default_factory=dict)  # of features for speed, by name


@dataclass(frozen=True, slots=True)
class TargetResult:
    """One target: its trimmed and its full library, what verification found, sizes of variants, times of operators
    where these were asked for, memory of a session's own, and features for speed."""

    libraries: TrimmedAndFull
    verification: Verification | None = None
    what_if: WhatIfResults = WhatIfResults()  # noqa: RUF009 (frozen)
    times: OperatorTimes | None = None
    session: SessionMemory = SessionMemory()  # noqa: RUF009 (frozen)
    features: tuple[SpeedFeature, ...] = ()
