"""RAM by budget: a plan whose arena fits into what `--ram` leaves beside what persists.

A batch in slices is tried first, as its price is small: larger slices before smaller ones. Where slices do not suffice,
or samples depend on each other, calls of the forward pass run again. The passes know live bytes before batch tiling,
sharing of storage and the arena's layout; the plan knows the bytes that the device takes. So the passes are run with a
limit, the plan is measured, and the limit is corrected. A layout is searched for where it may decide only, and longer
where the search misses what may be possible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from minbuild.errors import OverBudget, Unsupported
from minbuild.ir import Plan, Procedure, Program
from minbuild.ir.ram_price import RamPoint
from minbuild.ops import Registry
from minbuild.passes.analysis.call_costs import cached_seconds_of, seconds_of
from minbuild.passes.analysis.channel_slices import SLICE
from minbuild.passes.analysis.repetition import Outcomes
from minbuild.passes.manager import optimize
from minbuild.passes.rewrite.checkpointing import TRAIN, checkpointing, loops_over_channels
from minbuild.passes.rewrite.rematerialization import AGAIN
from minbuild.planning.arena.peak_memory import arena_peak
from minbuild.planning.batch_slices import BatchSlices, SlicedStep
from minbuild.planning.plan import peak_bytes

_CORRECTIONS = 6  # of a limit that a plan exceeds
_BETWEEN = 3  # budgets between the least and the most RAM that the curve has points for
_DESCENTS = 4  # of limits below the one that nothing fits
_SMALLER = 0.9  # of what a limit reached that nothing fits: the limit that is tried next

Build = Callable[
    [Program, int], Plan
]  # with so many times the usual work to search for a layout of the arena
_NO_SEARCH, _SEARCH, _LONG_SEARCH = 0, 1, 8


@dataclass(frozen=True, slots=True)
class FittedPlan:
    """A plan for a budget: its program, and what its training step costs."""

    program: Program
    plan: Plan
    limit: int | None  # live bytes of the training step that the passes aimed at; None: no call runs again
    ram: int  # bytes of its arena and of what persists
    before: int  # the same without a budget, with all kernels and threads
    added_time: float  # estimated share of a training step
    repeated: int  # calls that run again
    slices: SlicedStep | None = None  # the training step of a slice, where the batch is in slices
    unsliced: str = ""  # why it is not
    tiled: bool = False  # large gradients are in slices of channels
    search: int = 1  # for the layout of the arena: times the usual work

    @property
    def note(self) -> str:
        """The ways that were taken and the price, as text."""
        ways = []
        if self.slices is not None:
            ways.append(
                f"The batch is computed in {self.slices.micro[TRAIN].rounds} slices of {self.slices.size}."
            )
        if self.repeated:
            ways.append(f"{self.repeated} calls of a training step run again.")
        if self.tiled:
            ways.append("Large gradients are computed in slices of channels.")
        if self.unsliced:
            ways.append(f"Slices of the batch are not possible: {self.unsliced}.")
        return (
            f"RAM fitted to the budget: {self.ram:,} bytes instead of {self.before:,}, of them "
            f"{self.plan.persistent_bytes:,} that persist. {' '.join(ways)} A training step takes about "
            f"{100 * self.added_time:.0f} % longer by estimate"
        )

    def optimized(self, lowered: Program, registry: Registry, sizes: Mapping[str, int]) -> Program:
        """The program of the same choice with another `registry`. `lowered` is the program without a budget, `sizes`
        are those of the free dimensions."""
        return _optimized(lowered, registry, sizes, self.slices, self.limit, tiled=self.tiled)


def _optimized(
    lowered: Program,
    registry: Registry,
    sizes: Mapping[str, int],
    slices: SlicedStep | None,
    limit: int | None,
    *,
    tiled: bool,
    outcomes: Outcomes | None = None,
) -> Program:
    remade = () if limit is None else checkpointing(limit, sizes, tiled=tiled, outcomes=outcomes)
    if slices is not None:
        return optimize(slices.program, registry, None, remade, slices.looped)
    looped = partial(loops_over_channels, registry=registry) if tiled else None
    return optimize(lowered, registry, None, remade, looped)


def ram_of(plan: Plan, sizes: Mapping[str, int]) -> int:
    """Bytes of the largest arena at these `sizes` of the free dimensions and of what persists between calls."""
    return plan.persistent_bytes + max((arena_peak(r, sizes) for r in plan.routines), default=0)


def fit(
    lowered: Program,
    registry: Registry,
    sizes: Mapping[str, int],
    budget: int,
    build: Build,
    slicing: Callable[[], BatchSlices],
    other_updates: Callable[[], int | None] | None = None,
    usual: int = 0,
) -> FittedPlan | None:
    """The plan of `lowered` that takes at most `budget` bytes in little time; None where one without a budget does.

    `registry` has the operators, `sizes` those of the free dimensions, and `build` makes the plan of an optimised
    program, with the smallest arena or soon. `slicing` says how the batch can be in slices, or raises Unsupported with
    the reason why not; `other_updates` gives the bytes of a plan that fits with fused updates, or with separate ones
    where they are fused, for the message; None where there is none. `usual` are the bytes of RAM without `--ram`,
    where that has other kernels or more threads than `build` gives a plan. Raises OverBudget with the least that was
    found."""
    search = _search(lowered, registry, sizes, budget, build, usual=usual)
    if search.smallest <= budget:
        return None
    if not any(p.name == TRAIN for p in lowered.procedures):
        raise OverBudget(
            f"--ram {budget:,}: the graphs take {search.smallest:,} bytes of RAM, and only training "
            "steps can compute anything twice to take less. Give more, or a smaller --max-dim."
        )
    found = search.sliced(slicing) or search.checkpointed()
    if found is not None:
        return found
    raise OverBudget(search.refusal(other_updates))


def plan_within(
    lowered: Program,
    registry: Registry,
    sizes: Mapping[str, int],
    budget: int,
    build: Build,
    slicing: Callable[[], BatchSlices],
) -> tuple[Program, int] | None:
    """An optimised program of `lowered` with a training step whose plan takes at most `budget` bytes of RAM, and these
    bytes; None where none was found. Its price is of no account, and layouts that cannot fit are not searched for, so
    that this takes less time than `fit`.

    `lowered`, `registry`, `sizes`, `budget`, `build` and `slicing` are those of `fit`."""
    free = optimize(lowered, registry)
    before = build(free, _NO_SEARCH)
    if before.persistent_bytes >= budget:
        return None
    search = _Search(lowered, registry, sizes, budget, build, free=free, before=before, usual=0)
    found = None
    if before.persistent_bytes + peak_bytes(before, sizes)[1] <= budget:
        found = search.fitted(None, None, below=budget + 1)
    if found is None or found.ram > budget:
        found = search.sliced(slicing) or search.smallest_plan(budget)
    return (found.program, found.ram) if found.ram <= budget else None


def curve(
    lowered: Program,
    registry: Registry,
    sizes: Mapping[str, int],
    build: Build,
    slicing: Callable[[], BatchSlices],
    usual: int = 0,
) -> tuple[RamPoint, ...]:
    """Estimated time of a training step over bytes of RAM: of the plan without a budget, the smallest one, and some for
    budgets between them, the largest first, each slower than the ones before it.

    `lowered`, `registry`, `sizes`, `build`, `slicing` and `usual` are those of `fit`."""
    search = _search(lowered, registry, sizes, 1, build, usual=usual)
    most = RamPoint(search.usual, 0.0)
    if not any(p.name == TRAIN for p in lowered.procedures):
        return (most,)
    slices = _once(slicing)
    search.sliced(slices)
    least = search.smallest_plan()
    found = {most, RamPoint(least.ram, least.added_time)}
    for part in range(1, _BETWEEN + 1):
        budget = least.ram + (most.ram - least.ram) * part // (_BETWEEN + 1)
        fitted = fit(lowered, registry, sizes, budget, build, slicing=slices)
        if fitted is not None:
            found.add(RamPoint(fitted.ram, fitted.added_time))
    kept: list[RamPoint] = []
    for point in sorted(found, key=lambda p: (p.ram, p.added_time)):
        if not kept or point.added_time < kept[-1].added_time:
            kept.append(point)
    return tuple(kept[::-1])


def _once(slicing: Callable[[], BatchSlices]) -> Callable[[], BatchSlices]:
    """`slicing` that gives or raises again what it did before."""
    try:
        slices = slicing()
    except Unsupported as error:
        found = list(error.findings)

        def refuse() -> BatchSlices:
            raise Unsupported(found)

        return refuse
    return lambda: slices


def _search(
    lowered: Program, registry: Registry, sizes: Mapping[str, int], budget: int, build: Build, usual: int
) -> _Search:
    free = optimize(lowered, registry)
    before = build(free, _SEARCH)
    usual = usual or ram_of(before, sizes)
    return _Search(lowered, registry, sizes, budget, build, free=free, before=before, usual=usual)


@dataclass
class _Search:
    """The plans of one program that were made so far."""

    lowered: Program
    registry: Registry
    sizes: Mapping[str, int]
    budget: int
    build: Build
    free: Program  # optimised without a budget
    before: Plan  # its plan, with the kernels and threads of `build`
    usual: int  # bytes of RAM without a budget, with all kernels and threads
    slices: SlicedStep | None = None  # the smallest that are possible
    unsliced: str = ""
    outcomes: Outcomes = field(default_factory=dict)  # of choices of calls that run again
    smallest: int = field(init=False)  # bytes of RAM
    seconds: float = field(init=False)  # of a training step without a budget, by estimate

    def __post_init__(self) -> None:
        self.smallest = ram_of(self.before, self.sizes)
        self.seconds = seconds_of(_training(self.free), self.registry, self.sizes)

    def sliced(self, slicing: Callable[[], BatchSlices]) -> FittedPlan | None:
        """The plan with the largest slices that fits."""
        try:
            possible = slicing()
            peaks = {r.name: arena_peak(r, self.sizes) for r in self.before.routines}
            evaluates = peaks.get("eval", 0) + self.before.persistent_bytes > self.budget
            evaluation = possible.evaluation if evaluates else None
            for size in possible.sizes:
                step = possible.step(size, evaluation)
                found = self.fitted(step, None)
                if found.ram <= self.budget:
                    return found
                self.slices, self.smallest = step, min(self.smallest, found.ram)
        except Unsupported as error:
            self.unsliced = "; ".join(error.findings)
        return None

    def checkpointed(self) -> FittedPlan | None:
        """A plan that fits with calls that run again, in the smallest slices where there are any."""
        for tiled in (False, True) if self.slices is None else (False,):
            target = limit = self.budget - self.before.persistent_bytes
            for _ in range(_CORRECTIONS if target > 0 else 0):
                found = self.fitted(self.slices, limit, tiled=tiled, below=self.budget + 1)
                if found.ram <= self.budget:
                    return found
                arena = found.ram - found.plan.persistent_bytes
                if arena > 1.25 * target:
                    break  # the passes found nothing near it
                limit = min(limit - 1, limit * target // arena)
        found = self.smallest_plan()
        self.smallest = min(self.smallest, found.ram)
        return found if found.ram <= self.budget else None

    def smallest_plan(self, enough: int = 0) -> FittedPlan:
        """The smallest of the plans for a limit that nothing fits, and for ones right below what the last one takes, as
        long as these are smaller: the same for any budget, so that the least which is printed can be had. Or the first
        that takes at most `enough` bytes, where a layout is searched for in plans that may do so."""
        tiled = self.slices is None
        below = enough + 1 if enough else None
        least = self.fitted(self.slices, 1, tiled=tiled, below=below)
        if tiled and least.ram > enough:
            other = self.fitted(self.slices, 1, below=below or least.ram)
            least = min(least, other, key=lambda each: each.ram)
        for _ in range(_DESCENTS):
            if least.ram <= enough:
                break
            limit = int(_SMALLER * (least.ram - self.before.persistent_bytes))
            found = self.fitted(self.slices, limit, tiled=tiled, below=below or least.ram)
            if found.ram >= least.ram:
                break
            least = found
        return least

    def fitted(
        self, slices: SlicedStep | None, limit: int | None, *, tiled: bool = False, below: int | None = None
    ) -> FittedPlan:
        """The plan of this choice, and its price. Where no layout takes fewer bytes than `below`, the `ram` of the plan
        is what every layout takes at least."""
        program = _optimized(
            self.lowered, self.registry, self.sizes, slices, limit, tiled=tiled, outcomes=self.outcomes
        )
        search = _NO_SEARCH
        plan = self.build(program, search)
        bound = ram = plan.persistent_bytes + peak_bytes(plan, self.sizes)[1]
        if below is None or bound < below:
            search = _SEARCH
            plan = self.build(program, search)
            ram = ram_of(plan, self.sizes)
        wanted = below if below is not None or limit is None else ram
        if wanted is not None and bound < wanted <= ram:
            longer = self.build(program, _LONG_SEARCH)
            if ram_of(longer, self.sizes) < ram:
                search, plan, ram = _LONG_SEARCH, longer, ram_of(longer, self.sizes)
        new = _training(program)
        price = (seconds_of if slices is None else cached_seconds_of)(new, self.registry, self.sizes)
        return FittedPlan(
            program,
            plan,
            limit=limit,
            ram=ram,
            before=self.usual,
            added_time=price / self.seconds - 1,
            repeated=0 if limit is None else _repeated(new),
            slices=slices,
            unsliced=self.unsliced,
            search=search,
            tiled=tiled and any(name.endswith(SLICE) for name in new.values),
        )

    def refusal(self, other_updates: Callable[[], int | None] | None) -> str:
        """The text for a budget that no plan fits."""
        persistent = self.before.persistent_bytes
        text = (
            f"--ram {self.budget:,}: the smallest plan found takes {self.smallest:,} bytes of RAM, "
            f"{persistent:,} of them for what persists (parameters, gradients, moments), "
            f"{self.smallest - persistent:,} for temporaries; without a budget it is {self.usual:,}."
        )
        if self.unsliced:
            text += f" The batch cannot be computed in slices: {self.unsliced.rstrip('.')}."
        other = other_updates() if other_updates else None
        if other is not None:
            way = "With --updates fused (mb_train_and_update, which stores no gradients)"
            if self.lowered.fused_updates:
                way = "Without --updates fused"
            text += f" {way} a plan takes {other:,} bytes, which fits."
        return f"{text} Give more, a smaller --max-dim, or train fewer parameters."


def _repeated(procedure: Procedure) -> int:
    """Calls of `procedure` whose results are copies: another call makes the same."""
    return sum(any(AGAIN in name for name in call.outputs) for call in procedure.calls)


def _training(program: Program) -> Procedure:
    return next(p for p in program.procedures if p.name == TRAIN)
