"""Arithmetic that optimizers written as nodes share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType, TensorType
from minbuild.ops.core.definition import BOOL, FLOAT, HALVES, OpContext
from minbuild.ops.core.graph_builder import GraphBuilder
from minbuild.ops.core.value import Value


def updated_flag(ctx: OpContext) -> Sequence[TensorType]:
    """The shape rule of optimizers and accumulators: one truth value, that the update is done."""
    return (TensorType(BOOL, (1,)),)


class Update(GraphBuilder):
    """Arithmetic of one update, in `element`: halves are updated as floats."""

    element: ElementType

    @classmethod
    def over(cls, b: GraphBuilder, like: int) -> Update:
        """Writes into `b`, with numbers of the type of its input `like`."""
        x, y = ([v.name for v in values] for values in (b.x, b.y))
        update = cls(b.ctx, x, y, b.prefix, b.opset)
        update.nodes = b.nodes
        stored = b.ctx.element(like)
        update.element = FLOAT if stored in HALVES else stored
        return update

    def number(self, value: float) -> Value:
        """A constant, rounded to the float32 that kernels have."""
        return self.constant(np.float32(value), self.element)

    def input(self, i: int) -> Value:
        """Input `i` in the type of the arithmetic."""
        return self.cast(self.x[i], self.ctx.element(i), self.element)

    def cast(self, x: Value, source: ElementType, target: ElementType) -> Value:
        """`x` of type `source` as `target`; itself where they are the same."""
        return x if source == target else x.cast(target)

    def scalar(self, i: int) -> Value:
        """The only number of input `i`, without axes."""
        return self.input(i).reshape(())

    def scalar_or_none(self, i: int) -> Value | None:
        """None where there is no input `i`."""
        return self.scalar(i) if self.has(i) else None

    def output(self, x: Value, like: int) -> Value:
        """A result in the type of input `like`."""
        return self.cast(x, self.element, self.ctx.element(like))

    def average(self, keep: float, old: Value, new: Value) -> Value:
        """`keep` * `old` + (1 - `keep`) * `new`."""
        return self.number(keep) * old + self.number(1 - float(np.float32(keep))) * new

    def root(self, square: Value, epsilon: float) -> Value:
        """sqrt(square) + epsilon"""
        return square.sqrt() + self.number(epsilon)

    def unbiased(self, factor: float, steps: Value) -> Value:
        """1 - factor^steps"""
        return self.number(1) - self.number(factor) ** steps

    def regularized(self, factor: float, x: Value, g: Value) -> Value:
        """The gradient `g` plus `factor` times `x`."""
        return self.number(factor) * x + g if factor else g


def numbers(attributes: Mapping[str, Any], **defaults: float) -> tuple[float, ...]:
    """Attributes with their defaults, as the float32 numbers that files hold."""
    return tuple(float(np.float32(attributes.get(name, default))) for name, default in defaults.items())


OPS: tuple[()] = ()
