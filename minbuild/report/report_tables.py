"""The report as tables of plain cells, which console, Markdown and HTML print and so cannot disagree: here what comes
before and after the bytes."""

from __future__ import annotations

from collections.abc import Iterable

from minbuild.ir.size_report import ModelReport, SizeReport, Smaller, TargetReport
from minbuild.report.table import Fact, Line, Table, saving
from minbuild.report.verdict import proof, verdict


def headline(report: SizeReport, target: TargetReport) -> tuple[Fact, ...]:
    """The key figures of a report, the most requested first."""
    facts = report.model
    model = model_bytes(report)
    stack = target.stack
    return (
        Fact(
            "Library file",
            target.trimmed.file,
            "B",
            f"{saving(target.trimmed.file, target.full.file)} against "
            f"{target.full.file:,} B with every kernel",
        ),
        Fact("Loaded segments", target.trimmed.loaded, "B", "contents of the sections that are loaded"),
        Fact(
            "Flash total",
            flash_total(report, target),
            "B",
            "loaded segments and model files",
        ),
        Fact("Download", target.trimmed.download, "B", "the file after gzip -9"),
        Fact(
            "RAM",
            target.ram,
            "B",
            f"{_at(facts)}arena {facts.arena:,} B, persistent {facts.persistent.total:,} B, "
            f"session {target.session.total:,} B, static {target.static.total:,} B",
        ),
        *(
            Fact(f"RAM at {s.symbol} {s.size}", ram_at(report, target, s), "B", f"arena {s.arena:,} B")
            for s in facts.smaller[:1]
        ),
        *((Fact("Peak stack", stack.peak, "B", f"measured in {stack.call}"),) if stack else ()),
        Fact("Kernels", facts.kernels, "", f"of {facts.full_kernels:,} in the full build"),
        Fact(
            "Model files",
            model,
            "B",
            f"plan {facts.plan_bytes:,} B, checkpoint {facts.checkpoint_bytes:,} B",
        ),
    )


def model_bytes(report: SizeReport) -> int:
    """Bytes of the model files: plan and checkpoint."""
    return report.model.plan_bytes + report.model.checkpoint_bytes


def flash_total(report: SizeReport, target: TargetReport) -> int:
    """Bytes of flash: the loaded segments of the library and the model files."""
    return target.trimmed.loaded + model_bytes(report)


def _at(facts: ModelReport) -> str:
    return "".join(f"{symbol} {size}, " for symbol, size in facts.sizes)


def ram_at(report: SizeReport, target: TargetReport, smaller: Smaller) -> int:
    """RAM with the arena of a smaller batch. `report` and `target` have the figures at the default batch; `smaller`
    is the batch and its arena. In bytes."""
    return target.ram - report.model.arena + smaller.arena


def one_line(report: SizeReport, target: TargetReport) -> str:
    """The figures that decide whether the trainer fits, in one sentence."""
    facts, model = report.model, model_bytes(report)
    at = f" at {', '.join(f'{symbol} {size}' for symbol, size in facts.sizes)}" if facts.sizes else ""
    less = [f", {ram_at(report, target, s):,} B at {s.symbol} {s.size}" for s in facts.smaller]
    return (
        f"{target.target}: {verdict(target)}; flash {flash_total(report, target):,} B "
        f"(library {target.trimmed.loaded:,}, model {model:,}); RAM {target.ram:,} B{at}{''.join(less)}"
        + (f"; stack {target.stack.peak:,} B." if target.stack else ".")
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
    """The tables before the targets: their comparison and the models, where there are several."""
    found = (comparison(report),) if len(report.targets) > 1 else ()
    return (*found, models(report)) if report.models else found


def comparison(report: SizeReport) -> Table:
    """One row per target."""
    lines = tuple(
        Line(
            (
                t.target,
                verdict(t),
                t.full.file,
                t.trimmed.file,
                saving(t.trimmed.file, t.full.file),
                t.trimmed.loaded,
                t.trimmed.download,
                t.ram,
                t.stack.peak if t.stack else "–",
            )
        )
        for t in report.targets
    )
    return Table(
        "targets",
        "Targets",
        "",
        ("Target ", "Proof ", "Full", "Trimmed", "Change", "Loaded", "Download", "RAM", "Peak stack"),
        lines,
    )


def provenance(report: SizeReport, target: TargetReport) -> Table:
    """The data needed to reproduce these figures."""
    pairs: Iterable[tuple[str, str]] = (
        ("Proof", proof(target)),
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
