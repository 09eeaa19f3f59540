"""Kernels that are worth more memory or code: products that are packed, and loops that gain from wider vectors."""

from __future__ import annotations

from collections.abc import Iterable

from minbuild.ir import Kernel


def packs(kernels: Iterable[Kernel], features: Iterable[str]) -> bool:
    """True if `kernels` with these `features` have products that are large enough to be packed."""
    return any(k.function.endswith("_packed") for k in kernels) or any(
        f.endswith(".packed") for f in features
    )


def widens(kernels: Iterable[Kernel], features: Iterable[str]) -> bool:
    """True if `kernels` with these `features` have loops that pay for a variant of AVX-512: packed products,
    elementwise functions over large tensors, or convolutions by columns of windows."""
    return packs(kernels, features) or any(
        f.endswith((".long", ".five_rows", ".seven_rows")) for f in features
    )
