"""The capabilities of a package's library, from its manifest: enough to say whether another plan can run on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minbuild.ir import Kernel
from minbuild.planning.library_contents import LibraryContents
from minbuild.planning.plan_encoding import DENSE_VERSIONS, WIDE_VERSION, plan_version, stable_key


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Kernels by symbol with a number that changes with their arguments, features, and parts of the runtime. `plan` is
    the version of the plans it reads, plus `WIDE_VERSION` where they are wide and one of `DENSE_VERSIONS` where
    they are dense."""

    plan: int
    kernels: Mapping[str, int]
    features: frozenset[str]
    expressions: frozenset[str]  # operators of sizes
    symbols: bool  # sizes chosen at run time
    loops: int  # 1: steps that run once per sample; 2: also from the last sample on; 3: kernels end them; 4: any length
    draws: bool  # nodes with a seed, which count their random draws
    frozen_parameters: bool  # parameters that training does not update


def capabilities_of(contents: LibraryContents) -> Capabilities:
    """The capabilities of a library of these contents, or the requirements of a plan."""
    return Capabilities(
        plan_version(contents.fused_updates, idle_moments=contents.idle_moments > 0)
        + WIDE_VERSION * contents.wide
        + DENSE_VERSIONS[contents.dense],
        kernels={kernel.symbol: _signature(kernel) for kernel in contents.kernels},
        features=frozenset(contents.features),
        expressions=frozenset(contents.expressions),
        symbols=contents.symbols,
        loops=contents.loops,
        draws=contents.draws,
        frozen_parameters=contents.frozen_parameters,
    )


def _signature(kernel: Kernel) -> int:
    return stable_key(repr((kernel.args, kernel.params)))


def as_dict(capabilities: Capabilities) -> dict[str, Any]:
    """Plain data for the manifest, in a fixed order."""
    return {
        "plan": capabilities.plan,
        "kernels": dict(sorted(capabilities.kernels.items())),
        "features": sorted(capabilities.features),
        "expressions": sorted(capabilities.expressions),
        "symbols": capabilities.symbols,
        "loops": capabilities.loops,
        "draws": capabilities.draws,
        "frozen_parameters": capabilities.frozen_parameters,
    }


def from_dict(plain: Mapping[str, Any]) -> Capabilities:
    """The inverse of `as_dict`. Raises KeyError, TypeError or ValueError where it did not."""
    return Capabilities(
        int(plain["plan"]),
        kernels={str(symbol): int(number) for symbol, number in plain["kernels"].items()},
        features=frozenset(plain["features"]),
        expressions=frozenset(plain["expressions"]),
        symbols=bool(plain["symbols"]),
        loops=int(plain["loops"]),
        draws=bool(plain["draws"]),
        frozen_parameters=bool(plain.get("frozen_parameters", True)),  # as every library had them before
    )
