"""The tables of a plan in the dense encoding, whose file `dense_file` describes, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minbuild.ir.plan import LONGEST_COUNTED
from minbuild.planning.dense_file import (
    COUNTED,
    SCALARS,
    DensePlan,
    NumberReader,
    dtype_of,
    share_names,
    stride,
    varint,
    whole_names,
)
from minbuild.planning.overlapping import overlapping

_CONSTANT, _SYMBOL, _FIRST_OPERATION = 0, 1, 2  # operators of expressions
_BITS = 0xFFFFFFFF  # of a constant
_NEAR = 127  # the furthest tensor that one byte names
_BOUND = 5  # the first region of what is bound; the places of its tensors count from here

Tables = Mapping[str, Any]


def _zigzag(number: int) -> int:
    return (number << 1 ^ number >> 31) & 0xFFFFFFFF


# ----------------------------------------------------------------------------------------------------- encode


def dense_plan(
    tables: Tables, counts: Sequence[tuple[int, int]], small: bool, shared: bool = False
) -> bytes | None:
    """A plan, its `tables` as lists of tuples, in the dense encoding, with indices of 8 bits if `small`, and with
    `shared` names; None for one that has too much of something for it. `counts` are the numbers of arguments and
    parameters of its kernels."""
    exprs = _encode_exprs(tables["exprs"], len(tables["symbols"]))
    code = bytearray(exprs.stream)
    for pair in counts:
        code += b"".join(map(varint, pair))
    params = _encode_params(tables, counts, code)
    streams = _encode_steps(tables, counts, params, code, record=stride("tensors", small))
    placed = _Tensors(tables, exprs, small)
    records = [r for tensor in streams.order if (r := placed.record(tensor)) is not None]
    if len(records) < len(streams.order):
        return None
    orders = [order for *_, order in tables["parameters"]]
    vectors = {
        "constants": np.asarray(tables["constants"], "<u8"),
        "kernels": [key for key, _ in tables["kernels"]],
        "defaults": tables["defaults"],
        "graphs": [
            (first, g[1], exprs.renamed[g[2]], *g[3:6], newest)
            for g, (first, newest) in zip(tables["graphs"], streams.starts, strict=True)
        ],
        "steps": streams.kinds,
        "tensors": records,
        "shapes": placed.words,
        "heads": list(placed.heads),
        "orders": [] if orders == list(range(len(orders))) else orders,
        "names": np.frombuffer(_names(tables, shared), np.uint8),
    }
    most = 0xFF if small else 0xFFFF
    numbers = [exprs.count - 1, *placed.words, *vectors["orders"], *(n for r in records for n in r)]
    kinds = [n for *four, _ in streams.kinds for n in four]
    if max(numbers) > most or max(kinds, default=0) > 0xFF or max(len(code), len(records)) > 0xFFFF:
        return None
    return DensePlan(
        tables["version"],
        small,
        shared,
        {name: _array(value, dtype_of(name, small)) for name, value in vectors.items()},
        counts={name: len(tables[name]) for name in COUNTED},
        scalars={name: tables[name] for name in SCALARS if name in tables}
        | {"arena": exprs.renamed[tables["arena"]], "expr_count": exprs.count}
        | {"constant_count": exprs.constants},
        stream=bytes(code),
    ).encode()


def _array(values: Any, dtype: Any) -> np.ndarray:
    return values if isinstance(values, np.ndarray) else np.array(values, dtype)


def _names(tables: Tables, shared: bool) -> bytes:
    pool = tables["names"]
    ats = [row[0] for name in ("parameters", "ports") for row in tables[name]]
    ats += [*tables["moments"], *tables["symbols"], *(at for _, at in tables["kernels"])]
    texts = [pool[at : pool.index(0, at)] for at in ats]
    while texts and not texts[-1]:
        texts.pop()  # without names of kernels
    if shared:
        return share_names(texts, len(tables["parameters"])) or b"\0"
    return b"".join(text + b"\0" for text in texts) or b"\0"


@dataclass
class _Exprs:
    stream: bytes
    count: int
    constants: int
    renamed: list[int]  # the new number of each


def _encode_exprs(exprs: Sequence[tuple[int, int, int]], symbols: int) -> _Exprs:
    """The stream of expressions, the first `symbols` the free dimensions and the next 0; negative constants stand last,
    as what 32 bits make of them."""
    constants = sorted({0, *(a & _BITS for a, _, op in exprs if op == _CONSTANT)})
    constant_at = {value: symbols + i for i, value in enumerate(constants)}
    stream, last = bytearray(), 0
    for value in constants:
        stream += varint(value - last)
        last = value
    renamed: list[int] = []
    count = symbols + len(constants)
    for a, b, op in exprs:
        if op == _CONSTANT:
            renamed.append(constant_at[a & _BITS])
        elif op == _SYMBOL:
            renamed.append(a)
        else:
            stream += varint(count - 1 - renamed[a] << 3 | op - _FIRST_OPERATION) + varint(renamed[b])
            renamed.append(count)
            count += 1
    return _Exprs(bytes(stream), count, len(constants), renamed)


@dataclass
class _Tensors:
    tables: Tables
    exprs: _Exprs
    small: bool
    words: list[int] = field(default_factory=list)
    heads: dict[int, int] = field(default_factory=dict)  # numbers of heads
    shape_at: dict[tuple[int, ...], int] = field(default_factory=dict)

    def record(self, tensor: int) -> tuple[int, int] | None:
        """The place of a tensor and its shape; None for one that no record has."""
        at, shape, region, element, walks = self.tables["tensors"][tensor]
        shapes, renamed = self.tables["shapes"], self.exprs.renamed
        dims = [renamed[d] for d in shapes[shape + 1 : shape + 1 + shapes[shape]]]
        head = element | walks // 2 << 6 | walks % 2 << 7 | min(region, _BOUND) << 8 | len(dims) << 11
        if self.small:
            head = self.heads.setdefault(head, len(self.heads))
        words = (head, *dims)
        if region >= _BOUND and self.tables["exprs"][at] != (0, 0, _CONSTANT):
            return None
        if words not in self.shape_at:
            self.shape_at[words] = len(self.words)
            self.words += words
        return (region - _BOUND if region >= _BOUND else renamed[at]), self.shape_at[words]


def _encode_params(
    tables: Tables, counts: Sequence[tuple[int, int]], code: bytearray
) -> dict[tuple[int, int], int]:
    """Adds the parameters of all steps to `code`: where those of each (first word, words) stand."""
    lists = {}
    for kernel, at, *_ in tables["steps"]:
        words = counts[kernel][1]
        stream = b"".join(varint(_zigzag(n)) for n in tables["params"][at : at + words])
        lists[at, words] = tuple(stream)
    pool, places = overlapping(lists.values())
    start = len(code)
    code += bytes(pool)
    return {key: start + places[stream] if stream else 0 for key, stream in lists.items()}


@dataclass
class _Streams:
    kinds: list[tuple[int, int, int, int, int]]  # as the elements of `steps`
    starts: list[tuple[int, int]]  # per graph: first byte, first new tensor
    order: list[int]  # of tensors; those of parameters and ports may be there again


class _Order:
    """Tensors in the order in which steps name them. One that was named long ago is there again where that takes fewer
    bytes: another record of `record` bytes, for names of one byte each."""

    def __init__(self, first: Sequence[int], named: Sequence[int], record: int) -> None:
        """`first` are there before any step, which name those in `named` one after the other."""
        self.record = record
        self.order = [*first]
        self.number: dict[int, int] = {}
        for i, tensor in enumerate(first):
            self.number.setdefault(tensor, i)
        known, newest = set(first), len(first)
        self.uses: dict[
            int, list[int]
        ] = {}  # of each tensor: what was newest when it is named, the last use first
        for tensor in named:
            newest += tensor not in known
            known.add(tensor)
            self.uses.setdefault(tensor, []).append(newest)
        for uses in self.uses.values():
            uses.reverse()

    def name(self, tensor: int) -> bytes:
        """The bytes that stand for a tensor in the next step that names it."""
        newest, uses = len(self.order), self.uses[tensor]
        at = uses.pop()
        distance = newest - self.number[tensor] if tensor in self.number else 0
        if distance > _NEAR and sum(use - at <= _NEAR for use in uses) + 1 > self.record:
            distance = 0
        if distance == 0:
            self.number[tensor] = newest
            self.order.append(tensor)
        return varint(distance)


def _encode_steps(
    tables: Tables,
    counts: Sequence[tuple[int, int]],
    params: Mapping[tuple[int, int], int],
    code: bytearray,
    record: int,
) -> _Streams:
    """Tensors in order of use, each of `record` bytes, and the steps of all graphs behind `code`."""
    first_ones = [row[1] for name in ("parameters", "ports") for row in tables[name]]
    steps, args = tables["steps"], tables["args"]
    all_steps = [step for g in tables["graphs"] for step in steps[g[0] : g[0] + g[1]]]
    named = [tensor for step in all_steps for tensor in args[step[2] : step[2] + counts[step[0]][0]]]
    tensors = _Order(first_ones, named, record)
    kind_at: dict[tuple[int, int, int, int, int], int] = {}
    starts: list[tuple[int, int]] = []
    for graph in tables["graphs"]:
        first, count = graph[:2]
        starts.append((len(code), len(tensors.order)) if count else (0, 0))
        before: list[tuple[int, int]] = []  # of each step: first byte, first new tensor
        for kernel, at, place, accumulate, loop in steps[first : first + count]:
            before.append((len(code), len(tensors.order)))
            arguments, words = counts[kernel]
            kind = (kernel, arguments, accumulate, loop, params[at, words])
            code += varint(kind_at.setdefault(kind, len(kind_at)))
            for tensor in args[place : place + arguments]:
                code += tensors.name(tensor)
            if loop:
                start, new = before[-loop if loop <= LONGEST_COUNTED else 0]
                rest = varint(len(tensors.order) - new)
                # The way back counts the bytes that tell it.
                length = next(n for n in range(1, 6) if len(varint(len(code) + n - start + len(rest))) == n)
                code += varint(len(code) + length - start + len(rest)) + rest
    return _Streams(list(kind_at), starts, tensors.order)


# ----------------------------------------------------------------------------------------------------- decode


def plain_tables(data: bytes) -> dict[str, Any]:
    """The tables of a plain plan that says the same as a dense one, with the same numbers of tensors and expressions.
    Raises ValueError for bytes that are no dense plan."""
    dense = DensePlan.decode(data)
    vectors, scalars = dense.vectors, dense.scalars
    symbols = len(vectors["defaults"])
    code = NumberReader(dense.stream, budget=32 * len(dense.stream) + 4096)
    exprs = _decode_exprs(code, symbols, scalars["expr_count"], scalars["constant_count"])
    kinds = vectors["steps"].tolist()
    counts = [(code.number(), code.number()) for _ in range(max((kind[0] for kind in kinds), default=-1) + 1)]
    params, param_at = _decode_params(code, kinds, counts)
    steps: list[tuple[int, ...]] = []
    args: list[int] = []
    graphs = []
    for first, length, samples, *rest, newest in vectors["graphs"].tolist():
        graphs.append((len(steps), length, samples, *rest, 0))
        code.at = first
        for _ in range(length):
            place = code.number()
            if place >= len(kinds):
                raise ValueError(
                    f"a step is of kind {place}, and there are {len(kinds)}; the plan is damaged"
                )
            kernel, _, accumulate, loop, _ = kinds[place]
            steps.append((kernel, param_at[place], len(args), accumulate, loop))
            for _ in range(counts[kernel][0]):
                below = code.number()
                args.append(newest - below)
                newest += below == 0
            if loop:
                code.number(), code.number()
    pool = vectors["names"].tobytes()
    names = _Places(whole_names(pool, dense.counts["parameters"]) if dense.shared else pool)
    orders = vectors["orders"].tolist() or range(dense.counts["parameters"])
    plain = {
        **{n: v for n, v in scalars.items() if n not in ("expr_count", "constant_count")},
        "version": dense.version,
        "constants": vectors["constants"],
        "defaults": vectors["defaults"].tolist(),
        "exprs": exprs,
        "steps": steps,
        "args": args,
        "params": [*params, 0],
        "graphs": graphs,
        "parameters": [
            (names.next(), i, order)
            for i, order in zip(range(dense.counts["parameters"]), orders, strict=False)
        ],
    }
    first_port = len(plain["parameters"])
    plain["ports"] = [(names.next(), first_port + i, 0) for i in range(dense.counts["ports"])]
    plain["moments"] = [names.next() for _ in range(dense.counts["moments"])]
    plain["symbols"] = [names.next() for _ in range(symbols)]
    plain["kernels"] = [(key, names.next()) for key in vectors["kernels"].tolist()]
    plain["names"] = names.pool
    plain["shapes"], plain["tensors"] = _decode_tensors(dense, symbols)
    _check_indices(plain)
    return plain


@dataclass
class _Places:
    """Places of texts in a pool, one after the other; behind the last, that of an empty one."""

    pool: bytes
    at: int = 0

    def next(self) -> int:
        found = self.at
        end = self.pool.find(0, found)
        if end < 0:
            raise ValueError("a plan has fewer names than things; it is damaged")
        if end + 1 < len(self.pool):
            self.at = end + 1
        elif found < end:
            self.at = end
        return found


def _decode_params(
    code: NumberReader, kinds: Sequence[Sequence[int]], counts: Sequence[tuple[int, int]]
) -> tuple[list[int], list[int]]:
    """The parameters of all kinds of steps in one list, and where those of each start."""
    lists = []
    for kernel, *_, at in kinds:
        code.at = at
        words = [code.number() for _ in range(counts[kernel][1])]
        lists.append(tuple((n >> 1 ^ -(n & 1)) + 2**31 & 0xFFFFFFFF for n in words))
    pool, places = overlapping(lists)
    return [n - 2**31 for n in pool], [places[words] for words in lists]


def _decode_tensors(dense: DensePlan, symbols: int) -> tuple[list[int], list[tuple[int, ...]]]:
    shapes: list[int] = []
    shape_at: dict[int, int] = {}
    words, heads = dense.vectors["shapes"].tolist(), dense.vectors["heads"].tolist()
    tensors: list[tuple[int, ...]] = []
    for at, shape in dense.vectors["tensors"].tolist():
        head = words[shape] if shape < len(words) else 0
        if dense.small:
            head = heads[head] if head < len(heads) else 0
        if shape not in shape_at:
            shape_at[shape] = len(shapes)
            shapes += [head >> 11, *words[shape + 1 : shape + 1 + (head >> 11)]]
        region = head >> 8 & 7
        place, where = (symbols, _BOUND + at) if region == _BOUND else (at, region)
        tensors.append((place, shape_at[shape], where, head & 31, head >> 7 & 1 | head >> 5 & 2))
    return shapes, tensors


def _check_indices(plain: Tables) -> None:
    largest = max((len(plain[name]) for name in ("shapes", "steps", "args", "exprs", "tensors")), default=0)
    ports = len(plain["parameters"]) + len(plain["ports"])
    if max(largest, ports) > 0xFFFF or any(not 0 <= n <= 0xFFFF for n in plain["args"]):
        raise ValueError(
            "a dense plan has more than 65,535 of something, or names what it lacks; it is damaged"
        )


def _decode_exprs(
    reader: NumberReader, symbols: int, count: int, constants: int
) -> list[tuple[int, int, int]]:
    if symbols + constants > count or count > 0xFFFF:
        raise ValueError(f"{constants} of {count} expressions are constants; the plan is damaged")
    exprs = [(i, 0, _SYMBOL) for i in range(symbols)]
    value = 0
    for _ in range(constants):
        value += reader.number()
        if value > _BITS:
            raise ValueError(f"a constant is {value}; the plan is damaged")
        exprs.append((value - (value >> 31 << 32), 0, _CONSTANT))
    for i in range(symbols + constants, count):
        word, right = reader.number(), reader.number()
        left = i - 1 - (word >> 3)
        if left < 0 or right > 0xFFFF:
            raise ValueError(f"expression {i} has the operands {left} and {right}; the plan is damaged")
        exprs.append((left, right, (word & 7) + _FIRST_OPERATION))
    return exprs
