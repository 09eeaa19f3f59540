"""`minbuild diff`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minbuild.analysis.budgets import parse_budgets
from minbuild.analysis.size_diff import compare
from minbuild.analysis.size_history import read_history
from minbuild.cli.budgets import enforce_budgets, summarize
from minbuild.cli.option_parsing import options_of
from minbuild.cli.progress import Verbose, exit_with_code
from minbuild.cli.reduce import reduce
from minbuild.cli.settings_file import BUDGETS, checked_settings, read_settings
from minbuild.errors import BadInput
from minbuild.ir.size_record import SizeRecord
from minbuild.report import size_diff as rendering

Reports = Annotated[
    list[Path],
    typer.Argument(
        help="Two reports (report.json of a package), or one history: its last two lines. Of a history that is given "
        "beside a report, the last line counts.",
        metavar="OLD [NEW]",
        show_default=False,
    ),
]


def diff(
    reports: Reports,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown for a pull request.")] = False,
    settings: Annotated[
        Path | None, typer.Option(help="File with budgets for NEW; OLD is the baseline.")
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Show the size changes between two reports and their causes; print nothing when there are none."""
    with exit_with_code(verbose):
        old, new = _pair(reports)
        found = compare(old, new)
        document = rendering.render_markdown(found)
        print(document if markdown else rendering.render_text(found), end="")
        summarize(document)
        if settings is not None:
            found_settings = checked_settings(read_settings(settings), str(settings), options_of(reduce))
            enforce_budgets(parse_budgets(found_settings.get(BUDGETS, {}), str(settings)), new, old)


def _pair(paths: list[Path]) -> tuple[SizeRecord, SizeRecord]:
    if len(paths) > 2:
        raise BadInput(f"{paths[2]}: is one too many. Give two reports, or one history.")
    if len(paths) == 2:
        old, new = (read_history(path)[-1] for path in paths)
        return old, new
    lines = read_history(paths[0])
    if len(lines) < 2:
        raise BadInput(f"{paths[0]}: there is nothing to compare it with. Give a second report.")
    return lines[-2], lines[-1]
