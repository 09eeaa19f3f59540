"""Difference -> text for a terminal, or Markdown for a pull request; nothing at all where nothing changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from minbuild.escape import for_markdown as escape
from minbuild.escape import printable
from minbuild.ir.size_diff import SizeChange, SizeDiff, TargetSizeDiff
from minbuild.ir.size_report import KINDS
from minbuild.planning.compiled_model import UNNAMED
from minbuild.report.markdown import as_markdown
from minbuild.report.table import Line, Table, text

MARKER = "<!-- minbuild diff -->"  # by which a comment is found again, to be replaced
_TITLES = {"memory": "Memory", "total": "Whole file", **KINDS}


def render_markdown(difference: SizeDiff) -> str:
    """GitHub-flavoured Markdown: the headline, causes, then tables, rows of owners folded away."""
    if not difference:
        return ""
    lines = [MARKER, f"## {escape(_title(difference))}: {escape(_headline(difference))}", ""]
    lines += [f"- {escape(sentence)}" for sentence in _sentences(difference)]
    for target in difference.targets:
        if target.figures:
            lines += ["", as_markdown(_figures(target))]
        if target.rows:
            table = as_markdown(_rows(target), titled=False)
            title = f"What changed in {escape(target.target)} ({len(target.rows)} rows)"
            lines += ["", "<details>", f"<summary>{title}</summary>", "", table, "", "</details>"]
    if difference.memory:
        lines += ["", as_markdown(_table("memory", "Memory", difference.memory))]
    return "\n".join(lines) + "\n"


def render_text(difference: SizeDiff) -> str:
    """Plain text in aligned columns."""
    if not difference:
        return ""
    lines = [f"{_title(difference)}: {_headline(difference)}", *_sentences(difference)]
    lines = [printable(line) for line in lines]
    tables = [t for d in difference.targets for t in (_figures(d), _rows(d))]
    if difference.memory:
        tables.append(_table("memory", "Memory", difference.memory))
    for table in tables:
        if table.lines:
            lines += ["", printable(table.title), *_aligned(table)]
    return "\n".join(lines) + "\n"


def _title(difference: SizeDiff) -> str:
    return "Trainer" if difference.model == UNNAMED else f"Trainer for {difference.model}"


def _headline(difference: SizeDiff) -> str:
    """The change of the flash size of each target, in one phrase."""
    found = [(t.target, c) for t in difference.targets for c in t.figures if c.name == "Flash"]
    if not found:
        return "the same flash size"
    if len(found) == 1:
        return f"{_signed(found[0][1].delta)} B flash"
    return ", ".join(f"{_signed(change.delta)} B flash for {target}" for target, change in found)


def _sentences(difference: SizeDiff) -> Iterator[str]:
    yield from (f"{cause}." for cause in difference.causes)
    for verb, names in (("New target", difference.added), ("No longer built for", difference.removed)):
        if names:
            yield f"{verb}: {', '.join(names)}."


def _figures(target: TargetSizeDiff) -> Table:
    return _table("figures", target.target, target.figures)


def _rows(target: TargetSizeDiff) -> Table:
    lines = tuple(Line((_TITLES.get(c.kind, c.kind), c.name, *_cells(c))) for c in target.rows)
    return Table("rows", f"Rows of {target.target}", "", ("Part ", "Name ", "Old", "New", "Change"), lines)


def _table(key: str, title: str, changes: Sequence[SizeChange]) -> Table:
    lines = tuple(Line((change.name, *_cells(change))) for change in changes)
    return Table(key, title, "", ("What ", "Old", "New", "Change"), lines)


def _cells(change: SizeChange) -> tuple[int, int, str]:
    return change.old, change.new, _signed(change.delta)


def _signed(number: int) -> str:
    return f"{'+' if number > 0 else '−' if number < 0 else ''}{abs(number):,}"


def _aligned(table: Table) -> Iterator[str]:
    rows = [
        [c.strip() for c in table.columns],
        *([text(cell) for cell in line.cells] for line in table.lines),
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.columns))]
    for row in rows:
        cells = (
            cell.rjust(width) if table.numeric(i) else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
