"""The dense encoding of a plan: the tables of `plan_encoding`, with expressions and steps as streams of numbers of
7 bits a byte, and tensors in order of use.

A device reads it in place and in order: expressions when sizes change, steps as they run; nothing is decoded into
memory. Expressions are the free dimensions, constants by size as differences, then operations as (distance of the first
operand, operator) and the second operand. A step is the number of its kind (kernel, parameters, outputs it adds to,
loop), then each argument as its distance from the first tensor that no step had yet, which 0 names; behind the last
step of a loop stand the bytes and the tensors to go back. What a tensor is besides its place stands before its shape:
rank, type, 1 where it is its own size further on in every round of a loop, region, 1 where it is its own size further
back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minbuild.ir.plan import LONGEST_COUNTED

_CONSTANT, _SYMBOL, _FIRST_OPERATION = 0, 1, 2  # operators of expressions
_BOUND = 5  # the first region of what is bound; its tensors have 0 as their place
_MOST = 0xFFFF  # of indices
_LARGEST_KERNEL = 0xFF

Tables = Mapping[str, Any]


def _varint(number: int) -> bytes:
    assert number >= 0
    groups = [number & 127]
    while number := number >> 7:
        groups.append(number & 127 | 128)
    return bytes(reversed(groups))


@dataclass
class _Reader:
    """Numbers of a stream. Raises ValueError behind its end, and when more is read than a sound plan can have."""

    data: bytes
    at: int = 0
    budget: int = 0

    def number(self) -> int:
        number = 0
        while self.at < len(self.data) and self.budget > 0:
            byte = self.data[self.at]
            self.at, self.budget = self.at + 1, self.budget - 1
            number = (number << 7 | byte & 127) & 0xFFFFFFFF
            if byte < 128:
                return number
        raise ValueError(f"byte {self.at} of a stream: it ends within a number; the plan is damaged")


# ----------------------------------------------------------------------------------------------------- encode


def dense_tables(tables: Tables, counts: Sequence[int]) -> dict[str, Any] | None:
    """The tables of a plan, as lists of tuples, in the dense encoding; None for one that has too much of something for
    it. `counts` are the numbers of arguments of its kernels."""
    exprs = _encode_exprs(tables["exprs"], len(tables["symbols"]))
    if exprs is None:
        return None
    renamed = exprs.renamed
    order, streams = _encode_steps(tables, counts, bytearray(exprs.stream))
    number = {tensor: i for i, tensor in enumerate(order)}
    shapes: list[int] = []
    shape_at: dict[tuple[int, ...], int] = {}
    records = []
    for tensor in order:
        at, shape, region, element, walks = tables["tensors"][tensor]
        dims = tables["shapes"][shape + 1 : shape + 1 + tables["shapes"][shape]]
        head = len(dims) | element << 4 | walks % 2 << 9 | min(region, _BOUND) << 10 | walks // 2 << 13
        words = (head, *(renamed[d] for d in dims))
        if region >= _BOUND and tables["exprs"][at] != (0, 0, _CONSTANT):
            return None
        if words not in shape_at:
            shape_at[words] = len(shapes)
            shapes += words
        records.append((region - _BOUND if region >= _BOUND else renamed[at], shape_at[words]))
    dense = {
        **{name: value for name, value in tables.items() if name not in ("exprs", "args")},
        "expr_count": exprs.count,
        "constant_count": exprs.constants,
        "arena": renamed[tables["arena"]],
        "shapes": shapes,
        "tensors": records,
        "steps": streams.kinds,
        "stream": bytes(streams.code),
        "graphs": [
            (first, g[1], renamed[g[2]], *g[3:6], newest)
            for g, (first, newest) in zip(tables["graphs"], streams.starts, strict=True)
        ],
        "ports": [(name, number[tensor], 0) for name, tensor, _ in tables["ports"]],
        "parameters": [(name, number[tensor], order) for name, tensor, order in tables["parameters"]],
    }
    largest = max(len(tables["names"]), len(streams.code), len(shapes), len(records))
    kernels = max((kind[0] for kind in streams.kinds), default=0)
    arguments = max((kind[1] for kind in streams.kinds), default=0)
    fits = largest <= _MOST and max(kernels, arguments) <= _LARGEST_KERNEL
    return dense if fits else None


@dataclass
class _Exprs:
    stream: bytes
    count: int
    constants: int
    renamed: list[int]  # the new number of each


def _encode_exprs(exprs: Sequence[tuple[int, int, int]], symbols: int) -> _Exprs | None:
    """The stream of expressions, the first `symbols` the free dimensions and the next 0; None where a
    constant is negative."""
    constants = sorted({0, *(a for a, _, op in exprs if op == _CONSTANT)})
    constant_at = {value: symbols + i for i, value in enumerate(constants)}
    if constants[0] < 0:
        return None
    stream, last = bytearray(), 0
    for value in constants:
        stream += _varint(value - last)
        last = value
    renamed: list[int] = []
    count = symbols + len(constants)
    for a, b, op in exprs:
        if op == _CONSTANT:
            renamed.append(constant_at[a])
        elif op == _SYMBOL:
            renamed.append(a)
        else:
            stream += _varint(count - 1 - renamed[a] << 3 | op - _FIRST_OPERATION) + _varint(renamed[b])
            renamed.append(count)
            count += 1
    return _Exprs(bytes(stream), count, len(constants), renamed)


@dataclass
class _Streams:
    kinds: list[tuple[int, int, int, int, int]]  # kernel, number of arguments, parameters, accumulate, loop
    code: bytearray
    starts: list[tuple[int, int]]  # per graph: first byte, first new tensor


def _encode_steps(tables: Tables, counts: Sequence[int], code: bytearray) -> tuple[list[int], _Streams]:
    """Tensors in order of use, and the steps of all graphs behind `code`."""
    number: dict[int, int] = {}
    kind_at: dict[tuple[int, int, int, int, int], int] = {}
    starts: list[tuple[int, int]] = []
    for graph in tables["graphs"]:
        first, count = graph[:2]
        starts.append((len(code), len(number)) if count else (0, 0))
        before: list[tuple[int, int]] = []  # of each step: first byte, first new tensor
        for kernel, params, args, accumulate, loop in tables["steps"][first : first + count]:
            before.append((len(code), len(number)))
            kind = (kernel, counts[kernel], params, accumulate, loop)
            code += _varint(kind_at.setdefault(kind, len(kind_at)))
            for tensor in tables["args"][args : args + counts[kernel]]:
                newest = len(number)
                code += _varint(newest - number.setdefault(tensor, newest))
            if loop:
                at, tensors = before[-loop if loop <= LONGEST_COUNTED else 0]
                rest = len(number) - tensors
                # The way back counts the bytes that tell it.
                length = next(
                    n for n in range(1, 6) if len(_varint(len(code) + n - at + len(_varint(rest)))) == n
                )
                code += _varint(len(code) + length - at + len(_varint(rest))) + _varint(rest)
    order = dict.fromkeys(number)
    order |= dict.fromkeys(entry[1] for name in ("ports", "parameters") for entry in tables[name])
    return list(order), _Streams(list(kind_at), code, starts)


# ----------------------------------------------------------------------------------------------------- decode


def plain_tables(dense: Tables) -> dict[str, Any]:
    """The inverse of `dense_tables`, of what a file had: the tables of an equal plain plan with the same numbers of
    tensors and expressions. Raises ValueError for what no plan has."""
    stream = dense["stream"].tobytes()
    code = _Reader(stream, budget=16 * len(stream) + 4096)
    symbols, count, constants = (len(dense["symbols"]), dense["expr_count"], dense["constant_count"])
    exprs = _decode_exprs(code, symbols, count, constants)
    kinds = dense["steps"].tolist()
    steps: list[tuple[int, ...]] = []
    args: list[int] = []
    graphs = []
    for first, length, samples, *rest, newest in dense["graphs"].tolist():
        graphs.append((len(steps), length, samples, *rest, 0))
        code.at = first
        for _ in range(length):
            place = code.number()
            if place >= len(kinds):
                raise ValueError(
                    f"a step is of kind {place}, and there are {len(kinds)}; the plan is damaged"
                )
            kernel, arguments, params, accumulate, loop = kinds[place]
            steps.append((kernel, params, len(args), accumulate, loop))
            for _ in range(arguments):
                below = code.number()
                args.append(newest - below)
                newest += below == 0
            if loop:
                code.number(), code.number()
    shapes: list[int] = []
    shape_at: dict[int, tuple[int, int]] = {}
    words = dense["shapes"].tolist()
    tensors = []
    for at, shape in dense["tensors"].tolist():
        head = words[shape] if shape < len(words) else 0
        if shape not in shape_at:
            shape_at[shape] = len(shapes), head
            shapes += [head & 15, *words[shape + 1 : shape + 1 + (head & 15)]]
        region = head >> 10 & 7
        place, where = (symbols, _BOUND + at) if region == _BOUND else (at, region)
        walks = head >> 9 & 1 | head >> 12 & 2
        tensors.append((place, shape_at[shape][0], where, head >> 4 & 31, walks))
    plain = {
        **{name: v for name, v in dense.items() if name not in ("stream", "expr_count", "constant_count")},
        "exprs": exprs,
        "shapes": shapes,
        "tensors": tensors,
        "steps": steps,
        "args": args,
        "graphs": graphs,
        "ports": [(name, tensor, 0) for name, tensor, _ in dense["ports"].tolist()],
        "parameters": dense["parameters"].tolist(),
    }
    _check_indices(plain, args)
    return plain


def _check_indices(plain: Tables, args: Iterable[int]) -> None:
    largest = max((len(plain[name]) for name in ("shapes", "steps", "args", "exprs", "tensors")), default=0)
    if largest > _MOST or any(not 0 <= n <= _MOST for n in args):
        raise ValueError(
            "a dense plan has more than 65,535 of something, or names what it lacks; it is damaged"
        )


def _decode_exprs(reader: _Reader, symbols: int, count: int, constants: int) -> list[tuple[int, int, int]]:
    if symbols + constants > count or count > _MOST:
        raise ValueError(f"{constants} of {count} expressions are constants; the plan is damaged")
    exprs = [(i, 0, _SYMBOL) for i in range(symbols)]
    value = 0
    for _ in range(constants):
        value += reader.number()
        if value >= 2**31:
            raise ValueError(f"a constant is {value}; the plan is damaged")
        exprs.append((value, 0, _CONSTANT))
    for i in range(symbols + constants, count):
        word, right = reader.number(), reader.number()
        left = i - 1 - (word >> 3)
        if left < 0 or right > _MOST:
            raise ValueError(f"expression {i} has the operands {left} and {right}; the plan is damaged")
        exprs.append((left, right, (word & 7) + _FIRST_OPERATION))
    return exprs
