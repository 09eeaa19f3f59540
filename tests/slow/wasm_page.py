"""reports/baseline/wasm.md: its text, and what a run that measures some of its nets leaves as it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MODULES = ("wasm32", "wasm32-relaxed-simd")
GOAL = 1.5  # of native's time
INTRODUCTION = """# WebAssembly

A training step in Node beside this machine's own library on one thread, in turns within one run, the shortest of
each, in processor time; written by `python tests/slow/measure_wasm.py`. V8 11.3 is the engine of Chrome 113 as well, V8
13.6 that of Chrome 136; relaxed SIMD came with Chrome 114, and Node 20 has it by a flag. "128 bits" is the native
library without the processor's wider vectors, which WebAssembly has no instructions for: the module's own share of the
distance is that to this one.

"""
EXPLANATION = f"""
Where a module takes more than {GOAL} times native, this is what its time consists of, native's being 1: multiplications
and additions of products and convolutions as fast as this machine computes them in vectors of 128 bits, without memory;
all else that native code with such vectors takes; and the module's own share, which is negative where it has tiles in
place of that code's dot products.

"""
HEAD = (
    *("net", "batch", "engine", "native", "native, 128 bits"),
    *(f"{module} / {base}" for base in ("native", "128 bits") for module in MODULES),
)


@dataclass(frozen=True, slots=True)
class NetResult:
    """Lines of a net's rows, and of the sentences on its engines."""

    rows: tuple[str, ...]
    notes: tuple[str, ...] = ()


def read_page(text: str) -> dict[str, NetResult]:
    """The nets of a page, in its order."""
    rows: dict[str, list[str]] = {}
    notes: dict[str, list[str]] = {}
    kept: list[str] = []  # notes of the net whose lines these are
    for line in text.splitlines():
        first = line.split("|")[1].strip() if line.startswith("| ") else ""
        if first not in ("", HEAD[0]):
            rows.setdefault(first, []).append(line)
        elif line.startswith("* "):
            kept = notes.setdefault(line.removeprefix("* ").split(",")[0], [])
            kept.append(line)
        elif line.startswith("  "):
            kept.append(line)
    return {name: NetResult(tuple(lines), tuple(notes.get(name, ()))) for name, lines in rows.items()}


def write_page(text: str, measured: Mapping[str, NetResult]) -> str:
    """The page `text` with the nets of `measured` in place of those of the same names, or behind the others."""
    nets = {**read_page(text), **measured}
    table = [f"| {' | '.join(HEAD)} |", f"|{'---|' * len(HEAD)}"]
    table += [line for net in nets.values() for line in net.rows]
    notes = [line for net in nets.values() for line in net.notes]
    explained = [EXPLANATION + "\n".join(notes)] if notes else []
    return INTRODUCTION + "\n".join([*table, *explained]) + "\n"
