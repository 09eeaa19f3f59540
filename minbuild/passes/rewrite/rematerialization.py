"""Rematerialization: recomputes cheap results in the backward pass instead of keeping them from the forward pass.

The output of an activation or a normalisation is read by the next layer and, much later, by gradients. Where its inputs
are kept anyway, computing it a second time right before these readers frees its bytes in between. The same arithmetic
runs on the same bits, so no number changes. Quantised results are kept as codes (`Op.codes`), a quarter of their bytes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import cached_property

from minbuild.ir import Call, Procedure, Role, Value
from minbuild.ops import Registry
from minbuild.passes.analysis.effects import Effects
from minbuild.passes.analysis.instruction_selection import context_of
from minbuild.passes.analysis.representative_sizes import planned_bytes, planned_size
from minbuild.passes.rewrite.copy_elision import ASSIGN

SHORTEST_GAP = 8  # calls between two readers of a value from which recomputing it pays
MOST_CALLS = 6  # that recompute one value
AGAIN = " (again"  # in the names of values that a repeated call makes
_ARITHMETIC = (":Div", ":Mul", ":Sub")  # repeated on codes, where a quarter of the bytes pays for it
LARGEST_SHARE = 64  # a call that takes more than one part in so many of a procedure's work is not made again


@dataclass
class _Rematerialization:
    """One procedure: who makes and reads every value, and the calls that are to be made again."""

    procedure: Procedure
    registry: Registry
    makers: dict[str, int] = field(default_factory=dict)
    reads: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    added: dict[int, list[Call]] = field(default_factory=lambda: defaultdict(list))  # before that call
    renamed: dict[int, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    values: dict[str, Value] = field(default_factory=dict)
    alias: dict[str, str] = field(default_factory=dict)
    effects: Effects = field(init=False)
    dropped: set[str] = field(default_factory=set)  # values that are not kept across their widest gap
    made: dict[str, tuple[str, int]] = field(
        default_factory=dict
    )  # its latest second copy, and before which call
    coded: set[str] = field(default_factory=set)  # values that codes are there for
    codes: set[str] = field(default_factory=set)  # which are kept where values are made of them
    kept_codes: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.effects = Effects(self.procedure, self.registry)
        for call in self.procedure.calls:
            number = self.registry.ops[call.op].codes
            if number is not None and any(call.outputs[number : number + 1]):
                self.codes.add(call.outputs[number])
                self.coded.add(call.outputs[0])
        for index, call in enumerate(self.procedure.calls):
            self.makers.update((name, index) for name in call.outputs if name)
            for name in set(call.inputs) - {""}:
                self.reads[name].append(index)
        # Views and results that must not move keep every value they touch where it is. New values of variables are
        # among them: by the time they are assigned, what they were made of may have changed.
        assigned = [call.inputs[1] for call in self.procedure.calls if call.op == ASSIGN]
        alias, outputs = self.procedure.alias, self.procedure.outputs
        self.views = self._views_of_coded({*outputs, *assigned})
        self.fixed = self.effects.owners((*(n for n in alias if n not in self.views), *outputs, *assigned))

    def _views_of_coded(self, fixed: set[str]) -> set[str]:
        """Views of values that codes are there for: their readers count as readers of these, and read views of copies.
        Of values that share their bytes with others than views that calls only read, none."""
        views: dict[str, list[str]] = {
            name: [] for name in self.coded if self.effects.owner(name) == name and name not in fixed
        }
        for name in self.procedure.alias:
            owner = self.effects.owner(name)
            if owner in views:
                views[owner].append(name)
        found: set[str] = set()
        for owner, names in views.items():
            if not fixed.union(self.makers).isdisjoint(names):
                continue
            found.update(names)
            reads = {i for n in (owner, *names) for i in self.reads.get(n, ())}
            if reads:
                self.reads[owner] = sorted(reads)
            for name in names:
                self.reads.pop(name, None)
        return found

    def gap(self, name: str) -> int | None:
        """The first reader behind the widest gap between readers of `name`, if that is wide enough."""
        uses = self.reads.get(name, ())
        if not uses or uses[-1] - uses[0] < SHORTEST_GAP:
            return None
        gaps = [after - now for now, after in zip(uses, uses[1:], strict=False)]
        wide = max(gaps, default=0)
        return uses[gaps.index(wide) + 1] if wide >= SHORTEST_GAP else None

    def kept_until(self, name: str, index: int) -> bool:
        """True if the value is there at call `index` without any doing."""
        role, name = self.effects.role(self.effects.owner(name)), self.viewed(name)
        if role is not Role.TEMPORARY or name in self.fixed or name in self.codes:
            return True
        return name not in self.dropped and max(self.reads.get(name, ()), default=-1) >= index

    def recomputation(self, name: str, before: int) -> Call | None:
        """The call that makes `name` a second time, before the call at `before`, if its operator has one."""
        index = self.makers.get(name)
        if index is None or name in self.fixed or self.procedure.values[name].role is not Role.TEMPORARY:
            return None
        call = self.procedure.calls[index]
        repeat = self.registry.ops[call.op].rematerialize
        if repeat is None and call.op in _ARITHMETIC and all(map(self.is_coded, call.inputs)):
            return call
        if name in self.coded and self.kept_until(call.inputs[0], before):
            return call  # codes need not be kept as well
        if repeat is None or call.outputs[0] != name or not self.is_cheap(call):
            return None
        return repeat(call, context_of(call, self.procedure.values))

    def is_coded(self, name: str) -> bool:
        """True for constants, and for values that are made again of codes."""
        return self.viewed(name) in self.coded or self.procedure.values[name].constant is not None

    def viewed(self, name: str) -> str:
        """The value that `name` is a view of, or itself."""
        return self.effects.owner(name) if name in self.views else name

    @cached_property
    def total_work(self) -> int:
        """Multiplications of all calls."""
        return sum(self.work(call) for call in self.procedure.calls)

    def is_cheap(self, call: Call) -> bool:
        """Real work is worth doing twice where it is little and what it is done on is there for nothing."""
        work = self.work(call)
        given = self.effects.role(self.effects.owner(call.inputs[0])) is Role.INPUT
        return work == 0 or (given and work * LARGEST_SHARE <= self.total_work)

    def work(self, call: Call) -> int:
        """Multiplications of a call, at the largest planned sizes."""
        count = self.registry.ops[call.op].flops
        return planned_size(count(context_of(call, self.procedure.values))) if count else 0

    def remake(self, name: str, index: int, most: int = MOST_CALLS) -> list[Call] | None:
        """Calls that make `name` before call `index`, what they need first; None where that is impossible or takes more
        than `most`. A chain of sources ends there, however long it is."""
        call = self.recomputation(name, index) if most else None
        if call is None:
            return None
        calls: list[Call] = []
        for source in call.inputs:
            if source and not self.kept_until(source, index):
                first = self.remake(self.viewed(source), index, most - 1)
                if first is None:
                    return None
                calls += (each for each in first if each not in calls)
        return [*calls, call] if len(calls) < most else None

    def saves(self, name: str, calls: list[Call]) -> bool:
        """True if the codes that `calls` make `name` of are smaller than itself; they are kept from now on."""
        kept = {n for call in calls for n in call.inputs if n in self.codes} - self.kept_codes
        values = self.procedure.values
        sizes = planned_bytes(values[n] for n in (name, *kept))
        if sum(sizes[n] for n in kept) >= sizes[name] > 0:
            return False
        self.kept_codes |= kept
        return True

    def repeat(self, call: Call, index: int) -> str:
        """Has `call` made before call `index`; what its result is called there. One made a little before serves."""
        name = call.outputs[0]
        copy, before = self.made.get(name, ("", 0))
        if copy and index - before < SHORTEST_GAP:
            return copy
        copy = f"{name}{AGAIN})" if not copy else f"{copy[:-1]} and again)"
        self.made[name] = copy, index
        again: dict[str, str] = {}
        for source in filter(None, call.inputs):
            if not self.kept_until(source, index):
                owner = self.viewed(source)
                again |= self.names_of_copy(owner, self.made[owner][0], call)
        inputs = tuple(again.get(n, n) for n in call.inputs)
        self.added[index].append(replace(call, inputs=inputs, outputs=(copy,)))
        self.values[copy] = replace(self.procedure.values[name], name=copy)
        return copy

    def names_of_copy(self, name: str, copy: str, reader: Call) -> dict[str, str]:
        """The names by which `reader` reads `name`, itself or views of it, and those of `copy` in place of them."""
        names = {name: copy}
        for view in {n for n in reader.inputs if n in self.views and self.effects.owner(n) == name}:
            names[view] = f"{view}{copy.removeprefix(name)}"
            self.values[names[view]] = replace(self.procedure.values[view], name=names[view])
            self.alias[names[view]] = copy
        return names


def dropped_values(procedure: Procedure, registry: Registry) -> set[str]:
    """The values that are recomputed rather than kept across the widest gap between their readers."""
    plan = _Rematerialization(procedure, registry)
    _choose(plan)
    return plan.dropped


def _choose(plan: _Rematerialization) -> dict[str, tuple[int, list[Call]]]:
    """For every value to be dropped the first reader behind the gap, and the calls that make it again."""
    gaps = {name: late for name in plan.reads if (late := plan.gap(name)) is not None}
    remade = {}
    for name in sorted(gaps, key=lambda n: plan.makers.get(n, -1)):  # whether sources are kept is known first
        calls = plan.remake(name, gaps[name])
        if calls is not None and plan.saves(name, calls):
            remade[name] = gaps[name], calls
            plan.dropped.add(name)
    return remade


def rematerialize_cheap(procedure: Procedure, registry: Registry) -> Procedure:
    """Adds a second call of cheap operators whose results have readers far behind the others."""
    plan = _Rematerialization(procedure, registry)
    chosen = _choose(plan)
    if not chosen:
        return procedure
    for name, (late, calls) in sorted(chosen.items(), key=lambda item: item[1][0]):
        copies = [plan.repeat(call, late) for call in calls]
        for reader in plan.reads[name]:
            if reader >= late:
                plan.renamed[reader] |= plan.names_of_copy(name, copies[-1], procedure.calls[reader])
    ordered = []
    for index, call in enumerate(procedure.calls):
        names = plan.renamed[index]
        ordered += plan.added[index]
        ordered.append(replace(call, inputs=tuple(names.get(n, n) for n in call.inputs)) if names else call)
    values, alias = {**procedure.values, **plan.values}, {**procedure.alias, **plan.alias}
    return replace(procedure, calls=tuple(ordered), values=values, alias=alias)
