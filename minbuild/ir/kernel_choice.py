"""The kernels that a plan chooses from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """With all kernels, unless it says otherwise."""

    packs: bool = True  # those that pack matrices of large products
    lean: bool = False  # none that takes more scratch memory than another would


EVERY_KERNEL = KernelChoice()
