"""Kernels whose steps are straight calls, because a compiled library is smaller with them than with tables alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from minbuild.codegen.compiled_plan import straight_candidates
from minbuild.codegen.library_sizer import LibrarySizer
from minbuild.options.build_options import COMPILED, LEAST, BuildOptions
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.kernel_selection import contents_of

_MOST_STEPS = 3  # different ones of a kernel; of all recorded sets no kernel with more was smaller
_SWITCH = 64  # bytes that the first straight call takes and no other, at most


@dataclass(frozen=True, slots=True)
class StraightChoice:
    """The models with the kernels that were chosen, and a sentence on both forms, "" where none was asked for."""

    models: tuple[CompiledModel, ...]
    note: str = ""


def choose_straight(
    models: Sequence[CompiledModel], build_options: BuildOptions, sizer: LibrarySizer
) -> StraightChoice:
    """The kernels of `models`, compiled as `build_options` say, whose steps are straight calls with `--step-calls
    least`: each that may be is built by itself as `sizer` says; of those that save something together, the worst is
    left out as long as that saves more. Raises ToolchainFailed."""
    plain = tuple(models)
    if build_options.flavor != COMPILED or build_options.step_calls != LEAST:
        return StraightChoice(plain)
    contents = contents_of(plain, sizer.extra, build_options=build_options)
    if contents.threads > 1 or contents.fused_updates or build_options.speed_for:
        return StraightChoice(plain)

    candidates = straight_candidates(contents.compiled_plan, contents.kernels, _MOST_STEPS)
    if not candidates:
        return StraightChoice(plain)

    def taken(symbols: frozenset[str]) -> int:
        return sizer.loaded_bytes([replace(m, straight=symbols) for m in plain], build_options)

    tables = taken(frozenset())
    alone = {symbol: taken(frozenset({symbol})) for symbol in candidates}
    chosen = sorted((s for s, size in alone.items() if size < tables + _SWITCH), key=alone.__getitem__)
    least = taken(frozenset(chosen)) if chosen else tables
    for symbol in reversed(chosen[1:]):
        without = taken(frozenset(chosen) - {symbol})
        if without <= least:
            least = without
            chosen.remove(symbol)
    saved = tables - least
    if saved <= 0:
        return StraightChoice(
            plain,
            f"Step calls: tables, {tables:,} B on {sizer.target}; straight calls of no kernel take less.",
        )
    note = f"Step calls of {', '.join(chosen)} are straight, which saves {saved:,} B on {sizer.target}: {least:,} B; "
    symbols = frozenset(chosen)
    return StraightChoice(
        tuple(replace(m, straight=symbols) for m in plain), f"{note}{tables:,} B as tables."
    )
