"""The kernels that a plan chooses from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """With all kernels, unless it says otherwise.

    `held` are the kernels' functions, the features, as `stem.feature`, and the operators of sizes of a library that is
    there: a plan for it takes another kernel of the same results where it lacks the one that is faster. None of a
    library that is built for the plan.

    `largest` are the sizes of free dimensions that products and convolutions are packed for, wherever they are faster
    so. None to pack those alone that gain most, with free dimensions of one.
    """

    packs: bool = True  # those that pack matrices of large products
    scratch: int | None = None  # most bytes of those that take more scratch memory than others; None: any
    held: frozenset[str] | None = None
    largest: Mapping[str, int] | None = field(default=None, hash=False)

    def has(self, name: str) -> bool:
        """True of the function of a kernel, a feature or an operator of that `name` which the library has, or may
        have."""
        return self.held is None or name in self.held

    def affords(self, scratch: int) -> bool:
        """True of a kernel that takes `scratch` bytes of scratch memory, more than another would."""
        return self.scratch is None or scratch <= self.scratch

    def takes(self, packed: str, plain: str, *, pays: bool) -> bool:
        """True of a call for the function or feature `packed`, which may stand for the function `plain` and the other
        way round: as it `pays`, unless the library has one of both only."""
        if self.held is not None and (packed in self.held) != (plain in self.held):
            return packed in self.held
        return self.packs and pays


EVERY_KERNEL = KernelChoice()
