"""Sizes and places of a plan with several free dimensions: values that the device computes in one pass when sizes
change, the free dimensions first, from operations on values before them and on constants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from minbuild.codegen.compiled_plan_amounts import Amount
from minbuild.planning.plan_encoding import EXPRESSIONS

_CONSTANT, _SYMBOL = EXPRESSIONS.index("Constant"), EXPRESSIONS.index("Symbol")


class ValueTable:
    """The expressions of a plan by number: values from 0 on, then constants. An `Amount` of such a plan has the number
    of its value and one more as `free`, or is a constant.

    operations  (a, b, operator) of each value behind the free dimensions
    entries     the constants, each once, in order
    """

    def __init__(
        self, expressions: Sequence[tuple[int, int, int]], symbols: int, used: Iterable[int]
    ) -> None:
        """`expressions` are the operands and operator of each, where numbers below `symbols` are free dimensions;
        `used` are those that tensors and graphs name; what nothing needs has no number."""
        needed, stack = set[int](), list(used)
        while stack:
            if (at := stack.pop()) not in needed:
                needed.add(at)
                a, b, op = expressions[at]
                stack += [] if op in (_CONSTANT, _SYMBOL) else [a, b]
        numbers: dict[tuple[Amount, Amount, int], int] = {}
        self.amounts = [Amount(0, 0)] * len(expressions)
        for at in sorted(needed):  # operands stand before what is made of them
            a, b, op = expressions[at]
            if op == _CONSTANT:
                self.amounts[at] = Amount(0, a)
            elif op == _SYMBOL:
                self.amounts[at] = Amount(a + 1, 0)
            else:
                operation = (self.amounts[a], self.amounts[b], op)
                self.amounts[at] = Amount(1 + numbers.setdefault(operation, symbols + len(numbers)), 0)
        self.values = symbols + len(numbers)
        self.entries: list[Amount] = []
        self._made = tuple(numbers)

    @classmethod
    def of(cls, tables: Mapping[str, Any]) -> ValueTable:
        """The values of a decoded plan."""
        used, shapes = (
            {int(tables["arena"]), *(graph[2] for graph in tables["graphs"].tolist())},
            tables["shapes"].tolist(),
        )
        for at, shape, *_ in tables["tensors"].tolist():
            used |= {at, *shapes[shape + 1 : shape + 1 + shapes[shape]]}
        return cls(tables["exprs"].tolist(), len(tables["symbols"]), used)

    def hold(self, amounts: Iterable[Amount]) -> None:
        """Gives numbers to the constants among `amounts` and those that operations have as operands."""
        operands = [operand for a, b, _ in self._made for operand in (a, b)]
        self.entries = sorted({amount for amount in (*amounts, *operands) if not amount.free})
        self.index = {amount: self.values + i for i, amount in enumerate(self.entries)}
        self.index |= {Amount(number + 1, 0): number for number in range(self.values)}

    @property
    def operations(self) -> list[tuple[int, int, int]]:
        """(a, b, operator) by the numbers of operands, once constants have theirs."""
        return [(self.index[a], self.index[b], op) for a, b, op in self._made]
