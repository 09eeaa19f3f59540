"""Effects: the storage that a call reads and the storage that it changes.

Storage is named by its owner, the value at the end of a chain of aliases. A call changes what its outputs are stored in
and the inputs that its operator updates in place (`Op.mutates`), such as running statistics or variables.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from minbuild.ir import Call, Procedure, Role
from minbuild.ir.program import PERSISTENT
from minbuild.ops import Registry
from minbuild.ops.core.definition import Op
from minbuild.passes.analysis.aliases import root

_ABSENT = frozenset([""])


def updates_in_place(call: Call, registry: Registry) -> bool:
    """True if the operator of `call`, which `registry` has, updates some of its inputs, such as running statistics."""
    return bool(registry.ops[call.op].mutates)


def updated_inputs(op: Op, inputs: Sequence[str]) -> list[str]:
    """Names of those `inputs` of a node that its operator `op` updates."""
    return [inputs[i] for i in op.mutates if i < len(inputs)]


class Effects:
    """Effects of the calls of one procedure, also of calls that a rewrite makes for it. Aliases are those that the
    procedure had when this was made, and those that `share` added since."""

    def __init__(self, procedure: Procedure, registry: Registry) -> None:
        self._alias, self._values, self._ops = dict(procedure.alias), procedure.values, registry.ops
        self._shared = self._alias.keys()
        self._owners: dict[str, str] = {}  # of what shares bytes, as far as asked for

    @property
    def aliases(self) -> Mapping[str, str]:
        """The value whose bytes another is stored in, as `Procedure.alias` has it."""
        return self._alias

    def share(self, name: str, target: str) -> None:
        """Has `name`, which owned its bytes until now, stored in the bytes of `target`."""
        self._alias[name] = target

    def owner(self, name: str) -> str:
        """The value that owns the bytes of `name`."""
        if name not in self._alias:
            return name
        found = self._owners.get(name, name)
        if found in self._alias:  # not asked for yet, or the owner shares the bytes of another since
            found = self._owners[name] = root(self._alias, found)
        return found

    def owners(self, names: Iterable[str]) -> frozenset[str]:
        """Owners of those `names` that are present."""
        found = frozenset(names)
        if not self._shared.isdisjoint(found):
            shared = self._alias
            return frozenset([self.owner(name) if name in shared else name for name in found if name])
        return found - _ABSENT if "" in found else found

    def reads(self, call: Call) -> frozenset[str]:
        """Storage that the call reads."""
        return self.owners(call.inputs)

    def produces(self, call: Call) -> frozenset[str]:
        """Storage of the call's outputs."""
        return self.owners(call.outputs)

    def mutates(self, call: Call) -> frozenset[str]:
        """Storage of the inputs that the call updates."""
        updated = self._ops[call.op].mutates
        return (
            self.owners(call.inputs[i] for i in updated if i < len(call.inputs)) if updated else frozenset()
        )

    def writes(self, call: Call) -> frozenset[str]:
        """Storage that the call changes: its outputs and the inputs that it updates."""
        made = self.produces(call)
        return made | self.mutates(call) if self._ops[call.op].mutates else made

    def touches(self, call: Call) -> frozenset[str]:
        """Storage that the call reads or changes."""
        return self.owners((*call.inputs, *call.outputs))

    def role(self, owner: str) -> Role:
        """The role of an owner of storage."""
        return self._values[owner].role

    def outlives(self, call: Call) -> bool:
        """True if the call changes storage that persists between steps."""
        return self.any_outlives(self.writes(call))

    def any_outlives(self, owners: Iterable[str]) -> bool:
        """True if some of these `owners` of storage persist between steps."""
        values = self._values
        return any(values[owner].role in PERSISTENT for owner in owners)

    def depends(self, later: Call, earlier: Call) -> bool:
        """True if `later` must stay behind `earlier`: one of them changes what the other reads or changes."""
        written = self.writes(earlier)
        return bool(
            written & (self.reads(later) | self.writes(later)) or self.reads(earlier) & self.writes(later)
        )


class Writes:
    """Positions at which each storage is changed, for the calls of one procedure in order."""

    def __init__(self, procedure: Procedure, effects: Effects) -> None:
        self.positions: dict[str, list[int]] = {}
        for index, call in enumerate(procedure.calls):
            for owner in effects.writes(call):
                self.positions.setdefault(owner, []).append(index)

    def any_in(self, owner: str, positions: range) -> bool:
        """True if a call at one of `positions` changes `owner`."""
        return any_in(self.positions.get(owner, ()), positions)


def any_in(ordered: Sequence[int], positions: range) -> bool:
    """True if one of the ascending numbers `ordered` lies in `positions`."""
    at = bisect_left(ordered, positions.start)
    return at < len(ordered) and ordered[at] < positions.stop
