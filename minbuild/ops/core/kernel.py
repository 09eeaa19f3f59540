"""Kernels as operator definitions declare and call them: `KernelFunction`, `KernelCall`, sets of element types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import numpy as np

from minbuild.ir import ElementType, Shape, TensorType
from minbuild.ir.dims import Dim

FLOAT = ElementType.FLOAT
INT64 = ElementType.INT64
BOOL = ElementType.BOOL
FLOATS = (ElementType.FLOAT, ElementType.DOUBLE)
HALVES = (
    ElementType.FLOAT16,
    ElementType.BFLOAT16,
)  # kernels that lack them get float copies (passes/rewrite/legalize_half.py)
INDICES = (ElementType.INT32, ElementType.INT64)
SIGNED = (ElementType.INT8, ElementType.INT16, ElementType.INT32, ElementType.INT64)
UNSIGNED = (ElementType.UINT8, ElementType.UINT16, ElementType.UINT32, ElementType.UINT64)
INTEGERS = (*SIGNED, *UNSIGNED)
NUMBERS = (*FLOATS, *INTEGERS)
STORAGE_TYPES = (
    UNSIGNED  # what kernels that only move elements are instantiated for: one per size, whatever the type
)
EXTENT = "extent"  # an argument whose dimensions matter and that has no data
SCRATCH = "scratch"  # bytes that live only during the call
# How threads may cut a call of a kernel (`KernelFunction.cut`), besides names of arguments: arguments with as many
# elements as the first, by elements; operands that broadcast (broadcast.h), along the first axis of the result.
ELEMENTS, BROADCAST = "elements", "broadcast"


class InvalidDefinition(Exception):
    """A definition contradicts itself: a kernel is called with something else than it declares."""


@dataclass(frozen=True)
class KernelFunction:
    """A C++ kernel `template <class T, ...> Status function(const Call&)` in `kernels/<stem>.cc`.

    `args` declares the argument slots in order, outputs first, as `name:type` with `type` one of the template
    variables in `types`, an element type (`int64`), `extent` or `scratch`; a trailing `=` marks what the kernel
    writes, a trailing `?` what may be absent. `params` declares the int32 words as `name:int` or `name:float`: a float
    travels as its bits. `features` are the parts that compile away (macro `MB_<STEM>_<FEATURE>`), with a line of
    explanation each. `hints` are those without which the kernel computes the same in more time: a library that is there
    may lack them.

    `cut` says how the runtime may give parts of a call to threads, if it may: ELEMENTS, BROADCAST, or the names of the
    arguments to cut into the rows that the first dimension of an extent among them counts. Parts are calls of the same
    kernel: it must compute each row from that row alone, with the same bits, and take no addresses from data.
    `share` is given for kernels that divide their work themselves: the bytes of scratch memory that each further thread
    needs, by the parameters of the call and the bytes of the first. `work` counts the multiplications of a call, by its
    parameters and the shapes of its arguments (() where absent).
    """

    function: str
    args: tuple[str, ...]
    params: tuple[str, ...] = ()
    types: Mapping[str, tuple[ElementType, ...]] = field(default_factory=dict)
    features: Mapping[str, str] = field(default_factory=dict)
    hints: frozenset[str] = frozenset()
    cut: str | tuple[str, ...] = ()
    share: Callable[[Sequence[int], Dim], Dim] | None = None
    work: Callable[[Sequence[int], Sequence[Shape]], Dim] | None = None

    def __post_init__(self) -> None:
        names = [arg.partition(":")[0] for arg in self.args]
        if isinstance(self.cut, tuple) and not set(self.cut) <= set(names):
            raise InvalidDefinition(
                f"kernel {self.function}: cuts {', '.join(self.cut)}, has {', '.join(names)}"
            )
        for param in self.params:
            if param.partition(":")[2] not in ("int", "float"):
                raise InvalidDefinition(
                    f"kernel {self.function}: parameter '{param}' is neither 'name:int' nor 'name:float'"
                )

    def call(
        self,
        *args: str | TensorType | None,
        types: tuple[ElementType, ...] = (),
        params: Sequence[int | float] = (),
        features: Iterable[str] = (),
        accumulate: int = 0,
    ) -> KernelCall:
        """One execution: `args` are value names ("" or None where absent), or the type of an extent or scratch; `types`
        the element type of each template variable; `params` the numbers of the declared parameters; `accumulate` the
        outputs that add to a gradient buffer, bit i for output i. Raises InvalidDefinition where a number of these, or
        the kind of a parameter, is not the declared one."""
        for what, found, declared in (
            ("argument", args, self.args),
            ("parameter", params, self.params),
            ("element type", types, self.types),
        ):
            if len(found) != len(declared):
                text = f"kernel {self.function} declares {len(declared)} {what}s, the call has {len(found)}"
                raise InvalidDefinition(text)
        words = tuple([self._word(spec, value) for spec, value in zip(self.params, params, strict=True)])
        return KernelCall(
            self,
            args=tuple(a or "" for a in args),
            types=types,
            params=words,
            features=frozenset(features),
            accumulate=accumulate,
        )

    @property
    def cut_word(self) -> int:
        """`cut` as the library's kernel table has it (session.h): a bit for each argument, or one of two more."""
        if isinstance(self.cut, str):
            return {ELEMENTS: 1 << 15, BROADCAST: 1 << 14}[self.cut]
        return sum(1 << i for i, arg in enumerate(self.args) if arg.partition(":")[0] in self.cut)

    def _word(self, spec: str, value: Any) -> int:
        """The int32 of a parameter: Python's and numpy's scalars alike; a float may be given as a whole number."""
        name, _, kind = spec.partition(":")
        if kind == "float" and isinstance(value, Real) and not isinstance(value, bool):
            return float_bits(float(value))
        if kind == "int" and (type(value) is int or isinstance(value, (Integral, np.bool_))):
            if not -(2**31) <= int(value) < 2**31:
                raise InvalidDefinition(
                    f"kernel {self.function}: parameter '{name}' = {value} exceeds 32 bits"
                )
            return int(value)
        given = f"{value!r}, {type(value).__name__}"
        raise InvalidDefinition(
            f"kernel {self.function}: parameter '{name}' is declared {kind}, given {given}"
        )


def whole_share(params: Sequence[int], first: Dim) -> Dim:
    """For `KernelFunction.share`: as much for each thread as for the first."""
    return first


def storage_type(element: ElementType) -> ElementType:
    """The member of STORAGE_TYPES with as many bytes: the type under which a kernel moves elements it does not read."""
    return next(e for e in STORAGE_TYPES if e.size == element.size)


def float_bits(value: float) -> int:
    """The int32 with the bits of a float32."""
    return int(np.array(value, np.float32).view(np.int32))


class View(str):
    """The name of a value whose bytes a kernel takes as a tensor of another `type`, with as many of them."""

    type: TensorType

    def __new__(cls, name: str, type: TensorType) -> View:
        view = super().__new__(cls, name)
        view.type = type
        return view


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One kernel call, as `Op.lower` returns it: run this kernel on these values."""

    kernel: KernelFunction
    args: tuple[str | TensorType, ...]
    types: tuple[ElementType, ...]
    params: tuple[int, ...]
    features: frozenset[str]
    accumulate: int
