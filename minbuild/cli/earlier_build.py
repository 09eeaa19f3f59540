"""The build that a package replaces: old beside new where the trainer grew, for the end of `minbuild reduce`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from minbuild.analysis.size_diff import compare
from minbuild.analysis.size_history import read_history, record_of
from minbuild.errors import BadInput
from minbuild.ir.size_diff import TargetSizeDiff
from minbuild.ir.size_record import SizeRecord
from minbuild.ir.size_report import SizeReport
from minbuild.report import json as json_report
from minbuild.report import size_diff

_ROWS = 12  # of a target, the largest changes


def earlier_record(out: Path) -> SizeRecord | None:
    """The sizes of the package that is in the folder `out` already; None where there is none, or one of another
    version."""
    path = out / "report" / "report.json"
    try:
        return read_history(path)[-1] if path.is_file() else None
    except BadInput:
        return None


def growth_since(before: SizeRecord | None, report: SizeReport) -> str:
    """The causes, figures and rows of targets that take more flash in `report` than `before`, old beside new; "" where
    none does."""
    if before is None:
        return ""
    found = compare(before, record_of(json_report.as_dict(report)))
    grown = tuple(replace(t, rows=t.rows[:_ROWS]) for t in found.targets if _grew(t))
    return f"\n{size_diff.render_text(replace(found, targets=grown))}\n" if grown else ""


def _grew(target: TargetSizeDiff) -> bool:
    return any(change.name == "Flash" and change.delta > 0 for change in target.figures)
