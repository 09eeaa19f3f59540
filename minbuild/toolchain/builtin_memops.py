"""A `memcpy` and a `memset` for libraries that would import nothing else: what the compiler makes of copied and
cleared structs. The tables of an import are longer than both. The static library is without: a program has its
C library's.
"""

from __future__ import annotations

from minbuild import assets

NAMES = frozenset(("memcpy", "memset"))


def source() -> bytes:
    """Both, in C."""
    return (assets.root("kernels") / "runtime" / "memops.c").read_bytes()
