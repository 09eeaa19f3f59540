"""The processor of this machine, as the system describes it."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

_AVX512 = {"avx512f", "avx512dq", "avx512vl"}  # what kernels/lib/simd/vec.h looks for


def machine_name() -> str:
    """The processor's name, as the system gives it."""
    return next(_fields("model name"), "") or platform.processor() or platform.machine()


def has_avx512() -> bool | None:
    """True if libraries run their AVX-512 variants here; None where the system does not say."""
    flags = next(_fields("flags"), "").split()
    return set(flags) >= _AVX512 if flags else None


def _fields(name: str) -> Iterator[str]:
    """Values of a field of every processor, on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == name:
            yield value.strip()
