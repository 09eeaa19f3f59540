"""Plan -> bytes, in the layout of `schemas/trainer.fbs`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from minbuild import assets
from minbuild.ir import Plan, PlanTensor, Role, Routine, Shape, Step
from minbuild.ir.dims import Atom, Dim, Extremum, Poly, Symbol
from minbuild.ir.flatbuffers.codec import Schema, decode, encode, encode_pieces, parse_schema
from minbuild.ir.mapped import FileBytes, file_bytes
from minbuild.ir.pieces import Pieces
from minbuild.planning.arena.supports import supports_of
from minbuild.planning.dense_file import IDENTIFIERS as _DENSE_IDENTIFIERS
from minbuild.planning.dense_plan import dense_plan, plain_tables
from minbuild.planning.overlapping import overlapping
from minbuild.planning.plan import ARENA, CONSTANTS, FROZEN, INPUTS, PERSISTENT

VERSION = 7
EXPRESSIONS = ("Constant", "Symbol", "Add", "Multiply", "Divide", "Max", "Min", "Stack")
_CONSTANT, _SYMBOL, _, _MULTIPLY, _, _MAX, _, _STACK = range(len(EXPRESSIONS))
_NO_SYMBOL = -1
ROUTINES = ("train", "eval", "optimize", "initialize")
_ARENA, _TRAINED, _PERSISTENT, _NOTHING, _CONSTANTS, _BOUND = range(6)  # the device's regions
_COUNTERS = 16  # bytes behind the draws, at the end of what persists: int64 steps, float32 learning rate
_LARGEST = {
    False: 0x7FFFFFEF,
    True: 2**46 - 1,
}  # of what an expression may be, in a narrow and in a wide plan
_MOST_ENTRIES = 0xFFFF  # of a table of a narrow plan, which has 16-bit indices
MOST_PERSISTENT = 0x70000000 - 1  # bytes that a narrow plan counts
_IDENTIFIERS = {False: "MBTR", True: "MBTW"}
_MOST_BELOW = 64  # places below others that are looked at
FROM_START = 255  # as the number of steps of a loop: all from the first one of the graph on
# As below, by `dense_form`.
DENSE_VERSIONS = (0, 1 << 18, 1 << 23, 1 << 24 | 1 << 18, 1 << 24 | 1 << 23)
WIDE_VERSION = 1 << 16  # added to the version of wide plans where one number stands for both
FUSED_VERSION = 1 << 17  # added to the version of plans whose training steps update parameters
# Added to the version of plans with loops, with loops that begin with the last sample, with loops whose rounds kernels
# control, and with loops of any length: a library without them would run the wrong steps.
LOOP_VERSIONS = (1 << 19, 1 << 20, 1 << 21, 1 << 22)
# Added to the version of plans whose moments have names and no memory: a library without would look for them there.
IDLE_VERSION = 1 << 25


@cache
def plan_schema(wide: bool = False) -> Schema:
    """The parsed `schemas/trainer.fbs`. A wide plan is for models that need more than 2 GB of memory, or more than
    65,535 entries in a table: its indices have 32 bits, its numbers of bytes and constants 64."""
    text = (assets.root("schemas") / "trainer.fbs").read_text("utf-8")
    if wide:
        structs, table = text.split("table Trainer")
        structs = structs.replace("ushort", "uint").replace("a:int;", "a:long;")
        table = re.sub(r"^(  (?!version)\w+:)uint;", r"\1ulong;", table, flags=re.MULTILINE)
        table = table.replace("ushort", "uint").replace(_IDENTIFIERS[False], _IDENTIFIERS[True])
        text = f"{structs}table Trainer{table}"
    return parse_schema(text)


def is_dense(plan: FileBytes) -> bool:
    """True if the bytes are those of a plan in the dense encoding."""
    return dense_form(plan) > 0


def dense_form(plan: FileBytes) -> int:
    """2 if the bytes are those of a dense plan with 8-bit indices, 1 with 16-bit ones, 0 for others; 2 more where it
    shares names."""
    return _DENSE_IDENTIFIERS.index(plan[4:8]) + 1 if plan[4:8] in _DENSE_IDENTIFIERS else 0


def is_wide(plan: FileBytes) -> bool:
    """True if the bytes are those of a wide plan."""
    return plan[4:8] == _IDENTIFIERS[True].encode()


def plan_version(fused_updates: bool, loops: int = 0, idle_moments: bool = False) -> int:
    """The version that a plan has, and a library that reads it, whatever loops it can: `fused_updates`, `loops`
    and `idle_moments` as of the plan."""
    return VERSION + FUSED_VERSION * fused_updates + IDLE_VERSION * idle_moments + (0, *LOOP_VERSIONS)[loops]


def decode_plan(plan: FileBytes) -> dict[str, Any]:
    """The tables of a plan, those of an equal plain one for a dense one. Raises ValueError for bytes that are no
    plan."""
    if is_dense(plan):
        return decode(plan_schema(), encode(plan_schema(), plain_tables(bytes(plan))))
    return decode(plan_schema(is_wide(plan)), plan)


def stable_key(text: str | bytes) -> int:
    """32-bit FNV-1a of a kernel or feature name: the same in every build on every machine."""
    key = 0x811C9DC5
    for byte in text.encode() if isinstance(text, str) else text:
        key = (key ^ byte) * 0x01000193 & 0xFFFFFFFF
    return key


@dataclass(frozen=True, slots=True)
class _Number:
    """A constant that no expression is needed for yet."""

    value: int


_Part = _Number | int  # a constant, or the index of an expression


@dataclass
class _Tables:
    """The plan's pools; equal strings, expressions and shapes are stored once."""

    symbols: tuple[str, ...]
    wide: bool = False
    too_large: bool = False  # a number that only a wide plan can have was met
    names: bytearray = field(default_factory=bytearray)
    name_at: dict[str, int] = field(default_factory=dict)
    exprs: dict[tuple[int, int, int], int] = field(default_factory=dict)
    rows: list[tuple[int, int, int]] = field(default_factory=list)  # the keys of `exprs`
    shapes: list[int] = field(default_factory=list)
    shape_at: dict[tuple[int, ...], int] = field(default_factory=dict)

    def name(self, text: str) -> int:
        if text not in self.name_at:
            self.name_at[text] = len(self.names)
            self.names += text.encode() + b"\0"
        return self.name_at[text]

    def expr(self, op: str, a: _Part, b: _Part) -> _Part:
        """An operation; done here when both operands are known."""
        if isinstance(a, _Number) and isinstance(b, _Number):
            value = _FOLD[op](a.value, b.value)
            if 0 <= value <= _LARGEST[self.wide]:
                return _Number(value)
            self.too_large = True
        return self.entry(op, self.index(a), self.index(b))

    def entry(self, op: str, a: int, b: int = 0) -> int:
        row = a, b, EXPRESSIONS.index(op)
        if row not in self.exprs:
            self.exprs[row] = len(self.rows)
            self.rows.append(row)
        return self.exprs[row]

    def index(self, part: _Part) -> int:
        return self.entry("Constant", part.value) if isinstance(part, _Number) else part

    def dim(self, dim: Dim) -> _Part:
        if not isinstance(dim, Poly):
            return _Number(dim)
        terms = []
        for monomial, coefficient in dim.terms:
            factors = [self.atom(a) for a in monomial]
            if coefficient != 1 or not factors:
                factors.append(_Number(coefficient))
            terms.append(self.fold("Multiply", factors))
        return self.fold("Add", terms)

    def fold(self, op: str, parts: list[_Part]) -> _Part:
        result = parts[0]
        for part in parts[1:]:
            result = self.expr(op, result, part)
        return result

    def atom(self, atom: Atom) -> _Part:
        if isinstance(atom, Symbol):
            return self.entry("Symbol", self.symbols.index(atom.name))
        if isinstance(atom, Extremum):
            return self.expr(atom.kind.capitalize(), self.dim(atom.left), self.dim(atom.right))
        return self.expr("Divide", self.dim(atom.numerator), self.dim(atom.denominator))

    def shape(self, shape: Shape) -> int:
        words = (len(shape), *(self.index(self.dim(d)) for d in shape))
        if words not in self.shape_at:
            self.shape_at[words] = len(self.shapes)
            self.shapes += words
        return self.shape_at[words]

    def highest(self, parts: Iterable[_Part]) -> _Part:
        """The largest of some places; 0 of none."""
        chosen = set(parts)
        known = [p.value for p in chosen if isinstance(p, _Number)]
        free = self.not_below({p for p in chosen if not isinstance(p, _Number)})
        # No place is below 0, so that 0 need not be compared with.
        number: list[_Part] = [_Number(max(known, default=0))] if any(known) or not free else []
        return self.fold("Max", [*free, *number])

    def not_below(self, places: set[int]) -> list[int]:
        """Some free places in order, without those that are never higher than another one of them."""
        if len(places) < 2:
            return sorted(places)
        least, below = min(places), set[int]()
        left = sorted(places)
        while left and len(below) < _MOST_BELOW:
            a, b, op = self.rows[left.pop()]
            under = (a,) if op == _STACK else (a, b) if op == _MAX else ()
            fresh = {i for i in under if i >= least} - below
            below |= fresh
            left += sorted(fresh)
        return self.not_lower(sorted(places - below))

    def not_lower(self, places: Sequence[int]) -> list[int]:
        """Free `places`, without sizes above the same place as another one that is at least as large, whatever the free
        dimensions are."""
        sizes = {
            i: (self.rows[i][0], *self.linear(self.rows[i][1])) for i in places if self.rows[i][2] == _STACK
        }
        most: dict[tuple[int, int], tuple[int, int]] = {}
        for i, (a, symbol, factor) in sizes.items():
            for key in {(a, symbol), (a, _NO_SYMBOL)}:
                most[key] = max(most.get(key, (0, i)), (factor, i))

        def is_lower(one: int) -> bool:
            a, symbol, factor = sizes[one]
            larger, other = most[a, symbol]
            return one != other and 0 < factor <= larger

        return [i for i in places if i not in sizes or not is_lower(i)]

    def linear(self, size: int) -> tuple[int, int]:
        """A size as a multiple of a free dimension, or as a number; a factor of 0 for all others."""
        a, b, op = self.rows[size]
        if op == _CONSTANT:
            return _NO_SYMBOL, a
        of, (factor, _, constant) = self.rows[a], self.rows[b]
        product = op == _MULTIPLY and of[2] == _SYMBOL and constant == _CONSTANT
        return (a, factor) if product else (_NO_SYMBOL, 0)

    def tensor(self, tensor: PlanTensor, places: list[_Part], plan: Plan) -> tuple[int, int, int, int, int]:
        """A tensor as the device sees it."""
        at: _Part = _Number(0)
        element = int(tensor.element)
        if tensor.region == ARENA:
            region, at = _ARENA, places[tensor.at]
        elif tensor.region == PERSISTENT:
            region, at = _TRAINED if tensor.at < plan.trainable_bytes else _PERSISTENT, _Number(tensor.at)
        elif tensor.region == CONSTANTS:
            region, at = _CONSTANTS, _Number(tensor.at)
        elif tensor.region == INPUTS:
            region = _BOUND + tensor.at
        elif tensor.region == FROZEN:
            region = _BOUND + sum(len(r.inputs) + len(r.outputs) for r in plan.routines) + tensor.at
        else:
            region, element = _NOTHING, 0
        return self.index(at), self.shape(tensor.shape), region, element, tensor.per_sample


_FOLD: Mapping[str, Callable[[int, int], int]] = {
    "Add": operator.add,
    "Multiply": operator.mul,
    "Divide": operator.floordiv,
    "Max": max,
    "Min": min,
    "Stack": lambda a, b: a + -(-b // 16) * 16,
}


def _places(routine: Routine, tables: _Tables) -> tuple[list[_Part], _Part]:
    """Expressions of every buffer's offset and of the peak: each stands on the highest of those it may rest on."""
    supports, highest = supports_of(routine.buffers)
    offsets: list[_Part] = []
    tops: list[_Part] = []
    for buffer, below in zip(routine.buffers, supports, strict=True):
        offsets.append(tables.highest(tops[j] for j in below))
        tops.append(tables.expr("Stack", offsets[-1], tables.dim(buffer.bytes)))
    return offsets, tables.highest(tops[i] for i in highest)


def encode_plan(
    plan: Plan,
    largest: Mapping[str, int],
    wide: bool = False,
    kernel_names: bool = True,
    dense: int = 0,
) -> FileBytes:
    """The bytes a device reads. `largest` gives each free dimension the size its arena is made for by default. The
    plan is wide where it must be or where `wide` asks for it. `plan` is what `build_plan` made; only errors in words
    need `kernel_names`. It is dense if `dense`, a form as of `dense_form`, is not 0 and nothing is too much for that
    encoding: with indices of 8 bits where these are asked for and have enough, otherwise of 16."""
    if not wide and plan.counted_bytes <= MOST_PERSISTENT:
        value, too_large = _tables_of(plan, largest, False, kernel_names)
        counts = [(len(k.args), k.params) for k in plan.kernels]
        for small in (True, False)[dense % 2 :] if dense else ():
            found = dense_plan(value, counts, small, shared=dense > 2)
            if found is not None:
                return found
        if all(len(value[name]) <= _MOST_ENTRIES for name in _INDEXED):
            return file_bytes(encode_pieces(plan_schema(), value))
        if not too_large:  # a wide plan has the same tables
            return file_bytes(encode_pieces(plan_schema(True), value))
    return file_bytes(encode_pieces(plan_schema(True), _tables_of(plan, largest, True, kernel_names)[0]))


_INDEXED = (
    "exprs",
    "shapes",
    "tensors",
    "steps",
    "args",
    "params",
    "ports",
    "parameters",
)  # with 16 bits if narrow


def _tables_of(
    plan: Plan, largest: Mapping[str, int], wide: bool, kernel_names: bool
) -> tuple[dict[str, Any], bool]:
    """The plan as its schema has it, and True if a wide one has other tables."""
    assert (plan.step_at, plan.learning_rate_at) == (
        plan.persistent_bytes - _COUNTERS,
        plan.persistent_bytes - 8,
    )
    tables = _Tables(plan.symbols, wide)
    routines = {r.name: r for r in plan.routines}
    graphs: list[tuple[int, ...]] = []
    steps: list[Step] = []
    ports: list[tuple[int, int, int]] = []
    places: list[_Part] = []
    peaks: list[_Part] = []
    for routine in plan.routines:  # buffers are numbered through all routines in this order
        offsets, peak = _places(routine, tables)
        places += offsets
        peaks.append(peak)
    tensors = [tables.tensor(t, places, plan) for t in plan.tensors]
    tensors.append((tables.index(_Number(0)), tables.shape((0,)), _NOTHING, 0, 0))  # what is absent
    # Equal ones, such as scratch memory of many calls, stand there once.
    entry_at: dict[tuple[int, int, int, int, int], int] = {}
    number = [entry_at.setdefault(tensor, len(entry_at)) for tensor in tensors]
    for name in ROUTINES if "initialize" in routines else ROUTINES[:3]:
        routine = routines.get(name, Routine(name, (), (), (), ()))
        first_step, first_port = len(steps), len(ports)
        steps += routine.steps
        ports += [(tables.name(n), number[tensor], 0) for n, tensor in routine.inputs + routine.outputs]
        samples = tables.index(tables.dim(routine.samples))
        counts = len(routine.inputs), len(routine.outputs)
        graphs.append((first_step, len(routine.steps), samples, first_port, *counts, 0))
    params, param_at = overlapping(s.params for s in steps)
    step_args = [tuple([number[a] for a in s.args]) for s in steps]
    args, arg_at = overlapping(step_args)
    value: dict[str, Any] = {
        "version": plan_version(plan.fused_updates, plan.loops, plan.idle_moments),
        "trainable_bytes": plan.trainable_bytes,
        "persistent_bytes": plan.persistent_bytes,
        "trained": sum(p.role is Role.PARAMETER for p in plan.parameters),
        "arena": tables.index(tables.highest(peaks)),
        "rollback_bytes": plan.rollback_bytes,
        "draw_bytes": plan.draw_bytes,
        "fingerprint": plan.fingerprint,
        "symbols": [tables.name(s) for s in plan.symbols],
        "defaults": [largest[s] for s in plan.symbols],
        "tensors": list(entry_at),
        "kernels": [
            (stable_key(n), tables.name(n if kernel_names else ""))
            for n in (*(k.symbol for k in plan.kernels), *plan.features)
        ],
        "steps": [
            (s.kernel, param_at[s.params], arg_at[args_of], s.accumulate, min(s.loop, FROM_START))
            for s, args_of in zip(steps, step_args, strict=True)
        ],
        "args": args,
        "graphs": graphs,
        "ports": ports,
        "parameters": [(tables.name(p.name), number[p.tensor], p.order) for p in plan.parameters],
        "moments": [tables.name(f"momentum{i}") for i in range(plan.moments)],
        "constants": np.frombuffer(_whole_words(plan.constants), "<u8"),
    }
    value |= {
        "names": bytes(tables.names),
        "exprs": tables.rows,
        "shapes": tables.shapes,
        "params": [*params, 0],
    }
    return value, tables.too_large


def _whole_words(data: FileBytes) -> FileBytes:
    """`data` with zeros up to a multiple of 8 bytes."""
    if len(data) % 8 == 0:
        return data
    pieces = Pieces()
    pieces.append(data)
    pieces.align(8)
    return file_bytes(pieces)


def expressions_of(plan: FileBytes) -> tuple[str, ...]:
    """Names of the operators that a plan's expressions use."""
    used = set(decode_plan(plan)["exprs"]["op"].tolist())
    return tuple(name for number, name in enumerate(EXPRESSIONS) if number in used)
