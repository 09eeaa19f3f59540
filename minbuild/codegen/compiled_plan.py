"""The plan as constants of the library: dense tables that a compiler reads in place of a file that a device reads.

It is made of the very bytes that the interpreted library would read, so that both flavours run one plan. Sizes are
`number * symbol` or a number; places in the arena are at most `align16(number * symbol) + more`, where roundings of
temporaries on top of one another are counted up, so that nothing is computed on the device but one product. Where
several dimensions are free, sizes and places are values that the device computes when these change
(compiled_plan_values.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from minbuild.codegen.compiled_plan_amounts import (
    CURE,
    Amount,
    AmountTable,
    amounts_of,
    largest_symbol,
    place_of,
)
from minbuild.codegen.compiled_plan_steps import Step, encode_steps, steps_of
from minbuild.codegen.compiled_plan_values import ValueTable
from minbuild.codegen.straight_steps import StraightStep, StraightSteps, candidates
from minbuild.errors import Unsupported
from minbuild.ir import Kernel
from minbuild.ir.mapped import FileBytes
from minbuild.planning.compact_checkpoint import compact_end
from minbuild.planning.plan_encoding import EXPRESSIONS, decode_plan, is_wide, stable_key

_ARENA, _TRAINED, _PERSISTENT, _NOTHING, _CONSTANTS = range(5)  # regions
_MOST_RANK = 8  # MB_MAX_RANK
_WALKS = (0, 128, 192)  # bits beside a rank: one sample per round, from the first or from the last on


def compile_plan(
    plan: FileBytes, kernels: Sequence[Kernel], *, kernel_names: bool, straight: Collection[str] = ()
) -> dict[str, Any]:
    """The values of `package/compiled_plan.h.j2`. `kernels` are those of the library by row. `plan` is the plan as
    devices read it; with `kernel_names` errors name kernels; steps of kernels whose symbols are `straight` are calls in
    the table of kernels. Raises Unsupported for a plan whose sizes are more than
    products with one free dimension."""
    return _compiler(plan, kernels, kernel_names, straight).values()


def temporaries_of(plan: FileBytes, sizes: Sequence[int]) -> int | None:
    """The bytes of temporaries of a library that has `plan` compiled in, at `sizes` of the free dimensions in order:
    with one of them a bound, as roundings are counted up; None where they are those of the plan. Raises
    Unsupported."""
    if len(sizes) != 1:
        return None
    tables = decode_plan(plan)
    peak = place_of(amounts_of(tables["exprs"].tolist())[int(tables["arena"])])
    return -(-peak.free * sizes[0] // 16) * 16 + peak.fixed


def straight_steps_of(
    plan: FileBytes, kernels: Sequence[Kernel], straight: Collection[str]
) -> list[StraightStep]:
    """The steps of `compile_plan` that are straight calls, in the order of their rows. `plan`, `kernels` and
    `straight` are as there."""
    return list(_compiler(plan, kernels, False, straight).straight.numbers)


def straight_candidates(plan: FileBytes, kernels: Sequence[Kernel], most: int) -> list[str]:
    """Symbols of the kernels with at most `most` different steps; none where steps run in loops. `plan` and `kernels`
    are as for `compile_plan`."""
    compiler = _compiler(plan, kernels, False, ())
    return [] if compiler.loops else candidates(compiler.tables, compiler.steps, kernels, most)


def _compiler(
    plan: FileBytes, kernels: Sequence[Kernel], kernel_names: bool, straight: Collection[str]
) -> _Compiler:
    if is_wide(plan):
        raise Unsupported([f"--flavor compiled: the model needs more than 2 GB of memory. {CURE}"])
    tables = decode_plan(plan)
    return _Compiler(tables, kernels, kernel_names, straight)


class _Compiler:
    def __init__(
        self,
        tables: Mapping[str, Any],
        kernels: Sequence[Kernel],
        kernel_names: bool,
        straight: Collection[str],
    ) -> None:
        self.tables = tables
        self.rows = {stable_key(kernel.symbol): row for row, kernel in enumerate(kernels)}
        self.counts = [*(kernel.params for kernel in kernels), 0]  # the last for a kernel that is left out
        self.kernel_names = kernel_names
        self.names = bytes(tables["names"])
        self.shapes = tables["shapes"].tolist()
        self.tensors = tables["tensors"].tolist()
        self.computed = ValueTable.of(tables) if len(tables["symbols"]) > 1 else None
        self.amounts = self.computed.amounts if self.computed else amounts_of(tables["exprs"].tolist())
        self.steps = steps_of(tables, self.rows, [len(kernel.args) for kernel in kernels])
        self.loops = any(step.loop for step in self.steps)
        self.straight = StraightSteps(
            tables, self.amounts, kernels, () if self.loops or self.computed else straight
        )
        self.steps = self.straight.take(self.steps)
        self.counts += [0] * len(self.straight.numbers)
        self.order = _in_order_of_use(tables, self.steps)

    def _table(self, amounts: Sequence[Amount]) -> AmountTable | ValueTable:
        """The sizes of tensors and graphs by number."""
        if not self.computed:
            return AmountTable([Amount(1, 0)] * len(self.tables["symbols"]) + list(amounts))
        self.computed.hold([*amounts, self.amounts[int(self.tables["arena"])]])
        return self.computed

    def _dims(self, tensor: tuple[int, ...]) -> list[Amount]:
        at = tensor[1]
        found = [self.amounts[e] for e in self.shapes[at + 1 : at + 1 + self.shapes[at]]]
        for amount in found:
            if not amount.exact or (amount.free and amount.fixed):
                raise Unsupported(
                    [f"--flavor compiled: a size is no product with the free dimension. {CURE}"]
                )
        return found

    # ---------------------------------------------------------------------------------------------- the tables

    def values(self) -> dict[str, Any]:
        """The values that the template names."""
        tables = self.tables
        number = {tensor: i for i, tensor in enumerate(self.order)}
        steps = encode_steps(tables, self.steps, self.counts, number)
        dims = self._table(
            [d for i in self.order for d in self._dims(self.tensors[i])]
            + [self.amounts[g[-1]] for g in steps.graphs if self.loops]
        )
        free = range(1, len(tables["symbols"]) + 1) if self.computed else (1,)
        graphs = [(*g[:-1], dims.index[self.amounts[g[-1]]] if self.loops else 0) for g in steps.graphs]
        given = [[self._symbol_at(symbol, g[3], g[4]) for symbol in free] for g in steps.graphs]
        places, records, shapes = self._tensors(dims)
        names, name_at = self._names()
        ports = [
            (name_at[int(p[0])], number[int(p[1])])
            for name in ("ports", "parameters")
            for p in tables[name].tolist()
        ]
        peak = self.amounts[int(tables["arena"])]
        kept = int(tables["persistent_bytes"]) + 0x10000
        shapes_of = {(tuple(self._dims(self.tensors[i])), self.tensors[i][3]) for i in self.order}
        one = len(tables["symbols"]) == 1
        operations = self.computed.operations if self.computed else []
        columns = {
            "dims": [d.free or d.fixed for d in dims.entries],
            "places": [p.free - bool(self.computed) if p.free else p.fixed for p in places],
            "more": [p.fixed // 16 for p in places if p.free and p.fixed],
            "shapes": shapes,
            "code": steps.code,
            "params": steps.params,
            "names": list(names),
        }
        shape_at = sorted({shape for _, shape in records})
        # Numbers of shapes may be shorter than places.
        indexed = len(shapes) > 0xFF and len(shape_at) <= 0xFF
        if indexed:
            records = [(at, shape_at.index(shape)) for at, shape in records]
        orders = [int(p[2]) for p in tables["parameters"].tolist()]
        moments = [name_at[int(m)] for m in tables["moments"].tolist()]
        symbols = tables["defaults"].tolist()
        return {
            "columns": columns,
            "types": {
                **{name: _unsigned(column) for name, column in columns.items()},
                "dims": "int32_t" if min(columns["dims"], default=0) < 0 else _unsigned(columns["dims"]),
                "operands": _unsigned(n for a, b, _ in operations for n in (a, b)),
                "params": "uint8_t" if steps.param_values else "int32_t",
                "names": "char",
                "record_at": _unsigned([r[0] for r in records]),
                "record_shape": _unsigned([r[1] for r in records]),
                "kind_row": _unsigned([k[0] for k in steps.kinds]),  # above 255 beside every kernel
                "kind_params": _unsigned([k[2] for k in steps.kinds]),
                "name_at": _unsigned(name_at.values()),
                "tensor": _unsigned([len(self.order)]),
                "graph": _unsigned(n for g in (*graphs, *given) for n in g),
                "loop": _unsigned(n for loop in steps.loops for n in loop),
            },
            "values": self.computed.values if self.computed else 1,
            "operations": operations,
            "peak": dims.index[peak] if self.computed else 0,
            "expressions": EXPRESSIONS,
            "free_dims": sum(bool(d.free) for d in dims.entries),
            "free_places": sum(bool(p.free) for p in places),
            "arena_places": self.arena_places,
            "memory_places": self.memory_places,
            "accumulates": any(k[3] for k in steps.kinds),
            "loops": steps.loops,
            "per_sample": self.loops,
            "relative": steps.relative,
            "records": records,
            "shape_at": shape_at if indexed else [],
            "param_values": steps.param_values,
            "most_params": max(self.counts),
            "kinds": steps.kinds,
            "straight_row": self.straight.first if self.straight.numbers else 0,
            "graphs": list(zip(graphs, given, strict=True)),
            "ports": ports,
            "orders": orders,
            "moments": moments,
            "kernel_name_at": self._kernel_names(name_at),
            "constants": tables["constants"].tolist(),
            "defaults": symbols,
            "largest_symbol": largest_symbol(kept, peak, shapes_of) if one else 0,
            "compact_end": compact_end(tables),
            "binds": any(self.tensors[int(p[1])][2] > _CONSTANTS for p in tables["parameters"].tolist()),
            "peak_free": peak.free,
            "peak_fixed": -(-peak.fixed // 16) * 16,
            "numbers": {
                key: int(tables[key])
                for key in (
                    "trainable_bytes",
                    "persistent_bytes",
                    "trained",
                    "rollback_bytes",
                    "draw_bytes",
                    "fingerprint",
                )
            },
            "counts": {
                "Names": 0,
                "Symbols": len(symbols),
                "Defaults": len(symbols),
                "Ports": len(tables["ports"]),
                "Parameters": len(tables["parameters"]),
                "Moments": len(moments),
                "Constants": len(tables["constants"]),
            },
        }

    def _symbol_at(self, symbol: int, first: int, count: int) -> int:
        """The last input, counted from 1, and its last dimension that is the free one of the number `symbol`, from 1
        on, as number * 8 + dimension, among `count` ports from `first` on; 0 where there is none."""
        found = 0
        for number, port in enumerate(self.tables["ports"].tolist()[first : first + count], 1):
            for axis, size in enumerate(self._dims(self.tensors[int(port[1])])):
                found = number * _MOST_RANK + axis if (size.free, size.fixed) == (symbol, 0) else found
        return found

    def _tensors(
        self, dims: AmountTable | ValueTable
    ) -> tuple[list[Amount], list[tuple[int, int]], list[int]]:
        """Places in memory, tensors as (place, shape), and shapes as (head, dimensions)."""
        arena: set[Amount] = set()
        kept: set[int] = set()
        constants: set[int] = set()
        for i in self.order:
            at, _, region, _, _ = self.tensors[i]
            if region == _ARENA:
                arena.add(self.amounts[at])
            elif region in (_TRAINED, _PERSISTENT):
                kept.add(self.amounts[at].fixed)
            elif region == _CONSTANTS:
                constants.add(self.amounts[at].fixed)
        entries = [place_of(a) for a in arena]
        first = AmountTable(entries)
        places = [
            *first.entries,
            *(Amount(0, n) for n in sorted(kept)),
            *(Amount(0, n) for n in sorted(constants)),
        ]
        self.arena_places = len(first.entries)
        self.memory_places = self.arena_places + len(kept)
        kept_at = {n: self.arena_places + i for i, n in enumerate(sorted(kept))}
        constant_at = {n: self.memory_places + i for i, n in enumerate(sorted(constants))}
        shapes: list[int] = []
        shape_at: dict[tuple[int, ...], int] = {}
        records = []
        for i in self.order:
            at, _, region, element, per_sample = self.tensors[i]
            own = [dims.index[d] for d in self._dims(self.tensors[i])]
            words = (len(own) | _WALKS[per_sample], element, *own)
            if words not in shape_at:
                shape_at[words] = len(shapes)
                shapes += words
            if region == _ARENA:
                place = first.index[place_of(self.amounts[at])]
            elif region in (_TRAINED, _PERSISTENT):
                place = kept_at[self.amounts[at].fixed]
            elif region == _CONSTANTS:
                place = constant_at[self.amounts[at].fixed]
            else:
                assert self.amounts[at] == Amount(0, 0), "what is bound starts where it is bound"
                place = len(places) + region - _NOTHING
            records.append((place, shape_at[words]))
        return places, records, shapes

    def _names(self) -> tuple[bytes, dict[int, int]]:
        """Names that the device knows, and where each is by its place in the plan."""
        tables = self.tables
        offsets = [int(p[0]) for name in ("ports", "parameters") for p in tables[name].tolist()]
        offsets += tables["moments"].tolist()
        if self.kernel_names:
            offsets += [int(name) for key, name in tables["kernels"].tolist() if int(key) in self.rows]
        pool, where = bytearray(), dict[int, int]()
        for at in offsets:
            if at not in where:
                where[at] = len(pool)
                pool += self.names[at : self.names.index(b"\0", at) + 1]
        return bytes(pool), where

    def _kernel_names(self, name_at: Mapping[int, int]) -> list[int]:
        """Where the name of each row's kernel is; none without names."""
        if not self.kernel_names:
            return []
        found = {
            self.rows[int(key)]: name_at[int(name)]
            for key, name in self.tables["kernels"].tolist()
            if int(key) in self.rows
        }
        rows = [*range(len(self.rows) + 1), *(step.row for step in self.straight.numbers)]
        return [found.get(row, 0) for row in (rows if self.straight.numbers else rows[:-1])]


def _in_order_of_use(tables: Mapping[str, Any], steps: Sequence[Step]) -> list[int]:
    """The tensors that steps, ports and parameters name, those of steps first."""
    order = dict.fromkeys(tensor for step in steps for tensor in step.args)
    order |= dict.fromkeys(int(p[1]) for name in ("ports", "parameters") for p in tables[name].tolist())
    return list(order)


def _unsigned(numbers: Iterable[int]) -> str:
    """The smallest type that has all of them."""
    most = max(numbers, default=0)
    return "uint8_t" if most < 1 << 8 else "uint16_t" if most < 1 << 16 else "uint32_t"
