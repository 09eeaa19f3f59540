"""Bytes of every case's trainer on several targets, trimmed and full: reports/baseline/targets.md and targets.json.

    python tests/slow/measure_targets.py [--target T]... [NAME...]

A report is made of each, as `minbuild reduce` does it, and every table of it that splits a file must add up to the
file's bytes: a table that does not stops the run. Each cell is the trimmed file and what of it is loaded (of a chip:
what takes flash); the last row is the full build, which all cases of a target share.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minbuild.ir.size_report import Sizes, TargetReport

HERE = Path(__file__).resolve()
TESTS, ROOT = HERE.parents[1], HERE.parents[2]
sys.path[:0] = [str(TESTS / "support"), str(ROOT)]
TARGETS = (
    *(
        "x86_64-linux-gnu",
        "aarch64-linux-gnu",
        "arm-linux-gnueabihf",
        "wasm32",
        "riscv64-linux-gnu",
        "cortex-m4f",
    ),
    *("aarch64-macos", "x86_64-windows"),
)
FULL = "every operator"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", action="append", help="repeat it for several")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    targets = tuple(options.target or TARGETS)
    rows, last, tables = [], {"case": FULL}, 0
    for name, reports in _cases(options.names, targets):
        for report in reports:
            tables += _check(name, report)
        rows.append({"case": name, **{r.target: _cell(r.trimmed, r.full) for r in reports}})
        last |= {r.target: _cell(r.full, r.full) for r in reports}
        _say(_row(rows[-1], targets))
    if not rows:
        raise SystemExit(f"none of {', '.join(options.names)} is here")
    _say(_row(last, targets))
    said = f"{tables:,} tables of {len(rows)} cases on {len(targets)} targets add up to their files, byte for byte."
    _say(said)
    if not options.names and not options.target:
        head = ("| case | " + " | ".join(targets) + " |", "|---|" + "--:|" * len(targets))
        text = "\n".join((said, "", *head, *(_row(row, targets) for row in (*rows, last))))
        baseline = ROOT / "reports" / "baseline"
        (baseline / "targets.md").write_text(text + "\n", "utf-8")
        (baseline / "targets.json").write_text(json.dumps([*rows, last], indent=1) + "\n", "utf-8")


def _cases(names: list[str], targets: tuple[str, ...]) -> Iterator[tuple[str, tuple[TargetReport, ...]]]:
    """Every case with its reports."""
    from case_sets import folders

    from minbuild.analysis.measure import measure
    from minbuild.analysis.target_result import TargetResult
    from minbuild.codegen.library_builder import LibraryBuilder
    from minbuild.ir.size_report import Verification
    from minbuild.planning.compile import compile_model
    from minbuild.planning.kernel_selection import contents_of
    from minbuild.toolchain import find_toolchain, parse_target

    def quiet(line: str) -> None:
        pass

    for folder in (f for f in folders() if not names or f.name in names):
        model = compile_model(folder, {}, {}, (), quiet)
        bench = LibraryBuilder(contents_of([model]), model.registry, find_toolchain(), False, quiet, quiet)
        pairs = bench.pairs([parse_target(target) for target in targets])
        results = [TargetResult(pair, Verification("")) for pair in pairs]
        yield folder.name, measure({folder.name: model}, results).targets


def _check(case: str, report: TargetReport) -> int:
    """How many tables add up. Raises AssertionError with the first that does not."""
    sums = {
        "the rows of owners": (sum(r.bytes for r in report.rows), report.trimmed),
        "the kinds of owners": (sum(g.bytes for g in report.groups), report.trimmed),
        "the kinds of owners of the full build": (sum(g.full_bytes for g in report.groups), report.full),
        "the sections": (sum(s.trimmed_file for s in report.sections), report.trimmed),
        "the sections of the full build": (sum(s.full_file for s in report.sections), report.full),
        "the phases": (sum(p.bytes for p in report.phases), report.trimmed),
    }
    for what, (found, sizes) in sums.items():
        if found != sizes.file:
            raise AssertionError(
                f"{case} on {report.target}: {what} add up to {found:,}, the file has {sizes.file:,} bytes"
            )
    return len(sums)


def _cell(trimmed: Sizes, full: Sizes) -> dict[str, int]:
    return {"file": trimmed.file, "loaded": trimmed.loaded, "full": full.file, "full_loaded": full.loaded}


def _row(row: dict, targets: tuple[str, ...]) -> str:
    cells = (f"{row[t]['file']:,} ({row[t]['loaded']:,})" for t in targets)
    return "| " + " | ".join((row["case"], *cells)) + " |"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
