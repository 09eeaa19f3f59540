"""Transpose folding: a Transpose around a product becomes strides of the product, which reads or writes transposed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from minbuild.ir import Call, Procedure
from minbuild.ops import Registry
from minbuild.ops.linear_algebra.einsum_equation import Equation
from minbuild.ops.linear_algebra.matmul_rewrites import ProductOp
from minbuild.passes.analysis.aliases import present_outputs
from minbuild.passes.analysis.effects import Effects, Writes
from minbuild.passes.analysis.liveness import readers

_TRANSPOSE = ":Transpose"


def fold_transposes(procedure: Procedure, registry: Registry) -> Procedure:
    """Products read the operand of a Transpose instead of its result, or write the transposed result themselves. A
    Transpose with other readers stays for these."""
    if not any(call.op == _TRANSPOSE for call in procedure.calls):
        return procedure
    work = _Folding(procedure, registry)
    for index, call in enumerate(procedure.calls):
        if isinstance(registry.ops[call.op], ProductOp):
            work.calls[index] = work.product(index, call)
    return replace(procedure, calls=tuple(c for _, c in sorted(work.calls.items())))


@dataclass
class _Folding:
    """One procedure with its makers, readers and effects; calls that are folded away are deleted from `calls`."""

    procedure: Procedure
    registry: Registry
    calls: dict[int, Call] = field(init=False)
    made_by: Mapping[str, int] = field(init=False)
    read_by: Mapping[str, list[int]] = field(init=False)
    effects: Effects = field(init=False)
    writes: Writes = field(init=False)

    def __post_init__(self) -> None:
        self.calls = dict(enumerate(self.procedure.calls))
        self.effects = Effects(self.procedure, self.registry)
        self.writes = Writes(self.procedure, self.effects)
        self.made_by = {name: i for i, call in self.calls.items() for name in present_outputs(call)}
        self.read_by = readers(self.procedure, self.effects)

    def product(self, index: int, call: Call) -> Call:
        op = self.registry.ops[call.op]
        assert isinstance(op, ProductOp)
        ranks = [len(self.procedure.values[n].type.shape or ()) for n in call.inputs[:2]]
        equation, inputs = op.equation(call.attributes, ranks), list(call.inputs)
        for i in (0, 1):
            while (transpose := self.transpose_before(inputs[i], index)) is not None:
                equation = _before(equation, i, _order(transpose, len(equation.operands[i])))
                inputs[i] = transpose.inputs[0]
        if inputs != list(call.inputs):
            call = op.reordered(replace(call, inputs=tuple(inputs)), equation) or call
        after = self.transpose_after(call)
        if after is None:
            return call
        transpose = self.calls[after]
        order = _order(transpose, len(equation.y))
        written = replace(call, outputs=transpose.outputs)
        found = op.reordered(written, replace(equation, y="".join(equation.y[o] for o in order)))
        if found is not None:
            del self.calls[after]
        return found or call

    def transpose_before(self, name: str, reader: int) -> Call | None:
        """The Transpose that makes `name`, if it was not folded into what made its source, and that is unchanged when
        the product runs."""
        index = self.made_by.get(name)
        if index not in self.calls or (transpose := self.procedure.calls[index]).op != _TRANSPOSE:
            return None
        owner = self.effects.owner(transpose.inputs[0])
        persists = self.effects.role(owner).persists
        changed = persists and self.writes.any_in(owner, range(index, reader))
        return None if changed else transpose

    def transpose_after(self, call: Call) -> int | None:
        """The Transpose that is the only reader of a product."""
        result = call.outputs[0]
        uses = self.read_by.get(self.effects.owner(result), [])
        if len(uses) != 1 or uses[0] not in self.calls or call.accumulate:
            return None
        reader = self.calls[uses[0]]
        return uses[0] if reader.op == _TRANSPOSE and reader.inputs[0] == result else None


def _order(transpose: Call, rank: int) -> tuple[int, ...]:
    return tuple(int(o) % rank for o in transpose.attributes.get("perm") or range(rank)[::-1])


def _before(equation: Equation, i: int, order: tuple[int, ...]) -> Equation:
    """The equation with operand `i` as it was before a Transpose made axis k of its axis `order[k]`."""
    letters = dict(zip(order, equation.operands[i], strict=True))
    operands = list(equation.operands)
    operands[i] = "".join(letters[axis] for axis in range(len(letters)))
    return Equation(tuple(operands), equation.y)
