"""Which of equal lowerings make the smaller library: kernels of an operator's own, those that others need, or one for
several."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from minbuild.codegen.library_sizer import LibrarySizer
from minbuild.errors import BadInput, Unsupported
from minbuild.ops import Registry
from minbuild.ops.core.definition import EqualLowering
from minbuild.options.build_options import COMPILED, LEAST, BuildOptions
from minbuild.options.did_you_mean import did_you_mean
from minbuild.planning.compiled_model import CompiledModel, replan
from minbuild.planning.step_time import step_seconds

LEAVE = "no-"  # before the name of a lowering that a user does not want


@dataclass(frozen=True, slots=True)
class LoweringChoice:
    """The models as they are planned now, and a sentence for every lowering that was tried."""

    models: tuple[CompiledModel, ...]
    notes: tuple[str, ...] = ()


def choose_lowerings(
    models: Sequence[CompiledModel], build_options: BuildOptions, sizer: LibrarySizer
) -> LoweringChoice:
    """The `models` with the equal lowerings that `build_options` force, and where they ask for the least bytes with
    every other that makes library and plans smaller: each is planned, built as `sizer` says, and measured; then the
    best is taken, and the others in turn, as long as they still save. Raises BadInput for a name that no lowering has,
    and ToolchainFailed."""
    forced, left = _named(build_options.equal_lowerings, models[0].registry)
    if not forced and build_options.lowerings != LEAST:
        return LoweringChoice(tuple(models))
    search = _Search(tuple(models), build_options, sizer)
    search.force(forced)
    if build_options.lowerings == LEAST:
        search.try_all([e for e in models[0].registry.equals if e not in forced and e not in left])
    return LoweringChoice(search.chosen, tuple(search.notes))


def _named(names: Sequence[str], registry: Registry) -> tuple[list[EqualLowering], list[EqualLowering]]:
    """The lowerings that `names` force, and those that they leave. Raises BadInput."""
    known = {equal.name: equal for equal in registry.equals}
    forced: list[EqualLowering] = []
    left: list[EqualLowering] = []
    for given in names:
        name = given.removeprefix(LEAVE)
        if name not in known:
            raise BadInput(f"--equal-lowerings {given}: no lowering is called so.{did_you_mean(name, known)}")
        (forced if name == given else left).append(known[name])
    for equal in forced:
        if equal in left:
            raise BadInput(f"--equal-lowerings {equal.name},{LEAVE}{equal.name}: leave one of them out.")
    return forced, left


@dataclass
class _Search:
    """The models with what was chosen so far, and what was said of it."""

    direct: tuple[CompiledModel, ...]
    build_options: BuildOptions
    sizer: LibrarySizer
    notes: list[str] = field(default_factory=list)
    links: int = 0
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.chosen = self.direct
        self.bytes: int | None = None  # of library and plans as chosen, once they were measured

    @property
    def lowerings(self) -> tuple[EqualLowering, ...]:
        return self.chosen[0].registry.lowerings

    def force(self, forced: Sequence[EqualLowering]) -> None:
        """Takes each of `forced`, whatever it takes."""
        for equal in forced:
            other = self.planned(equal)
            if other is None:
                self.notes.append(
                    f"{equal.title}: nothing of the models has it; --equal-lowerings asks for it."
                )
                continue
            self.take(equal, other, self.measured(other), "as --equal-lowerings asks")

    def try_all(self, candidates: Sequence[EqualLowering]) -> None:
        """Takes those of `candidates` that make library and plans smaller and steps no slower than is allowed."""
        found, later = [], []
        for equal in candidates:
            if not self.applies(equal):
                later.append(equal)
                continue
            other = self.planned(equal)
            if other is not None and self.allowed(equal, other):
                found.append((self.measured(other), equal, other))
        start = self.chosen
        for size, equal, alone in sorted(found, key=lambda each: each[0]):
            other = alone if self.chosen is start else self.planned(equal)
            if other is not None and (other is alone or self.allowed(equal, other)):
                self.take_if_smaller(equal, other, size if other is alone else self.measured(other))
        if self.chosen is not start:
            self.try_all(later)  # whose kernels may be there now
        elif self.links:
            seconds = time.monotonic() - self.started
            self.notes.append(
                f"Choosing between equal lowerings took {self.links} links and {seconds:.1f} s."
            )

    def applies(self, equal: EqualLowering) -> bool:
        """True if the models have kernels that it replaces, and those that it needs."""
        held = {kernel.function for m in self.chosen for kernel in m.plan.kernels}
        return equal.needs <= held and len(held & equal.replaces.keys()) >= equal.fewest

    def planned(self, equal: EqualLowering) -> tuple[CompiledModel, ...] | None:
        """The models with one more lowering; None where that changes nothing, or cannot be planned."""
        try:
            made = tuple(replan(m, m.registry.with_lowerings((*self.lowerings, equal))) for m in self.chosen)
        except (BadInput, Unsupported):
            return None
        same = all(a.plan.kernels == b.plan.kernels for a, b in zip(made, self.chosen, strict=True))
        return None if same else made

    def slowdown(self, models: Sequence[CompiledModel]) -> float:
        """The times as long that a step takes by estimate, beside one with kernels of each operator's own."""
        pairs = zip(models, self.direct, strict=True)
        return max(
            step_seconds(m.plan, m.registry, m.largest) / step_seconds(d.plan, d.registry, d.largest)
            for m, d in pairs
        )

    def allowed(self, equal: EqualLowering, models: Sequence[CompiledModel]) -> bool:
        """False, with a note, where steps would be too slow."""
        most, slowdown = self.build_options.slowest_lowering, self.slowdown(models)
        if slowdown <= most:
            return True
        self.notes.append(
            f"{equal.title} is left: a step would take {slowdown:.2f} times as long by estimate, and "
            f"--lowering-time allows {most:.2f}."
        )
        return False

    def measured(self, models: Sequence[CompiledModel]) -> int:
        """Bytes of library and plans, on all targets together."""
        self.links += len(self.sizer.targets)
        plans = 0 if self.build_options.flavor == COMPILED else sum(len(m.plan_bytes) for m in models)
        return plans * len(self.sizer.targets) + self.sizer.loaded_bytes(models, self.build_options)

    def take_if_smaller(self, equal: EqualLowering, models: tuple[CompiledModel, ...], size: int) -> None:
        now = self.size()
        if size < now:
            self.take(equal, models, size)
            return
        both = f"library and plan {size:,} B against {now:,} B"
        self.notes.append(
            f"{equal.title} would take {size - now:,} B more on {self.sizer.target}, and is left: {both}."
        )

    def take(
        self, equal: EqualLowering, models: tuple[CompiledModel, ...], size: int, reason: str = ""
    ) -> None:
        now = self.size()
        change = f"saves {now - size:,} B" if size <= now else f"takes {size - now:,} B more"
        longer = f"a step takes {self.slowdown(models):.2f} times as long as with neither, by estimate"
        both = f"library and plan {size:,} B, {now:,} B without; {longer}"
        self.notes.append(f"{equal.title} {change} on {self.sizer.target}{reason and f', {reason}'}: {both}.")
        self.chosen, self.bytes = models, size

    def size(self) -> int:
        """Bytes of what is chosen so far."""
        self.bytes = self.measured(self.chosen) if self.bytes is None else self.bytes
        return self.bytes
