"""Cheap results are computed again rather than kept from the forward pass to the backward pass.

What an activation or a normalisation made is read by the next layer and, much later, by gradients. Where what it was
made of is kept anyway, making it once more, right before it is needed, frees its bytes in between. The same arithmetic
runs on the same bits, so no number changes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

from minbuild.model import Call, Procedure, Role, Value
from minbuild.ops import Registry
from minbuild.passes.storage import root

SHORTEST_GAP = 8  # calls between two readers of a value that make it worth while


@dataclass
class _Plan:
    """One procedure: who makes and reads every value, and the calls that are to be made again."""

    procedure: Procedure
    registry: Registry
    makers: dict[str, int] = field(default_factory=dict)
    reads: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    added: dict[int, list[Call]] = field(default_factory=lambda: defaultdict(list))  # before that call
    renamed: dict[int, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    values: dict[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for index, call in enumerate(self.procedure.calls):
            self.makers.update((name, index) for name in call.outputs if name)
            for name in set(call.inputs) - {""}:
                self.reads[name].append(index)
        # Views and results that must not move keep every value they touch where it is.
        self.fixed = {root(self.procedure.alias, n) for n in (*self.procedure.alias, *self.procedure.outputs)}

    def gap(self, name: str) -> int | None:
        """The first reader behind the widest gap between readers of `name`, if that is wide enough."""
        uses = self.reads.get(name, [])
        gaps = [after - now for now, after in zip(uses, uses[1:], strict=False)]
        wide = max(gaps, default=0)
        return uses[gaps.index(wide) + 1] if wide >= SHORTEST_GAP else None

    def kept_until(self, name: str, index: int) -> bool:
        """Whether the value is there at call `index` without any doing."""
        value = self.procedure.values[root(self.procedure.alias, name)]
        if value.role is not Role.TEMPORARY or name in self.fixed:
            return True
        dropped = self.gap(name) is not None and self.again(name) is not None
        return not dropped and max(self.reads.get(name, ()), default=-1) >= index

    def again(self, name: str) -> Call | None:
        """The call that makes `name` a second time, if its operator has one."""
        index = self.makers.get(name)
        if index is None or name in self.fixed or self.procedure.values[name].role is not Role.TEMPORARY:
            return None
        call = self.procedure.calls[index]
        repeat = self.registry.ops[call.op].again
        return repeat(call) if repeat and call.outputs[0] == name else None

    def remake(self, name: str, index: int) -> list[Call] | None:
        """Calls before `index` after which `name` is there as `name (again)`; None where that is impossible."""
        call = self.again(name)
        if call is None:
            return None
        calls: list[Call] = []
        inputs = []
        for source in call.inputs:
            if not source or self.kept_until(source, index):
                inputs.append(source)
                continue
            first = self.remake(source, index)
            if first is None:
                return None
            calls += first
            inputs.append(_again(source))
        return [*calls, replace(call, inputs=tuple(inputs), outputs=(_again(name),))]


def _again(name: str) -> str:
    return f"{name} (again)"


def recompute_cheap(procedure: Procedure, registry: Registry) -> Procedure:
    """Adds a second call of cheap operators whose results have readers far behind the others."""
    plan = _Plan(procedure, registry)
    made: set[str] = set()
    gaps = {name: late for name in plan.reads if (late := plan.gap(name)) is not None}
    for name, late in sorted(gaps.items(), key=lambda g: g[1]):
        calls = plan.remake(name, late)
        if calls is None:
            continue
        for call in calls:
            if call.outputs[0] not in made:
                made.add(call.outputs[0])
                plan.added[late].append(call)
                source = call.outputs[0].removesuffix(_again(""))
                plan.values[call.outputs[0]] = replace(procedure.values[source], name=call.outputs[0])
        for reader in plan.reads[name]:
            if reader >= late:
                plan.renamed[reader][name] = _again(name)
    ordered = []
    for index, call in enumerate(procedure.calls):
        names = plan.renamed[index]
        ordered += [*plan.added[index], replace(call, inputs=tuple(names.get(n, n) for n in call.inputs))]
    return replace(procedure, calls=tuple(ordered), values={**procedure.values, **plan.values})
