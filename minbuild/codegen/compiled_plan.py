"""The plan as constants of the library: dense tables that a compiler reads in place of a file that a device reads.

It is made of the very bytes that the interpreted library would read, so that both flavours run one plan. Sizes are
`number * symbol` or a number; places in the arena are at most `align16(number * symbol) + more`, where roundings of
temporaries on top of one another are counted up, so that nothing is computed on the device but one product.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minbuild.errors import Unsupported
from minbuild.ir import ElementType, Kernel
from minbuild.planning.plan_encoding import EXPRESSIONS, decode_plan, is_wide, stable_key

_ARENA, _TRAINED, _PERSISTENT, _NOTHING, _CONSTANTS = range(5)  # regions
_MOST = 0x7FFFFFEF  # of what a size may be
_UNPACKING = 48  # bytes of code that packed parameters take
_ESCAPE = 0xFF  # in code with relative arguments: the next two bytes are the tensor itself
_CURE = "Build it with --flavor interpreted, or fix dimensions with --dim."


@dataclass(frozen=True, slots=True, order=True)
class Amount:
    """`free` times the symbol, and `fixed`. `exact` is False for what is only an upper bound."""

    free: int
    fixed: int
    exact: bool = True

    def at(self, symbol: int) -> int:
        """The value, not rounded."""
        return self.free * symbol + self.fixed


def compile_plan(plan: bytes, kernels: Sequence[Kernel], *, kernel_names: bool) -> dict[str, Any]:
    """The values of `package/compiled_plan.h.j2`. `kernels` are those of the library by row. Raises Unsupported for a
    plan whose sizes are more than products with one free dimension."""
    if is_wide(plan):
        raise Unsupported([f"--flavor compiled: the model needs more than 2 GB of memory. {_CURE}"])
    tables = decode_plan(plan)
    if len(tables["symbols"]) > 1:
        raise Unsupported([f"--flavor compiled: several dimensions are free. {_CURE}"])
    return _Compiler(tables, kernels, kernel_names).values()


class _Numbers:
    """Amounts of a kind by index: products with the symbol stand first."""

    def __init__(self, amounts: Iterable[Amount]) -> None:
        self.entries = sorted(set(amounts), key=lambda a: (a.free == 0, a.fixed == 0, a))
        self.index = {amount: i for i, amount in enumerate(self.entries)}


class _Compiler:
    def __init__(self, tables: Mapping[str, Any], kernels: Sequence[Kernel], kernel_names: bool) -> None:
        self.tables = tables
        self.rows = {stable_key(kernel.symbol): row for row, kernel in enumerate(kernels)}
        self.counts = [*(kernel.params for kernel in kernels), 0]  # the last for a kernel that is left out
        self.kernel_names = kernel_names
        self.names = bytes(tables["names"])
        self.amounts = _amounts(tables["exprs"].tolist())
        self.shapes = tables["shapes"].tolist()
        self.tensors = tables["tensors"].tolist()
        self.loops = any(row[4] for row in tables["steps"].tolist())
        used = {t for row in self._steps() for t in row[2]}
        used |= {int(p[1]) for name in ("ports", "parameters") for p in tables[name].tolist()}
        self.order = self._in_order_of_use()
        assert set(self.order) == used, "every tensor has a place"

    # ------------------------------------------------------------------------------------------ what there is

    def _steps(self) -> list[tuple[int, int, tuple[int, ...], int, int, int]]:
        """(row, params, args, accumulate, loop, number of the kernel) of each step."""
        keys = [int(key) for key, _ in self.tables["kernels"].tolist()]
        args = self.tables["args"].tolist()
        found = []
        steps = self.tables["steps"].tolist()
        for number, (kernel, params, first, accumulate, loop) in enumerate(steps):
            end = steps[number + 1][2] if number + 1 < len(steps) else len(args)
            found.append(
                (
                    self.rows.get(keys[kernel], len(self.rows)),
                    params,
                    tuple(args[first:end]),
                    accumulate,
                    loop,
                    kernel,
                )
            )
        return found

    def _in_order_of_use(self) -> list[int]:
        order = dict.fromkeys(t for step in self._steps() for t in step[2])
        order |= dict.fromkeys(
            int(p[1]) for name in ("ports", "parameters") for p in self.tables[name].tolist()
        )
        return list(order)

    def _dims(self, tensor: tuple[int, ...]) -> list[Amount]:
        at = tensor[1]
        found = [self.amounts[e] for e in self.shapes[at + 1 : at + 1 + self.shapes[at]]]
        for amount in found:
            if not amount.exact or (amount.free and amount.fixed):
                raise Unsupported(
                    [f"--flavor compiled: a size is no product with the free dimension. {_CURE}"]
                )
        return found

    # ---------------------------------------------------------------------------------------------- the tables

    def values(self) -> dict[str, Any]:
        """The values that the template names."""
        tables = self.tables
        graphs, code, kinds, loops, params = self._code()
        params, param_values = self._packed(params or [0], kinds)
        dims = _Numbers(
            [Amount(1, 0)] * len(tables["symbols"])
            + [d for i in self.order for d in self._dims(self.tensors[i])]
            + [self.amounts[g[2]] for g in tables["graphs"].tolist() if self.loops]
        )
        graphs = [(*g[:-1], dims.index[self.amounts[g[-1]]] if self.loops else 0) for g in graphs]
        places, records, shapes = self._tensors(dims)
        names, name_at = self._names()
        number = {tensor: i for i, tensor in enumerate(self.order)}
        ports = [
            (name_at[int(p[0])], number[int(p[1])])
            for name in ("ports", "parameters")
            for p in tables[name].tolist()
        ]
        peak = self.amounts[int(tables["arena"])]
        largest = self._largest_symbol(peak)
        columns = {
            "dims": [d.free or d.fixed for d in dims.entries],
            "places": [p.free or p.fixed for p in places],
            "more": [p.fixed // 16 for p in places if p.free and p.fixed],
            "shapes": shapes,
            "code": code,
            "params": params,
            "names": list(names),
        }
        shape_at = sorted({shape for _, shape in records})
        indexed = (
            len(shapes) > 0xFF and len(shape_at) <= 0xFF
        )  # then numbers of shapes are shorter than places
        if indexed:
            records = [(at, shape_at.index(shape)) for at, shape in records]
        orders = [int(p[2]) for p in tables["parameters"].tolist()]
        moments = [name_at[int(m)] for m in tables["moments"].tolist()]
        symbols = tables["defaults"].tolist()
        return {
            "columns": columns,
            "types": {
                **{name: _unsigned(column) for name, column in columns.items()},
                "params": "uint8_t" if param_values else "int32_t",
                "names": "char",
                "record_at": _unsigned([r[0] for r in records]),
                "record_shape": _unsigned([r[1] for r in records]),
                "kind_params": _unsigned([k[2] for k in kinds]),
                "name_at": _unsigned(name_at.values()),
                "tensor": _unsigned([len(self.order)]),
                "graph": _unsigned(n for g in graphs for n in g),
                "loop": _unsigned(n for loop in loops for n in loop),
            },
            "free_dims": sum(bool(d.free) for d in dims.entries),
            "free_places": sum(bool(p.free) for p in places),
            "arena_places": self.arena_places,
            "memory_places": self.memory_places,
            "accumulates": any(k[3] for k in kinds),
            "loops": loops,
            "walks": self.loops,
            "relative": self.relative,
            "records": records,
            "shape_at": shape_at if indexed else [],
            "param_values": param_values,
            "most_params": max(self.counts),
            "kinds": kinds,
            "graphs": graphs,
            "ports": ports,
            "orders": orders,
            "moments": moments,
            "kernel_name_at": self._kernel_names(name_at),
            "constants": tables["constants"].tolist(),
            "defaults": symbols,
            "largest_symbol": largest,
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

    def _code(self) -> tuple[list[Any], list[int], list[Any], list[Any], list[int]]:
        """The steps as bytes, graph by graph: a kind (kernel, parameters, what it adds to), then the arguments."""
        number = {tensor: i for i, tensor in enumerate(self.order)}
        self.relative = len(self.order) > 0xFF
        steps = self._steps()
        words = self.tables["params"].tolist()
        pool, where = self._params(steps)
        kinds: dict[tuple[int, ...], int] = {}
        code: list[int] = []
        loops: list[tuple[int, ...]] = []
        graphs = []
        newest = 0
        for first, count, samples, port, inputs, outputs, _ in self.tables["graphs"].tolist():
            graphs.append((len(code), newest, count, port, inputs, outputs, samples))
            starts = []
            for row, at, args, accumulate, loop, _ in steps[first : first + count]:
                starts.append((len(code), newest))
                if loop:
                    loops.append((*starts[len(starts) - loop], loop))
                kind = (
                    row,
                    len(args),
                    where[tuple(words[at : at + self.counts[row]])],
                    accumulate,
                    len(loops) if loop else 0,
                )
                code.append(kinds.setdefault(kind, len(kinds)))
                for tensor in args:
                    newest, piece = self._argument(number[tensor], newest)
                    code += piece
        if len(kinds) > 0xFF:
            raise Unsupported([f"--flavor compiled: the plan has more than 255 kinds of steps. {_CURE}"])
        return graphs, code or [0], list(kinds) or [(0,) * 5], loops, pool

    def _argument(self, tensor: int, newest: int) -> tuple[int, list[int]]:
        """An argument in code, and the number of tensors that were used so far."""
        if not self.relative:
            return newest, [tensor]
        if tensor == newest:
            return newest + 1, [0]
        back = newest - tensor
        assert back > 0, "tensors are in the order of their first use"
        return newest, [back] if back < _ESCAPE else [_ESCAPE, tensor & 0xFF, tensor >> 8]

    def _params(self, steps: Sequence[Any]) -> tuple[list[int], dict[tuple[int, ...], int]]:
        """A pool of the parameters of all steps, and where each list of them is in it."""
        words = self.tables["params"].tolist()
        lists = {tuple(words[at : at + self.counts[row]]) for row, at, *_ in steps}
        pool = _superstring(lists)
        where = {wanted: _find(pool, wanted) for wanted in lists}
        return pool, where

    def _packed(self, params: list[int], kinds: Sequence[tuple[int, ...]]) -> tuple[list[int], list[int]]:
        """Parameters as numbers of their values, which are few, with those values; or as they are, and none."""
        values, most = sorted(set(params) | {0}), max(self.counts)
        end = max(kind[2] for kind in kinds) + most  # the device copies the most that any kernel reads
        packed = [values.index(word) for word in params] + [0] * max(0, end - len(params))
        if len(values) > 0xFF or len(packed) + 4 * len(values) + _UNPACKING >= 4 * len(params):
            return params, []
        return packed, values

    def _tensors(self, dims: _Numbers) -> tuple[list[Amount], list[tuple[int, int]], list[int]]:
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
        entries = [_place_of(a) for a in arena]
        first = _Numbers(entries)
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
            at, _, region, element, walks = self.tensors[i]
            own = [dims.index[d] for d in self._dims(self.tensors[i])]
            words = (len(own) | (walks << 7), element, *own)
            if words not in shape_at:
                shape_at[words] = len(shapes)
                shapes += words
            if region == _ARENA:
                place = first.index[_place_of(self.amounts[at])]
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
        wanted = [int(p[0]) for name in ("ports", "parameters") for p in tables[name].tolist()]
        wanted += tables["moments"].tolist()
        if self.kernel_names:
            wanted += [int(name) for key, name in tables["kernels"].tolist() if int(key) in self.rows]
        pool, where = bytearray(), dict[int, int]()
        for at in wanted:
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
        return [found.get(row, 0) for row in range(len(self.rows))]

    def _largest_symbol(self, peak: Amount) -> int:
        """The largest size of the free dimension for which everything can be counted in 31 bits."""
        if not self.tables["defaults"].tolist():
            return 0
        kept = int(self.tables["persistent_bytes"]) + 0x10000
        shapes = {(tuple(self._dims(self.tensors[i])), self.tensors[i][3]) for i in self.order}
        low, high = 0, 0x7FFFFFFF
        while low < high:
            size = (low + high + 1) // 2
            fits = kept + peak.at(size) + 16 <= _MOST and all(
                _count(shape, size) * (ElementType(element).size if element else 1) <= _MOST
                for shape, element in shapes
            )
            low, high = (size, high) if fits else (low, size - 1)
        return low


def _place_of(amount: Amount) -> Amount:
    """A place, which is rounded up to 16 anyway."""
    return Amount(amount.free, -(-amount.fixed // 16) * 16)


def _count(shape: Sequence[Amount], size: int) -> int:
    count = 1
    for amount in shape:
        count *= amount.at(size)
    return count


def _superstring(lists: Iterable[tuple[int, ...]]) -> list[int]:
    """Words among which every list is somewhere: again and again, the two that overlap most become one."""
    pieces = sorted(set(lists), key=lambda piece: (-len(piece), piece))
    pieces = [p for i, p in enumerate(pieces) if not any(_has(other, p) for other in pieces[:i])]
    while len(pieces) > 1:
        overlap, left, right = max(
            (_overlap(a, b), -i, -k) for i, a in enumerate(pieces) for k, b in enumerate(pieces) if i != k
        )
        a, b = pieces[-left], pieces[-right]
        pieces = [p for i, p in enumerate(pieces) if i not in (-left, -right)] + [(*a, *b[overlap:])]
    return list(pieces[0]) if pieces else []


def _overlap(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the longest end of `a` that `b` begins with."""
    return next(n for n in range(min(len(a), len(b)), -1, -1) if a[len(a) - n :] == b[:n])


def _has(whole: Sequence[int], part: Sequence[int]) -> bool:
    return any(whole[at : at + len(part)] == part for at in range(len(whole) - len(part) + 1))


def _find(pool: Sequence[int], wanted: Sequence[int]) -> int:
    """Where `wanted` is in the pool."""
    return next(at for at in range(len(pool) + 1) if tuple(pool[at : at + len(wanted)]) == tuple(wanted))


def _amounts(expressions: Sequence[tuple[int, int, int]]) -> list[Amount]:
    """Every expression as an amount. Raises Unsupported for what has no such form."""
    found: list[Amount] = []
    for a, b, op in expressions:
        name = EXPRESSIONS[op]
        if name in ("Constant", "Symbol"):
            found.append(Amount(0, a) if name == "Constant" else Amount(1, 0))
            continue
        found.append(operation(name, found[a], found[b]))
    return found


def operation(name: str, a: Amount, b: Amount) -> Amount:
    """The least that a plan's operator makes of two amounts. Raises Unsupported where that is no amount."""
    exact = a.exact and b.exact
    if (
        name == "Stack"
    ):  # a place on top of b bytes at the place a, of which each product is rounded by itself
        rounded = -(-b.fixed // 16) * 16
        both = a.free % 16 != 0 and b.free % 16 != 0
        return Amount(a.free + b.free, a.fixed + rounded + 16 * both, False)
    if name == "Add":
        return Amount(a.free + b.free, a.fixed + b.fixed, exact)
    if name == "Multiply" and not (a.free and b.free):
        factor, other = (a, b) if not a.free else (b, a)
        return Amount(factor.fixed * other.free, factor.fixed * other.fixed, exact)
    if name == "Max":
        same = exact and (a.free == b.free or a.fixed == b.fixed)
        return Amount(max(a.free, b.free), max(a.fixed, b.fixed), same)
    if name == "Min":
        return Amount(*min((a.free, a.fixed), (b.free, b.fixed)), exact and a == b)
    if name == "Divide" and b.fixed > 0 and not b.free:
        whole = a.free % b.fixed == 0 and a.fixed % b.fixed == 0
        return Amount(-(-a.free // b.fixed), -(-a.fixed // b.fixed), exact and whole)
    raise Unsupported([f"--flavor compiled: a size is no product with the free dimension. {_CURE}"])


def _unsigned(numbers: Iterable[int]) -> str:
    """The smallest type that has all of them."""
    most = max(numbers, default=0)
    return "uint8_t" if most < 1 << 8 else "uint16_t" if most < 1 << 16 else "uint32_t"
