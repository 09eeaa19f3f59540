"""Bytes of every case's trainer on several targets: reports/baseline/targets.md and targets.json.

    python tests/slow/measure_targets.py [--target T]... [NAME...]

Each cell is the trimmed file and what of it is loaded (of a chip: what takes flash). Every file is cut into owned
bytes first, so a row that does not add up stops the run. The last row is the full build.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve()
TESTS, ROOT = HERE.parents[1], HERE.parents[2]
sys.path[:0] = [str(TESTS), str(ROOT)]
TARGETS = ("x86_64-linux-gnu", "aarch64-linux-gnu", "arm-linux-gnueabihf", "wasm32", "cortex-m4f")
FULL = "every operator"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", action="append", help="repeat it for several")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    targets = tuple(options.target or TARGETS)
    rows = []
    for name, measure in _cases(options.names):
        rows.append({"case": name, **{target: measure(target) for target in targets}})
        sys.stdout.write(_row(rows[-1], targets) + "\n")
        sys.stdout.flush()
    if not options.names and not options.target:
        head = ("| case | " + " | ".join(targets) + " |", "|---|" + "--:|" * len(targets))
        text = "\n".join((*head, *(_row(row, targets) for row in rows)))
        baseline = ROOT / "reports" / "baseline"
        (baseline / "targets.md").write_text(text + "\n", "utf-8")
        (baseline / "targets.json").write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


def _cases(names: list[str]) -> list[tuple[str, Callable[[str], dict[str, int]]]]:
    from case_sets import folders

    from minbuild.emit import everything
    from minbuild.needs import contents_of
    from minbuild.ops import registry
    from minbuild.planned import plan_model

    found: list[tuple[str, Callable[[str], dict[str, int]]]] = []
    for folder in (f for f in folders() if not names or f.name in names):
        model = plan_model(folder, {}, {}, (), lambda line: None)
        found.append((folder.name, lambda t, m=model: _measure(contents_of([m]), m.registry, t)))
    return [*found, (FULL, lambda target: _measure(everything(registry()), registry(), target))]


def _measure(contents, registry, target: str) -> dict[str, int]:
    from minbuild.libraries import build_checked
    from minbuild.size.attribution import attribute
    from minbuild.toolchain import find_toolchain, parse_target

    library = build_checked(contents, registry, parse_target(target), find_toolchain())
    build = library.measured
    attribute(build.binary, build.owners, build.kernels)  # raises unless every byte has one owner
    loaded = sum(s.file_size for s in library.binary.sections if s.allocated)
    return {"file": len(library.built.shared), "loaded": loaded}


def _row(row: dict, targets: tuple[str, ...]) -> str:
    cells = (f"{row[t]['file']:,} ({row[t]['loaded']:,})" for t in targets)
    return "| " + " | ".join((row["case"], *cells)) + " |"


if __name__ == "__main__":
    main()
