"""Budgets, baseline and history of a build's figures."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minbuild.analysis.budgets import Budgets, judge, parse_budgets
from minbuild.analysis.size_diff import compare
from minbuild.analysis.size_history import append_line, check_line, read_history, record_of
from minbuild.errors import BadInput, OverBudget
from minbuild.escape import printable
from minbuild.ir.size_record import SizeRecord
from minbuild.ir.size_report import SizeReport
from minbuild.report import json as json_report
from minbuild.report.size_diff import render_markdown

SUMMARY = "GITHUB_STEP_SUMMARY"  # names the file that a job's summary is appended to


@dataclass(frozen=True, slots=True)
class BudgetCheck:
    """Opened before a build, so that what is wrong with the files shows at once; closed with its report."""

    budgets: Budgets
    baseline: SizeRecord | None
    history: Path | None

    @staticmethod
    def open(table: Any, path: str, baseline: Path | None, history: Path | None) -> BudgetCheck:
        """Read the `table` of budgets in the settings at `path`, and the baseline: what is given, else the last line
        of the history. `baseline` is a report, `history` a file with a line per build; either may be None. Raises
        BadInput."""
        budgets = parse_budgets(table, path)
        if history is not None:
            check_line(history)
        source = baseline or (history if history is not None and history.exists() else None)
        if budgets.bounds_growth and source is None and history is None:
            raise BadInput(
                f"{path}: budgets.growth needs something to compare with. Give an earlier report with --baseline, or "
                "keep a --history."
            )
        earlier = read_history(source)[-1] if source is not None else None
        return BudgetCheck(budgets, earlier, history)

    def close(self, report: SizeReport) -> None:
        """Tell a CI job what changed since the baseline, hold the budgets, then add to the history: what is over budget
        must not be what the next build is compared with. Raises OverBudget, and BadInput."""
        new = record_of(json_report.as_dict(report))
        if self.baseline is not None:
            summarize(render_markdown(compare(self.baseline, new)))
        enforce_budgets(self.budgets, new, self.baseline)
        if self.history is not None:
            append_line(self.history, new)


def summarize(document: str) -> None:
    """Append a document, unless it is empty, to the summary of the CI job that this runs in. Raises BadInput."""
    path = os.environ.get(SUMMARY)
    if not document or not path:
        return
    try:
        with Path(path).open("a", encoding="utf-8") as stream:
            stream.write(document)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror}. Correct {SUMMARY}.") from error


def enforce_budgets(budgets: Budgets, new: SizeRecord, old: SizeRecord | None) -> None:
    """Warn on standard error of budgets that are nearly used up. `budgets` limit the figures of `new`, and its growth
    over `old`. Raises OverBudget, naming all that are exceeded."""
    verdicts = judge(budgets, new, old)
    for verdict in verdicts:
        if not verdict.over:
            print(printable(f"warning: {verdict.text}"), file=sys.stderr)
    exceeded = [verdict.text for verdict in verdicts if verdict.over]
    if exceeded:
        raise OverBudget("\n".join(exceeded))
