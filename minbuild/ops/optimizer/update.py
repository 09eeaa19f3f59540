"""Arithmetic that optimizers written as nodes share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minbuild.ir import ElementType
from minbuild.ops.core.definition import FLOAT, HALVES
from minbuild.ops.core.graph_builder import GraphBuilder


class Update(GraphBuilder):
    """Arithmetic of one update, in `element`: halves are updated as floats."""

    element: ElementType

    @classmethod
    def over(cls, b: GraphBuilder, like: int) -> Update:
        """Writes into `b`, with numbers of the type of its input `like`."""
        update = cls(b.ctx, b.x, b.y, b.prefix, b.opset)
        update.nodes = b.nodes
        stored = b.ctx.element(like)
        update.element = FLOAT if stored in HALVES else stored
        return update

    def number(self, value: float) -> str:
        return self.constant(np.float32(value), self.element)

    def input(self, i: int) -> str:
        """Input `i` to compute with."""
        return self.cast(self.x[i], self.ctx.element(i), self.element)

    def cast(self, name: str, source: ElementType, target: ElementType) -> str:
        return name if source == target else self.add("Cast", name, to=int(target))

    def scalar(self, i: int) -> str:
        """The only number of input `i`, without axes."""
        return self.reshape(self.input(i), ())

    def scalar_or_none(self, i: int) -> str:
        """ "" where there is no input `i`."""
        return self.scalar(i) if self.has(i) else ""

    def output(self, name: str, like: int) -> str:
        """A result in the type of input `like`."""
        return self.cast(name, self.element, self.ctx.element(like))

    def sum(self, a: str, b: str) -> str:
        return self.add("Add", a, b)

    def times(self, a: str, b: str) -> str:
        return self.add("Mul", a, b)

    def mean(self, keep: float, old: str, new: str) -> str:
        """keep * old + (1 - keep) * new"""
        kept = self.times(self.number(keep), old)
        return self.sum(kept, self.times(self.number(1 - float(np.float32(keep))), new))

    def slow(self, square: str, epsilon: float) -> str:
        """sqrt(square) + epsilon"""
        return self.sum(self.add("Sqrt", square), self.number(epsilon))

    def flat(self, x: str) -> str:
        return self.reshape(x, (-1,))

    def unbiased(self, factor: float, steps: str) -> str:
        """1 - factor^steps"""
        return self.add("Sub", self.number(1), self.add("Pow", self.number(factor), steps))

    def regularized(self, factor: float, x: str, g: str) -> str:
        return self.sum(self.times(self.number(factor), x), g) if factor else g


def numbers(attributes: Mapping[str, Any], **defaults: float) -> tuple[float, ...]:
    """Attributes with their defaults, as the float32 numbers that files hold."""
    return tuple(float(np.float32(attributes.get(name, default))) for name, default in defaults.items())


OPS: tuple[()] = ()
