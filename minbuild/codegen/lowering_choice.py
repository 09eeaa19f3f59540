"""Which of equal lowerings makes the smaller library: kernels of an operator's own, or those that others need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from minbuild.codegen.library_sizer import LibrarySizer
from minbuild.errors import BadInput, Unsupported
from minbuild.ops.core.definition import EqualLowering
from minbuild.options.build_options import COMPILED, LEAST, BuildOptions
from minbuild.planning.compile import CompiledModel, replan


@dataclass(frozen=True, slots=True)
class LoweringChoice:
    """The models as they are planned now, and a sentence for every lowering that was tried."""

    models: tuple[CompiledModel, ...]
    notes: tuple[str, ...] = ()


def choose_lowerings(
    models: Sequence[CompiledModel], build_options: BuildOptions, sizer: LibrarySizer
) -> LoweringChoice:
    """The `models` with every equal lowering that makes library and plans smaller; each is planned, built under
    `build_options` as `sizer` says, and measured. Raises ToolchainFailed."""
    chosen, notes = tuple(models), []
    if build_options.lowerings != LEAST:
        return LoweringChoice(chosen)
    least: int | None = None  # bytes of those that are chosen, once they were measured

    def taken(candidates: Sequence[CompiledModel]) -> int:
        plans = 0 if build_options.flavor == COMPILED else sum(len(m.plan_bytes) for m in candidates)
        return plans + sizer.loaded_bytes(candidates, build_options)

    for key, equal in _applicable(models):
        try:
            other = tuple(replan(m, m.registry.with_lowering(key, equal)) for m in chosen)
        except (BadInput, Unsupported):
            continue
        least = taken(chosen) if least is None else least
        saved = least - taken(other)
        verdict = f"saves {saved:,} B" if saved > 0 else f"would take {-saved:,} B more, and is left"
        notes.append(f"{equal.title} {verdict} on {sizer.target}.")
        if saved > 0:
            chosen, least = other, least - saved
    return LoweringChoice(chosen, tuple(notes))


def _applicable(models: Sequence[CompiledModel]) -> Iterator[tuple[str, EqualLowering]]:
    """Operators of the models, by key, with lowerings to kernels that some model has anyway."""
    held = {kernel.function for m in models for kernel in m.plan.kernels}
    used = {call.op for m in models for p in m.program.procedures for call in p.calls}
    for key in sorted(used & models[0].registry.ops.keys()):
        op = models[0].registry.ops[key]
        for equal in op.equals:
            if equal.needs <= held and any(kernel.function in held for kernel in op.kernels):
                yield key, equal
