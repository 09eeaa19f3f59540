"""Pattern fusion: a group of calls that one kernel computes becomes one call. Rules stand with the operators they end
in."""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain

from minbuild.ir import Call, Procedure, Program
from minbuild.ops import Registry
from minbuild.ops.core.pattern import COMMUTATIVE, Match, Pattern, Replacement, Rewrite, RewritingOp
from minbuild.passes.analysis.aliases import present_inputs, present_outputs
from minbuild.passes.analysis.effects import Effects, Writes
from minbuild.passes.analysis.liveness import readers
from minbuild.passes.lowering.loop_call import bodies, with_bodies
from minbuild.passes.rewrite.view_elimination import without_view


def fuse_patterns(procedure: Procedure, registry: Registry) -> Procedure:
    """All rewrites of all operators but `shared` ones, until none finds anything more: always the first match, by call
    and by rule."""
    ops = (op for _, op in sorted(registry.ops.items()) if isinstance(op, RewritingOp))
    return _fused(procedure, registry, [each for op in ops for each in op.rewrites if not each.shared])


def fuse_shared(program: Program, registry: Registry) -> Program:
    """`program` with the `shared` rewrites of operators that have a kernel which some call of it has; `registry` has
    the operators."""
    everything = chain.from_iterable((p, *bodies(p)) for p in program.procedures)
    calls = (call for procedure in everything for call in procedure.calls)
    used = {kernel.function for call in calls for kernel in registry.ops[call.op].kernels}
    ops = (op for _, op in sorted(registry.ops.items()) if isinstance(op, RewritingOp))
    sharing = (op for op in ops if used.intersection(kernel.function for kernel in op.kernels))
    rules = [each for op in sharing for each in op.rewrites if each.shared]
    if not rules:
        return program
    procedures = (with_bodies(p, lambda each: _fused(each, registry, rules)) for p in program.procedures)
    return replace(program, procedures=tuple(procedures))


def _fused(procedure: Procedure, registry: Registry, rewrites: Sequence[Rewrite]) -> Procedure:
    rules: dict[str, list[Rewrite]] = defaultdict(list)  # by the operator they end in
    for rewrite in rewrites:
        rules[_key(rewrite.pattern)].append(rewrite)
    if not any(call.op in rules for call in procedure.calls):
        return procedure
    graph = _Graph(procedure, registry)
    index = 0
    while index < len(graph.calls):
        changed = _rewritten(graph, index, rules)
        index = index + 1 if changed is None else changed
    return replace(procedure, calls=tuple(filter(None, graph.calls)), alias=dict(graph.effects.aliases))


@cache
def _key(pattern: Pattern) -> str:
    """The operator of a pattern's root."""
    name = pattern[0]
    assert isinstance(pattern, tuple) and isinstance(name, str)
    return name if ":" in name else f":{name}"


def _rewritten(graph: _Graph, index: int, rules: Mapping[str, Sequence[Rewrite]]) -> int | None:
    """Applies the first rule that matches at the call `index`. Returns the first position at which a rule may match now
    that did not before, None if nothing was applied."""
    call = graph.calls[index]
    for rule in rules.get(call.op, ()) if call is not None else ():
        for found in graph.matches(rule.pattern, index):
            replacement = rule.build(graph.match(found)) if graph.safe(found) else None
            if replacement is not None and (changed := graph.replace(found, replacement)) is not None:
                return changed
    return None


@dataclass(frozen=True)
class _Found:
    """A pattern laid over calls: names to values, and which calls it covers."""

    names: Mapping[str, str]
    calls: frozenset[int]


class _Graph:
    """A procedure under rewriting: replaced calls leave None behind, so that positions stay."""

    def __init__(self, procedure: Procedure, registry: Registry) -> None:
        self.procedure, self.registry = procedure, registry
        self.calls: list[Call | None] = list(procedure.calls)
        self.effects = effects = Effects(procedure, registry)  # with the aliases so far
        self.made_by = {n: i for i, c in enumerate(procedure.calls) for n in effects.produces(c)}
        self.read_by = readers(procedure, effects)  # an output is read at the end
        self.writes = Writes(procedure, effects)

    def call(self, index: int) -> Call:
        found = self.calls[index]
        assert found is not None, "replaced calls make and read nothing"
        return found

    def matches(self, pattern: Pattern, index: int) -> Iterator[_Found]:
        """Every way in which the pattern's root is this call."""
        return self._call(pattern, index, _Found({}, frozenset()))

    def _call(self, pattern: Pattern, index: int, found: _Found) -> Iterator[_Found]:
        call = self.call(index)
        key, operands = _key(pattern), pattern[1:]
        if call.op != key or len(call.inputs) != len(operands) or not all(call.inputs):
            return
        found = _Found(found.names, found.calls | {index})
        orders = (call.inputs, call.inputs[::-1]) if key in COMMUTATIVE else (call.inputs,)
        for inputs in orders:
            yield from self._operands(tuple(zip(operands, inputs, strict=True)), found)

    def _operands(self, pairs: tuple[tuple[Pattern, str], ...], found: _Found) -> Iterator[_Found]:
        if not pairs:
            yield found
            return
        (pattern, value), rest = pairs[0], pairs[1:]
        for bound in self._operand(pattern, value, found):
            yield from self._operands(rest, bound)

    def _operand(self, pattern: Pattern, value: str, found: _Found) -> Iterator[_Found]:
        if isinstance(pattern, str):
            if found.names.get(pattern, value) == value:
                yield _Found({**found.names, pattern: value}, found.calls)
            return
        owner = self.effects.owner(value)
        maker = self.made_by.get(owner)
        if maker is None or len(self.read_by[owner]) != 1 or maker in found.calls:
            return
        values = self.procedure.values
        made = self.call(maker)
        # A view in between would change the shape that the pattern's operators see.
        if (
            len(list(present_outputs(made))) == 1
            and values[value].type == values[made.outputs[0] or value].type
        ):
            yield from self._call(pattern, maker, found)

    def match(self, found: _Found) -> Match:
        values = self.procedure.values
        types = {n: values[v].type for n, v in found.names.items()}
        constants = {n: c for n, v in found.names.items() if (c := values[v].constant) is not None}
        calls = tuple(self.call(i) for i in sorted(found.calls))
        return Match(found.names, types, constants, calls, values[calls[-1].outputs[0]].type)

    def safe(self, found: _Found) -> bool:
        """True if the last call gives one result, and nothing changes the operands before it, where they are read now.
        Only what outlives the procedure is ever changed: everything else is written once."""
        index = max(found.calls)
        last = self.call(index)
        if len(list(present_outputs(last))) != 1 or not last.outputs[0] or last.accumulate:
            return False
        owners = self.effects.owners(found.names.values())
        between = range(min(found.calls), index)
        return not any(
            self.effects.role(owner).persists and self.writes.any_in(owner, between) for owner in owners
        )

    def replace(self, found: _Found, replacement: Replacement) -> int | None:
        """Puts the new call where the last matched one stood; None where it would be a view that cannot be an alias (of
        a returned input), which needs the kernel that it would replace. Else the first position at which a pattern may
        match only now: that of a matched call, or of the one reader left to a value that is read less."""
        index = max(found.calls)
        old = [self.call(i) for i in sorted(found.calls)]
        inputs = tuple(found.names[name] for name in replacement.inputs)
        new = Call(
            replacement.op,
            1,
            old[-1].node,
            inputs=inputs,
            outputs=old[-1].outputs,
            attributes=dict(replacement.attributes),
        )
        kept = without_view(new, self.procedure, self.effects, self.registry)
        if kept is not None and self._is_view(kept) and not any(self._is_view(call) for call in old):
            return None
        for i, call in zip(sorted(found.calls), old, strict=True):
            self.calls[i] = None
            for name in present_inputs(call):
                self.read_by[self.effects.owner(name)].remove(i)
            for owner in self.effects.produces(call):
                if self.made_by.get(owner) == i:
                    del self.made_by[owner]
        self.calls[index] = kept
        if kept is None:
            result = new.outputs[0]
            self.read_by[self.effects.owner(result)] = sorted(
                [*self.read_by[self.effects.owner(result)], *self.read_by.pop(result, ())]
            )
        else:
            self.made_by[self.effects.owner(kept.outputs[0])] = index
            for name in present_inputs(kept):
                insort(self.read_by[self.effects.owner(name)], index)
        left = (
            self.read_by[owner]
            for name in found.names.values()
            if (owner := self.effects.owner(name)) in self.made_by
        )
        return min((min(found.calls), *(only[0] for only in left if len(only) == 1)))

    def _is_view(self, call: Call) -> bool:
        return self.registry.ops[call.op].is_view
