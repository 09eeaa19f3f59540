"""SizeReport -> text for a terminal: everything that the other forms hold."""

from __future__ import annotations

from io import StringIO
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from minbuild.escape import printable
from minbuild.ir.size_report import SizeReport, TargetReport
from minbuild.report import memory_tables as memory
from minbuild.report import peers, report_tables, suggestions, summary, time_tables
from minbuild.report import size_tables as library
from minbuild.report.table import Table, kib, text
from minbuild.report.verdict import is_proven, proof, verdicts
from minbuild.report.wrap import fit

_STYLES = {"sum": "bold", "total": "bold", "head": "italic", "row": ""}


def render(report: SizeReport, color: bool = False, width: int = 100, limit: int | None = 12) -> str:
    """The report as lines of at most `width` characters where names allow; plain text unless `color`, which a caller
    sets when it writes to a terminal. `limit` bounds the rows of operators and of tensors (None: all), the rest
    become one row. `report` has every figure."""
    stream = StringIO()
    console = _console(stream, color, width)
    console.print(Text(printable(f"{report.model.name}: {verdicts(report)}"), style="bold"), soft_wrap=True)
    for table in report_tables.overview(report):
        _print(console, table)
    for target in report.targets:
        _headline(console, report, target)
        _print(console, library.composition(target))
        _print(console, peers.comparison(target))
        if target.suggestions:
            _print(console, suggestions.suggestion_table(target))
        if target.waterfall:
            _print(console, library.waterfall(target))
        _print(console, library.operators(target, limit))
        for table in time_tables.operator_times(report, target, limit):
            _print(console, table)
        _print(console, library.others(target, limit))
        if target.regions:
            _print(console, library.regions(target))
        _print(console, library.sections(target))
        _print(console, memory.memory(report.model, target))
        for table in suggestions.further(report, target, limit):
            _print(console, table)
        _proof(console, target)
        _files(console, target)
    for target in report.targets:  # last, where a terminal shows it when all is done
        console.print(Text(printable(report_tables.one_line(report, target)), style="bold"), soft_wrap=True)
    return _trimmed(stream)


def print_summary(report: SizeReport, console: Console) -> None:
    """The first screen: bold where the terminal can, red where a target is NOT PROVEN."""
    first, *rest = summary.render(report).splitlines()
    unproven = not all(is_proven(target) for target in report.targets)
    console.print(Text(first, style="bold red" if unproven else "bold"), soft_wrap=True)
    for line in rest:
        console.print(Text(line), soft_wrap=True, highlight=False)


def as_text(table: Table, width: int) -> str:
    """One table as lines of at most `width` characters."""
    stream = StringIO()
    _print(_console(stream, False, width), table)
    return _trimmed(stream)


def _console(stream: StringIO, color: bool, width: int) -> Console:
    return Console(
        file=stream,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        emoji=False,
        legacy_windows=False,
    )


def _trimmed(stream: StringIO) -> str:
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def _headline(console: Console, report: SizeReport, target: TargetReport) -> None:
    first, *rest = report_tables.headline(report, target)
    line = Text(f"{printable(report.model.name)} for {target.target}: ", style="bold")
    line.append(f"{first.value:,} {first.unit}", style="bold green")
    line.append(f"  ({kib(first.value)}, {printable(first.note)})")
    console.print(line, soft_wrap=True)
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column(justify="right")
    grid.add_column(style="dim")
    for fact in rest:
        grid.add_row(
            Text(printable(fact.label)),
            Text(f"{fact.value:,} {fact.unit}".strip()),
            Text(printable(fact.note)),
        )
    console.print(grid)
    console.print()


def _print(console: Console, table: Table) -> None:
    table, widths, gap = fit(table, console.width)
    rich = RichTable(
        title=table.title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        padding=(0, gap - 1, 0, 0),  # and a character that the box puts between
    )
    for i, column in enumerate(table.columns):
        justify: Literal["left", "right"] = "right" if table.numeric(i) else "left"
        rich.add_column(column.strip(), justify=justify, overflow="fold", width=widths[i])
    for line in table.lines:
        if line.level in ("sum", "total"):
            rich.add_section()
        rich.add_row(*(Text(text(c)) for c in line.cells), style=_STYLES[line.level])
    console.print(rich)
    console.print()


def _proof(console: Console, target: TargetReport) -> None:
    style = "bold" if is_proven(target) else "bold red"
    line = Text("Proof: ", style=style)
    console.print(line.append(printable(proof(target)), style="not bold"))


def _files(console: Console, target: TargetReport) -> None:
    for what, where in target.files:
        console.print(Text(printable(f"{what}: {where}")), soft_wrap=True)
    console.print()
