"""The report as tables of plain cells: console, Markdown and HTML print these and so cannot disagree."""

from __future__ import annotations

from collections.abc import Iterable

from minbuild.report.cells import Cell, Fact, Line, Table, percent, saving
from minbuild.size.classify import KINDS
from minbuild.size.report import Arena, Group, ModelReport, Row, SizeReport, TargetReport


def headline(report: SizeReport, target: TargetReport) -> tuple[Fact, ...]:
    """The numbers people come for, the most wanted first."""
    facts = report.model
    peak = max((a.peak for a in facts.arenas), default=0)
    return (
        Fact(
            "Library file",
            target.trimmed.file,
            "B",
            f"{saving(target.trimmed.file, target.full.file)} against "
            f"{target.full.file:,} B with every kernel",
        ),
        Fact("Loadable", target.trimmed.loadable, "B", "sections that are loaded, contents only"),
        Fact("Download", target.trimmed.download, "B", "the file after gzip -9"),
        Fact(
            "RAM",
            target.ram,
            "B",
            f"arena {peak:,} B, persistent {facts.persistent.total:,} B, static {target.static.total:,} B",
        ),
        Fact("Kernels", facts.kernels, "", f"of {facts.full_kernels:,} in the full build"),
        Fact(
            "Model files",
            facts.plan_bytes + facts.checkpoint_bytes,
            "B",
            f"plan {facts.plan_bytes:,} B, checkpoint {facts.checkpoint_bytes:,} B",
        ),
    )


def models(report: SizeReport) -> Table:
    """A row per model that the library serves."""
    lines = tuple(
        Line(
            (
                m.name,
                m.kernels,
                m.plan_bytes,
                m.checkpoint_bytes,
                max((a.peak for a in m.arenas), default=0),
                m.persistent.total,
            )
        )
        for m in report.models
    )
    return Table(
        "models",
        "Models",
        "One library serves all of them, one at a time: memory below is for the largest.",
        ("Model ", "Kernels", "Plan", "Checkpoint", "Arena", "Persistent"),
        lines,
    )


def overview(report: SizeReport) -> tuple[Table, ...]:
    """What comes before the targets one by one: their comparison and the models, where there are several."""
    found = (comparison(report),) if len(report.targets) > 1 else ()
    return (*found, models(report)) if report.models else found


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
        ("of it loadable", target.full.loadable, target.trimmed.loadable),
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
        alone = "" if bar.alone is None else bar.alone
        level = "total" if bar is target.waterfall[-1] else "row"
        lines.append(Line((bar.step, bar.meaning, bar.file, saved, alone), level))
    return Table(
        "waterfall",
        "What each step is worth",
        "Every figure is a real build. Saved: by this step, after those above it. Alone: what the trimmed file "
        "grows by when only this step is left out.",
        ("Step ", "Meaning ", "File", "Saved", "Alone"),
        tuple(lines),
    )


def operators(target: TargetReport, limit: int | None = None) -> Table:
    """A row per operator, largest first. With `limit`, the smaller ones are added up in one row. What removing an
    operator saves is a column where it was measured; savings overlap, so they have no sum."""
    measured = any(r.removed is not None for r in target.rows)
    rows = sorted((r for r in target.rows if r.kind == "operator"), key=lambda r: (-r.bytes, r.name))
    shown = rows if limit is None or len(rows) <= limit else rows[: limit - 1]
    lines = [_operator_line(r, target, measured) for r in shown]
    file = target.trimmed.file
    blank = ("",) if measured else ()
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
        + (" If removed: what a link without the operator's kernels is smaller by." if measured else ""),
        (
            "Operator ",
            "Serves ",
            "Nodes",
            "Types ",
            "Own bytes",
            "Of file",
            *(("If removed",) if measured else ()),
        ),
        tuple(lines),
    )


def _operator_line(row: Row, target: TargetReport, measured: bool) -> Line:
    serves = dict.fromkeys(title.rpartition(":")[2] for title in row.users)
    cells: tuple[Cell, ...] = (
        row.name,
        ", ".join(serves),
        len(row.nodes),
        ", ".join(row.types),
        row.bytes,
        percent(row.bytes, target.trimmed.file),
        *(("" if row.removed is None else row.removed,) if measured else ()),
    )
    return Line(cells, kind="operator", detail=detail(row))


def detail(row: Row) -> str:
    """Symbols and nodes of a row in one line."""
    symbols = ", ".join(f"{' = '.join(s.names)} {s.bytes:,} B" for s in row.symbols)
    nodes = f"nodes: {', '.join(row.nodes)}" if row.nodes else ""
    return "; ".join(part for part in (symbols, nodes) if part)


def others(target: TargetReport) -> Table:
    """Everything that is no operator, group by group, then the file's total."""
    lines: list[Line] = []
    for group in target.groups:
        if group.kind == "operator" or not group.bytes:
            continue
        lines.append(Line((group.title, "", "", ""), "head", group.kind))
        lines += [
            Line(
                (r.name, _users(r), r.bytes, percent(r.bytes, target.trimmed.file)), "row", r.kind, detail(r)
            )
            for r in target.rows
            if r.kind == group.kind
        ]
        lines.append(
            Line(
                (f"{group.title}, in all", "", group.bytes, percent(group.bytes, target.trimmed.file)),
                "sum",
                group.kind,
            )
        )
    own = sum(r.bytes for r in target.rows if r.kind == "operator")
    lines.append(
        Line((KINDS["operator"], "above", own, percent(own, target.trimmed.file)), "sum", "operator")
    )
    lines.append(
        Line(
            ("The file", "", target.trimmed.file, percent(target.trimmed.file, target.trimmed.file)), "total"
        )
    )
    return Table(
        "others",
        "Everything else in the file",
        "With the operators above, these rows are the file: each byte is in exactly one row.",
        ("Owner ", "Used by ", "Bytes", "Of file"),
        tuple(lines),
    )


def _users(row: Row) -> str:
    return ", ".join(row.users) if len(row.users) <= 6 else f"{len(row.users)} operators"


def memory(facts: ModelReport, target: TargetReport) -> Table:
    """RAM while a session lives, and what is read in place."""
    p = facts.persistent
    at = ", ".join(f"{name} {value:,}" for name, value in facts.sizes)
    lines = [Line((f"Arena: {a.graph}", a.peak, _bound(a))) for a in facts.arenas]
    lines.append(
        Line(("Largest arena", max((a.peak for a in facts.arenas), default=0), "one serves all"), "sum")
    )
    lines += [
        Line(("Parameters", p.parameters, "trained")),
        Line(("Gradients", p.gradients, "")),
        Line(("Optimizer state", p.optimizer, "")),
        Line(("State", p.state, "running statistics" if p.parameters else "what training steps update")),
        Line(("Counters and padding", p.other, "")),
        Line(("Persistent", p.total, ""), "sum"),
        Line(("Static: initialised data", target.static.data, ".data")),
        Line(("Static: zeroed data", target.static.bss, ".bss")),
        Line(("RAM", target.ram, "largest arena + persistent + static"), "total"),
        Line(("Frozen parameters", p.frozen, "read in place from the checkpoint")),
        Line(("Plan file", facts.plan_bytes, "read in place")),
        Line(("Checkpoint file", facts.checkpoint_bytes, "")),
    ]
    return Table(
        "memory",
        "Memory",
        f"At {at}." if at else "Every size of this model is fixed.",
        ("What ", "Bytes", "Remark "),
        tuple(lines),
    )


def _bound(arena: Arena) -> str:
    over = f" (+{percent(arena.peak - arena.bound, arena.bound)})" if arena.bound else ""
    return f"least possible {arena.bound:,}{over}"


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


def comparison(report: SizeReport) -> Table:
    """One row per target."""
    lines = tuple(
        Line(
            (
                t.target,
                t.full.file,
                t.trimmed.file,
                saving(t.trimmed.file, t.full.file),
                t.trimmed.loadable,
                t.trimmed.download,
                t.ram,
            )
        )
        for t in report.targets
    )
    return Table(
        "targets",
        "Targets",
        "",
        ("Target ", "Full", "Trimmed", "Change", "Loadable", "Download", "RAM"),
        lines,
    )


def provenance(report: SizeReport, target: TargetReport) -> Table:
    """What it takes to make these numbers again."""
    pairs: Iterable[tuple[str, str]] = (
        ("Verified", proof(target)),
        ("Target", target.target),
        ("Toolchain", target.toolchain),
        ("Flags", " ".join(target.flags)),
        ("Exports", ", ".join(target.exports) or "none"),
        ("Imports", ", ".join(target.imports) or "none"),
        ("Library sha256", target.digest),
        *((f"{name} sha256", digest) for name, digest in report.model.files),
        ("minbuild", report.model.minbuild),
        *(("Note", note) for note in report.model.notes),
    )
    return Table(
        "provenance", "Where this comes from", "", ("What ", "Value "), tuple(Line(p) for p in pairs)
    )


def proof(target: TargetReport) -> str:
    """What was proven about the trimmed build, with the worst deviation where a reference was given."""
    if not target.verification:
        return "not run"
    worst = target.verification.worst
    measured = "" if worst is None else f" Worst deviation: {worst:.3g} times the reference's own noise."
    return target.verification.text + measured
