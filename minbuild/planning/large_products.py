"""Kernels that are worth more memory or code: products that are packed, and loops that gain from wider vectors."""

from __future__ import annotations

from collections.abc import Iterable

from minbuild.ir import Kernel

_PACKED_FUNCTION, _PACKED_FEATURE = "_packed", ".packed"  # ends of their names
_WIDENED = (".long", ".five_rows", ".seven_rows")


def packs(kernels: Iterable[Kernel], features: Iterable[str]) -> bool:
    """True if `kernels` with these `features` have products that are large enough to be packed."""
    return any(k.function.endswith(_PACKED_FUNCTION) for k in kernels) or any(
        f.endswith(_PACKED_FEATURE) for f in features
    )


def widening(kernels: Iterable[Kernel], features: Iterable[str]) -> tuple[str, ...]:
    """The functions of `kernels` and those of their `features` whose loops pay for a variant of AVX-512: packed
    products, elementwise functions over large tensors, or convolutions by columns of windows."""
    functions = {k.function for k in kernels if k.function.endswith(_PACKED_FUNCTION)}
    return tuple(sorted(functions | {f for f in features if f.endswith((_PACKED_FEATURE, *_WIDENED))}))


def widens(kernels: Iterable[Kernel], features: Iterable[str]) -> bool:
    """True if `kernels` with these `features` have loops that pay for a variant of AVX-512."""
    return bool(widening(kernels, features))
