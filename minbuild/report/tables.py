"""The report as tables of plain cells, which console, Markdown and HTML print and so cannot disagree: here what comes
before and after the bytes."""

from __future__ import annotations

from collections.abc import Iterable

from minbuild.ir.size_report import ModelReport, SizeReport, Smaller, TargetReport
from minbuild.report.table import Fact, Line, Table, saving


def headline(report: SizeReport, target: TargetReport) -> tuple[Fact, ...]:
    """The numbers people come for, the most wanted first."""
    facts = report.model
    model = facts.plan_bytes + facts.checkpoint_bytes
    stack = target.stack
    return (
        Fact(
            "Library file",
            target.trimmed.file,
            "B",
            f"{saving(target.trimmed.file, target.full.file)} against "
            f"{target.full.file:,} B with every kernel",
        ),
        Fact("Loadable", target.trimmed.loadable, "B", "sections that are loaded, contents only"),
        Fact(
            "With the model",
            target.trimmed.loadable + model,
            "B",
            "loadable and model files: what flash holds",
        ),
        Fact("Download", target.trimmed.download, "B", "the file after gzip -9"),
        Fact(
            "RAM",
            target.ram,
            "B",
            f"{_at(facts)}arena {facts.arena:,} B, persistent {facts.persistent.total:,} B, "
            f"static {target.static.total:,} B",
        ),
        *(
            Fact(f"RAM at {s.symbol} {s.size}", ram_at(report, target, s), "B", f"arena {s.arena:,} B")
            for s in facts.smaller[:1]
        ),
        *((Fact("Stack", stack.deepest, "B", f"the deepest, in {stack.call}, measured"),) if stack else ()),
        Fact("Kernels", facts.kernels, "", f"of {facts.full_kernels:,} in the full build"),
        Fact(
            "Model files",
            model,
            "B",
            f"plan {facts.plan_bytes:,} B, checkpoint {facts.checkpoint_bytes:,} B",
        ),
    )


def _at(facts: ModelReport) -> str:
    return "".join(f"{symbol} {size}, " for symbol, size in facts.sizes)


def ram_at(report: SizeReport, target: TargetReport, smaller: Smaller) -> int:
    """RAM with the arena of a smaller batch."""
    return target.ram - report.model.arena + smaller.arena


def in_short(report: SizeReport, target: TargetReport) -> str:
    """What decides whether the trainer fits, in one sentence."""
    facts = report.model
    model = facts.plan_bytes + facts.checkpoint_bytes
    at = f" at {', '.join(f'{symbol} {size}' for symbol, size in facts.sizes)}" if facts.sizes else ""
    less = [f", {ram_at(report, target, s):,} B at {s.symbol} {s.size}" for s in facts.smaller]
    return (
        f"{target.target}: flash {target.trimmed.loadable + model:,} B (library {target.trimmed.loadable:,}, "
        f"model {model:,}); RAM {target.ram:,} B{at}{''.join(less)}"
        + (f"; stack {target.stack.deepest:,} B." if target.stack else ".")
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
                t.stack.deepest if t.stack else "–",
            )
        )
        for t in report.targets
    )
    return Table(
        "targets",
        "Targets",
        "",
        ("Target ", "Full", "Trimmed", "Change", "Loadable", "Download", "RAM", "Stack"),
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
