"""An application of an operator as its rules read it, and the errors that they raise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from minbuild.ir import ElementType, Shape, TensorType
from minbuild.ir.dims import Dim
from minbuild.ir.kernel_choice import EVERY_KERNEL, KernelChoice

_NOTHING: Mapping[str, OpContext] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class OpContext:
    """Where an operator is applied: types and, as far as known at build time, contents of its inputs.

    `known[i]` is None, an array of numbers, or an object array of dimensions (shape arithmetic). During selection
    `names` and `result_names` hold the values' names ("" where absent) and `results` the output types; `adds` are
    the outputs that accumulate into gradient buffers. `earlier` are the sites that made all values so far, by value,
    during inference only: some gradients (MaxPoolGrad) take their shape from an input that they are not given. `op` is
    then the operator applied, `domain:Name`. `kernels` says which kernels there are to choose from.
    """

    attributes: Mapping[str, Any]
    inputs: tuple[TensorType | None, ...]
    known: tuple[np.ndarray | None, ...]
    version: int
    names: tuple[str, ...] = ()
    results: tuple[TensorType | None, ...] = ()
    result_names: tuple[str, ...] = ()
    accumulates: frozenset[int] = frozenset()
    earlier: Mapping[str, OpContext] = field(default_factory=lambda: _NOTHING)
    op: str = ""
    kernels: KernelChoice = EVERY_KERNEL

    def has(self, i: int) -> bool:
        """True if optional input `i` is given."""
        return i < len(self.inputs) and self.inputs[i] is not None

    def element(self, i: int = 0) -> ElementType:
        tensor = self.inputs[i]
        assert tensor is not None
        return tensor.element

    def shape(self, i: int = 0) -> Shape:
        tensor = self.inputs[i]
        assert tensor is not None and tensor.shape is not None
        return tensor.shape

    def rank(self, i: int = 0) -> int:
        return len(self.shape(i))

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def content(self, i: int) -> np.ndarray | None:
        """The contents of input `i` if it is given and known."""
        return self.known[i] if i < len(self.known) else None

    def dims(self, i: int) -> tuple[Dim, ...]:
        """The contents of a shape-like input; raises `UnsupportedUse` when only the device could know them."""
        content = self.content(i)
        if content is None:
            raise UnsupportedUse(f"input {i} must be known when the trainer is built")
        return tuple(d if not isinstance(d, (int, np.integer)) else int(d) for d in content.ravel().tolist())

    def axis(self, default: int = 0, of: int = 0) -> int:
        """Attribute `axis`, counted from the front of input `of`."""
        axis = int(self.attribute("axis", default))
        return axis + self.rank(of) if axis < 0 else axis

    def name(self, i: int) -> str:
        return self.names[i] if i < len(self.names) else ""

    def maker(self, i: int) -> OpContext | None:
        """The context whose output input `i` is, during inference; None for an input of the graph."""
        return self.earlier.get(self.name(i))

    def result(self, i: int = 0) -> str:
        return self.result_names[i] if i < len(self.result_names) else ""

    def result_shape(self, i: int = 0) -> Shape:
        tensor = self.results[i]
        assert tensor is not None and tensor.shape is not None
        return tensor.shape

    @property
    def accumulate(self) -> int:
        """Bit i: output i adds into a gradient buffer."""
        return sum(1 << i for i in self.accumulates)


class UnsupportedUse(Exception):
    """The operator is applied in a way that this definition does not cover; the text says which."""


# Raised by a rule of an operator on inputs, ranks or attribute values that it was not written for.
RULE_ERRORS = (
    *(TypeError, ValueError, IndexError, KeyError, AttributeError),
    *(OverflowError, ZeroDivisionError, MemoryError, AssertionError),
)


def malformed(error: Exception) -> UnsupportedUse:
    """The finding for one of RULE_ERRORS that a rule raised."""
    text = (str(error).strip().splitlines() or [""])[0][:160].rstrip(".")
    return UnsupportedUse(
        f"its inputs or attributes do not fit the operator ({type(error).__name__}{': ' if text else ''}{text})"
    )


class ShapeMismatch(UnsupportedUse):
    """Two sizes of operands that an operator needs equal differ. Where one of them is a free dimension, lowering makes
    them equal (passes/lowering/symbol_unification.py)."""

    def __init__(self, text: str, sizes: tuple[Dim, Dim]) -> None:
        super().__init__(text)
        self.sizes = sizes
