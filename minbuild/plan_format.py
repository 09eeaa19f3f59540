"""Plan -> bytes, in the layout of `schemas/trainer.fbs`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from minbuild import assets
from minbuild.dims import Atom, Dim, Extremum, Poly, Symbol
from minbuild.model import Buffer, Plan, Routine, Shape
from minbuild.wire import Schema, encode, parse_schema

VERSION = 1
EXPRESSIONS = ("Constant", "Symbol", "Add", "Subtract", "Multiply", "Divide", "Max", "Min", "Stack")
ROUTINES = ("train", "eval", "optimize")
_NONE = 65535
ARENA = 0  # the region whose tensors stand at an expression


@cache
def plan_schema() -> Schema:
    """The parsed `schemas/trainer.fbs`."""
    return parse_schema((assets.root("schemas") / "trainer.fbs").read_text("utf-8"))


def stable_key(text: str) -> int:
    """32-bit FNV-1a of a kernel or feature name: the same in every build on every machine."""
    key = 0x811C9DC5
    for byte in text.encode():
        key = (key ^ byte) * 0x01000193 & 0xFFFFFFFF
    return key


@dataclass
class _Tables:
    """The plan's pools; equal strings, expressions, shapes and parameter lists are stored once."""

    symbols: tuple[str, ...]
    names: bytearray = field(default_factory=bytearray)
    name_at: dict[str, int] = field(default_factory=dict)
    exprs: dict[tuple[int, int, int], int] = field(default_factory=dict)
    shapes: list[int] = field(default_factory=list)
    shape_at: dict[tuple[int, ...], int] = field(default_factory=dict)
    params: list[int] = field(default_factory=list)
    param_at: dict[tuple[int, ...], int] = field(default_factory=dict)

    def name(self, text: str) -> int:
        if text not in self.name_at:
            self.name_at[text] = len(self.names)
            self.names += text.encode() + b"\0"
        return self.name_at[text]

    def expr(self, op: str, a: int, b: int = 0) -> int:
        return self.exprs.setdefault((a, b, EXPRESSIONS.index(op)), len(self.exprs))

    def dim(self, dim: Dim) -> int:
        if not isinstance(dim, Poly):
            return self.expr("Constant", dim)
        terms = []
        for monomial, coefficient in dim.terms:
            factors = [self.atom(a) for a in monomial]
            if coefficient != 1 or not factors:
                factors.append(self.expr("Constant", coefficient))
            terms.append(self.fold("Multiply", factors))
        return self.fold("Add", terms)

    def fold(self, op: str, parts: list[int]) -> int:
        result = parts[0]
        for part in parts[1:]:
            result = self.expr(op, result, part)
        return result

    def atom(self, atom: Atom) -> int:
        if isinstance(atom, Symbol):
            return self.expr("Symbol", self.symbols.index(atom.name))
        if isinstance(atom, Extremum):
            return self.expr(atom.kind.capitalize(), self.dim(atom.left), self.dim(atom.right))
        return self.expr("Divide", self.dim(atom.numerator), self.dim(atom.denominator))

    def shape(self, shape: Shape) -> int:
        words = (len(shape), *(self.dim(d) for d in shape))
        if words not in self.shape_at:
            self.shape_at[words] = len(self.shapes)
            self.shapes += words
        return self.shape_at[words]

    def words(self, params: tuple[int, ...]) -> int:
        if params not in self.param_at:
            self.param_at[params] = len(self.params)
            self.params += params
        return self.param_at[params]

    def highest(self, parts: Iterable[int]) -> int:
        return self.fold("Max", sorted(set(parts)) or [self.dim(0)])


def _places(routine: Routine, tables: _Tables) -> tuple[list[int], int]:
    """Expressions of every buffer's offset and of the peak: each buffer stands on the highest of the earlier ones it
    is alive together with. One that lies below another of these is left out, for it can never be the highest."""
    offsets: list[int] = []
    tops: list[int] = []
    below: list[set[int]] = []  # everything a buffer stands on, directly or not
    for i, buffer in enumerate(routine.buffers):
        together = {j for j in range(i) if _overlap(buffer, routine.buffers[j])}
        covered = set().union(*(below[j] for j in together)) if together else set()
        offsets.append(tables.highest(tops[j] for j in together - covered))
        tops.append(tables.expr("Stack", offsets[i], tables.dim(buffer.bytes)))
        below.append(together | covered)
    return offsets, tables.highest(tops[i] for i in set(range(len(tops))) - set().union(set(), *below))


def _overlap(a: Buffer, b: Buffer) -> bool:
    return a.first <= b.last and b.first <= a.last


def encode_plan(plan: Plan, largest: Mapping[str, int]) -> bytes:
    """The bytes a device reads. `largest` gives each free dimension the size its arena is made for by default."""
    tables = _Tables(plan.symbols)
    routines = {r.name: r for r in plan.routines}
    graphs, steps, args, ports = [], [], [], []
    places: list[int] = []
    peaks: list[int] = []
    for routine in plan.routines:  # buffers are numbered through all routines in this order
        offsets, peak = _places(routine, tables)
        places += offsets
        peaks.append(peak)
    tensors = [
        (places[t.at] if t.region == ARENA else t.at, tables.shape(t.shape), int(t.element), t.region)
        for t in plan.tensors
    ]
    for name in ROUTINES:
        routine = routines.get(name, Routine(name, (), (), (), ()))
        first = (len(steps), len(args), len(ports))
        for step in routine.steps:
            steps.append((step.kernel, tables.words(step.params), step.accumulate))
            args += [_NONE if a < 0 else a for a in step.args]
        ports += [(tables.name(n), tensor, 0) for n, tensor in routine.inputs + routine.outputs]
        graphs.append((first[0], len(routine.steps), *first[1:], len(routine.inputs), len(routine.outputs), 0))
    value = {
        "version": VERSION,
        "trainable_bytes": plan.trainable_bytes,
        "persistent_bytes": plan.persistent_bytes,
        "learning_rate_at": plan.learning_rate_at,
        "step_at": plan.step_at,
        "moments": plan.moments,
        "arena": tables.highest(peaks),
        "symbols": [(tables.name(s), largest[s]) for s in plan.symbols],
        "tensors": tensors,
        "kernels": [(stable_key(n), tables.name(n)) for n in (*(k.symbol for k in plan.kernels), *plan.features)],
        "steps": steps,
        "args": args,
        "graphs": graphs,
        "ports": ports,
        "parameters": [(tables.name(p.name), p.tensor, int(p.role), 0) for p in plan.parameters],
        "constants": np.frombuffer(plan.constants + bytes(-len(plan.constants) % 8), "<u8"),
    }
    value |= {
        "names": bytes(tables.names),
        "exprs": list(tables.exprs),
        "shapes": tables.shapes,
        "params": tables.params,
    }
    return encode(plan_schema(), value)
