"""Groups of calls that one kernel serves become one call. The rules stand with the operators they end in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from minbuild.ir import Call, Procedure
from minbuild.ops import Registry
from minbuild.ops.core.pattern import COMMUTATIVE, Match, Pattern, Replacement, Rewrite, RewritingOp
from minbuild.passes.analysis.aliases import readers, root, writes
from minbuild.passes.rewrite.view_elimination import eliminate_views


def fuse_patterns(procedure: Procedure, registry: Registry) -> Procedure:
    """All rewrites of all operators, until none finds anything more."""
    rules: dict[str, list[Rewrite]] = defaultdict(list)  # by the operator they end in
    for _, op in sorted(registry.ops.items()):
        for rewrite in op.rewrites if isinstance(op, RewritingOp) else ():
            rules[_key(rewrite.pattern)].append(rewrite)
    while (fused := _first_rewrite(procedure, registry, rules)) is not None:
        procedure = fused
    return procedure


def _key(pattern: Pattern) -> str:
    """The operator of a pattern's root."""
    name = pattern[0]
    assert isinstance(pattern, tuple) and isinstance(name, str)
    return name if ":" in name else f":{name}"


def _first_rewrite(
    procedure: Procedure, registry: Registry, rules: Mapping[str, Sequence[Rewrite]]
) -> Procedure | None:
    graph = _Graph.of(procedure)
    views = _views(procedure, registry)
    for index, call in enumerate(procedure.calls):
        for rule in rules.get(call.op, ()):
            for found in graph.matches(rule.pattern, index):
                replacement = rule.build(graph.match(found)) if graph.safe(found, registry) else None
                if replacement is None:
                    continue
                fused = eliminate_views(_replaced(procedure, found, replacement), registry)
                # A view that cannot be an alias (a returned input) needs the kernel it would have replaced.
                if _views(fused, registry) <= views:
                    return fused
    return None


def _views(procedure: Procedure, registry: Registry) -> int:
    return sum(registry.ops[call.op].is_view for call in procedure.calls)


def _replaced(procedure: Procedure, found: _Found, replacement: Replacement) -> Procedure:
    """The new call stands where the last matched one stood."""
    index = max(found.calls)
    old = procedure.calls[index]
    inputs = tuple(found.names[name] for name in replacement.inputs)
    new = Call(replacement.op, 1, old.node, inputs, old.outputs, dict(replacement.attributes))
    calls = (
        new if i == index else c for i, c in enumerate(procedure.calls) if i == index or i not in found.calls
    )
    return replace(procedure, calls=tuple(calls))


@dataclass(frozen=True)
class _Found:
    """A pattern laid over calls: names to values, and which calls it covers."""

    names: Mapping[str, str]
    calls: frozenset[int]


@dataclass(frozen=True)
class _Graph:
    """A procedure with the questions that matching asks answered."""

    procedure: Procedure
    made_by: Mapping[str, int]  # storage -> call
    read_by: Mapping[str, list[int]]

    @classmethod
    def of(cls, procedure: Procedure) -> _Graph:
        made_by = {root(procedure.alias, n): i for i, c in enumerate(procedure.calls) for n in writes(c)}
        return cls(procedure, made_by, readers(procedure))

    def matches(self, pattern: Pattern, index: int) -> Iterator[_Found]:
        """Every way in which the pattern's root is this call."""
        return self._call(pattern, index, _Found({}, frozenset()))

    def _call(self, pattern: Pattern, index: int, found: _Found) -> Iterator[_Found]:
        call = self.procedure.calls[index]
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
        owner = root(self.procedure.alias, value)
        maker = self.made_by.get(owner)
        if maker is None or len(self.read_by[owner]) != 1 or maker in found.calls:
            return
        values = self.procedure.values
        made = self.procedure.calls[maker]
        # A view in between would change the shape that the pattern's operators see.
        if len(list(writes(made))) == 1 and values[value].type == values[made.outputs[0] or value].type:
            yield from self._call(pattern, maker, found)

    def match(self, found: _Found) -> Match:
        values = self.procedure.values
        types = {n: values[v].type for n, v in found.names.items()}
        constants = {n: c for n, v in found.names.items() if (c := values[v].constant) is not None}
        calls = tuple(self.procedure.calls[i] for i in sorted(found.calls))
        return Match(found.names, types, constants, calls, values[calls[-1].outputs[0]].type)

    def safe(self, found: _Found, registry: Registry) -> bool:
        """Whether the last call gives one result, and nothing changes the operands before it, where they are
        read now. Only what outlives the procedure is ever changed: everything else is written once."""
        alias, calls, values = self.procedure.alias, self.procedure.calls, self.procedure.values
        index = max(found.calls)
        if len(list(writes(calls[index]))) != 1 or not calls[index].outputs[0] or calls[index].accumulate:
            return False
        lasting = {owner for name in found.names.values() if values[owner := root(alias, name)].role.persists}
        for call in calls[min(found.calls) : index]:
            updated = [call.inputs[i] for i in registry.ops[call.op].mutates if i < len(call.inputs)]
            if lasting & {root(alias, name) for name in (*writes(call), *updated)}:
                return False
        return True
