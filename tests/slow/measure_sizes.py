"""Bytes of every case's trainer, as linked: reports/baseline/sizes.md and sizes.json.

    python tests/slow/measure_sizes.py [--target T] [NAME...]

Rows add up to the file by construction of the size report, which this runs for every case; the arena is what all
temporaries need at batch 8.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve()
TESTS, ROOT = HERE.parents[1], HERE.parents[2]
sys.path[:0] = [str(TESTS / "support"), str(ROOT)]
BATCH = 8
HEAD = ("case", "kernels", "trimmed", "full", "plan", "arena", "above the least for this order")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="x86_64-linux-gnu")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    from case_sets import folders

    rows = [_measure(f, options.target) for f in folders() if not options.names or f.name in options.names]
    text = "\n".join(("| " + " | ".join(HEAD) + " |", "|---|" + "--:|" * (len(HEAD) - 1), *map(_row, rows)))
    sys.stdout.write(text + "\n")
    if not options.names:
        baseline = ROOT / "reports" / "baseline"
        (baseline / "sizes.md").write_text(text + "\n", "utf-8")
        (baseline / "sizes.json").write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


def _measure(folder: Path, target: str) -> dict[str, object]:
    from minbuild.analysis.attribution import attribute
    from minbuild.codegen.library_builder import LibraryBuilder
    from minbuild.planning.compile import compile_model
    from minbuild.planning.kernel_selection import contents_of
    from minbuild.toolchain import find_toolchain, parse_target

    model = compile_model(folder, {}, {}, (), lambda line: None)
    contents, silent = contents_of([model]), lambda s: None
    pair = LibraryBuilder(contents, model.registry, find_toolchain(), False, silent, silent).pair(
        parse_target(target)
    )
    for library in (pair.trimmed, pair.full):
        build = library
        attribute(build.binary, build.owners, build.kernels)  # raises unless every byte has one owner
    arena, bound = _arena(model)
    return {
        "case": folder.name,
        "kernels": len(model.plan.kernels),
        "trimmed": len(pair.trimmed.built.shared),
        "full": len(pair.full.built.shared),
        "plan": len(model.plan_bytes),
        "arena": arena,
        "lower_bound": bound,
    }


def _arena(model) -> tuple[int, int]:
    from minbuild.planning.plan import peak_bytes

    return peak_bytes(model.plan, dict.fromkeys(model.plan.symbols, BATCH))


def _row(row: dict) -> str:
    above = 100 * (row["arena"] / row["lower_bound"] - 1) if row["lower_bound"] else 0
    numbers = [f"{row[key]:,}" for key in ("kernels", "trimmed", "full", "plan", "arena")]
    return "| " + " | ".join((row["case"], *numbers, f"{above:.1f} %")) + " |"


if __name__ == "__main__":
    main()
