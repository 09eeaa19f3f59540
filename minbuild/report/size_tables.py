"""Tables of what a library's bytes are: both builds side by side, steps, operators, everything else, sections."""

from __future__ import annotations

from collections.abc import Iterator

from minbuild.ir.size_report import KINDS, Group, Row, TargetReport
from minbuild.report.table import Cell, Line, Table, percent, saving
from minbuild.report.time_tables import milliseconds


def composition(target: TargetReport) -> Table:
    """Both builds by kind of owner."""
    lines = [_group_line(g, g.title) for g in target.groups]
    lines.append(
        Line(
            ("File", target.full.file, target.trimmed.file, saving(target.trimmed.file, target.full.file)),
            "total",
        )
    )
    for label, f, t in (
        ("of it loaded segments", target.full.loaded, target.trimmed.loaded),
        ("after gzip -9", target.full.download, target.trimmed.download),
    ):
        lines.append(Line((label, f, t, saving(t, f)), "row"))
    return Table(
        "composition",
        "Full and trimmed build",
        "Every kernel and type against only what this model runs, same sources, same flags.",
        ("Part ", "Full", "Trimmed", "Change"),
        tuple(lines),
    )


def _group_line(group: Group, title: str) -> Line:
    return Line(
        (title, group.full_bytes, group.bytes, saving(group.bytes, group.full_bytes)), "row", group.kind
    )


def waterfall(target: TargetReport) -> Table:
    """From every kernel to the trimmed file, one step at a time; no lines where it was left out."""
    lines = []
    for before, bar in zip((None, *target.waterfall), target.waterfall, strict=False):
        saved = "" if before is None else before.file - bar.file
        loo = "" if bar.leave_one_out is None else bar.leave_one_out
        level = "total" if bar is target.waterfall[-1] else "row"
        lines.append(Line((bar.step, bar.meaning, bar.file, saved, loo), level))
    return Table(
        "waterfall",
        "Size waterfall",
        "Every figure is a real build. Saved: by this step, after those above it. Leave-one-out: growth of the "
        "trimmed file when only this step is left out.",
        ("Step ", "Meaning ", "File", "Saved", "Leave-one-out"),
        tuple(lines),
    )


def operators(target: TargetReport, limit: int | None = None) -> Table:
    """A row per operator, largest first. With `limit`, the smaller ones are added up in one row. What removing an
    operator saves is a column where it was measured; savings overlap, so they have no sum."""
    measured = any(r.leave_one_out is not None for r in target.rows)
    rows = sorted((r for r in target.rows if r.kind == "operator"), key=lambda r: (-r.bytes, r.name))
    shown = rows if limit is None or len(rows) <= limit else rows[: limit - 1]
    timed = any(r.time is not None for r in rows)
    lines = [_operator_line(r, target, measured, timed) for r in shown]
    file = target.trimmed.file
    blank = ("",) * (measured + timed)
    if rest := sum(r.bytes for r in rows[len(shown) :]):
        name = f"{len(rows) - len(shown)} smaller operators"
        lines.append(Line((name, "", "", "", rest, percent(rest, file), *blank), kind="operator"))
    total = sum(r.bytes for r in rows)
    lines.append(
        Line(("All operators, own code", "", "", "", total, percent(total, file), *blank), "sum", "operator")
    )
    return Table(
        "operators",
        "Operators",
        "By kernel file, with the model's operators that run its kernels. Own bytes go when the row goes; "
        "shared code has rows of its own."
        + (
            " LOO (leave-one-out) saving: bytes by which a link without the operator's kernels is smaller."
            if measured
            else ""
        ),
        (
            "Operator ",
            "Serves ",
            "Nodes",
            "Types ",
            "Own bytes",
            "Of file",
            *(("LOO saving",) if measured else ()),
            *(("ms a step, host",) if timed else ()),
        ),
        tuple(lines),
    )


def _operator_line(row: Row, target: TargetReport, measured: bool, timed: bool) -> Line:
    serves = dict.fromkeys(title.rpartition(":")[2] for title in row.users)
    cells: tuple[Cell, ...] = (
        row.name,
        ", ".join(serves),
        len(row.nodes),
        ", ".join(row.types),
        row.bytes,
        percent(row.bytes, target.trimmed.file),
        *(("" if row.leave_one_out is None else row.leave_one_out,) if measured else ()),
        *(("" if row.time is None else milliseconds(row.time.milliseconds),) if timed else ()),
    )
    return Line(cells, kind="operator", detail=detail(row))


def detail(row: Row) -> str:
    """Symbols and nodes of a row in one line."""
    symbols = ", ".join(f"{' = '.join(s.names)} {s.bytes:,} B" for s in row.symbols)
    nodes = f"nodes: {', '.join(row.nodes)}" if row.nodes else ""
    return "; ".join(part for part in (symbols, nodes) if part)


def others(target: TargetReport, limit: int | None = None) -> Table:
    """Everything that is no operator, group by group, then the file's total. With `limit`, the largest rows of all
    groups, and the smaller ones added up in one."""
    lines = list(_by_group(target)) if limit is None else list(_largest(target, limit))
    own = sum(r.bytes for r in target.rows if r.kind == "operator")
    file = target.trimmed.file
    lines.append(Line((KINDS["operator"], "above", own, percent(own, file)), "sum", "operator"))
    lines.append(Line(("The file", "", file, percent(file, file)), "total"))
    return Table(
        "others",
        "Everything else in the file",
        "With the operators above, these rows are the file: each byte is in exactly one row.",
        ("Owner ", "Used by ", "Bytes", "Of file"),
        tuple(lines),
    )


def _by_group(target: TargetReport) -> Iterator[Line]:
    file = target.trimmed.file
    for group in target.groups:
        if group.kind == "operator" or not group.bytes:
            continue
        yield Line((group.title, "", "", ""), "head", group.kind)
        yield from (_other(row, file) for row in target.rows if row.kind == group.kind)
        sums = (f"{group.title}, in all", "", group.bytes, percent(group.bytes, file))
        yield Line(sums, "sum", group.kind)


def _largest(target: TargetReport, limit: int) -> Iterator[Line]:
    file = target.trimmed.file
    rows = sorted((r for r in target.rows if r.kind != "operator"), key=lambda r: (-r.bytes, r.name))
    shown = rows if len(rows) <= limit else rows[: limit - 1]
    yield from (_other(row, file) for row in shown)
    if rest := sum(r.bytes for r in rows[len(shown) :]):
        yield Line((f"{len(rows) - len(shown)} smaller ones", "", rest, percent(rest, file)))


def _other(row: Row, file: int) -> Line:
    return Line((row.name, _users(row), row.bytes, percent(row.bytes, file)), "row", row.kind, detail(row))


def _users(row: Row) -> str:
    return ", ".join(row.users) if len(row.users) <= 6 else f"{len(row.users)} operators"


def sections(target: TargetReport) -> Table:
    """Sections of both builds; the file columns add up to the files."""
    lines = [
        Line((s.name, s.full_file, s.trimmed_file, s.full_memory, s.trimmed_memory)) for s in target.sections
    ]
    total = Line(
        (
            "Sum",
            target.full.file,
            target.trimmed.file,
            sum(s.full_memory for s in target.sections),
            sum(s.trimmed_memory for s in target.sections),
        ),
        "total",
    )
    return Table(
        "sections",
        "Sections",
        "",
        ("Section ", "Full, file", "Trimmed, file", "Full, memory", "Trimmed, memory"),
        (*lines, total),
    )


def regions(target: TargetReport) -> Table:
    """Bytes of both builds by where they are while the library runs."""
    columns = ("full_file", "trimmed_file", "full_memory", "trimmed_memory")
    rows = [(r.title, r.place, *(getattr(r, column) for column in columns)) for r in target.regions]
    sums = (sum(getattr(r, column) for r in target.regions) for column in columns)
    return Table(
        "regions",
        "Regions",
        "Flash is read in place or mapped; memory is what sections take when the library is loaded.",
        ("Region ", "Where ", "Full, file", "Trimmed, file", "Full, memory", "Trimmed, memory"),
        (*map(Line, rows), Line(("Sum", "", *sums), "total")),
    )
