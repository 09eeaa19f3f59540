"""Tables for those who need it smaller still: what bytes are for, and what else could be left out."""

from __future__ import annotations

from collections.abc import Iterator

from minbuild.ir.size_report import Phase, SizeReport, TargetReport
from minbuild.report import boards
from minbuild.report.element_types import types
from minbuild.report.memory_tables import live_tensors, model_tensors, time_over_memory
from minbuild.report.table import Line, Table, percent

_OWNERS = 4  # named in a row before the others are counted


def all_tables(report: SizeReport, target: TargetReport) -> Iterator[Table]:
    """The suggestions where there are any, and `further` tables."""
    if target.suggestions:
        yield suggestion_table(target)
    yield from further(report, target)


def further(report: SizeReport, target: TargetReport, limit: int | None = None) -> Iterator[Table]:
    """Those of these tables that there is anything for; `limit` bounds the tensors. `report` and `target` have the
    figures."""
    if target.features:
        yield speed_features(target)
    if report.board:
        yield boards.table(report, target, report.board)
    if target.phases:
        yield phases(target)
    if target.types:
        yield types(target)
    if any(arena.live for arena in report.model.arenas):
        yield live_tensors(report.model, limit)
    for facts in report.models or (report.model,):
        if facts.ram_price:
            yield time_over_memory(facts, facts.ram_price)
    if report.model.tensors:
        yield model_tensors(report.model, limit)


def speed_features(target: TargetReport) -> Table:
    """Features for speed: the choice, the bytes that a build without each does not have, and the reason."""
    lines = tuple(
        Line(
            (
                feature.title,
                feature.chosen,
                "" if feature.file is None else feature.file,
                "" if feature.ram is None else feature.ram,
                feature.reason,
            )
        )
        for feature in target.features
    )
    return Table(
        "features",
        "Features for speed",
        "The sizes of the model decide on them. Bytes of the library's file and of RAM are those that a build without "
        "the feature does not have; empty where there was no such build.",
        ("Feature ", "Chosen ", "Library", "RAM", "Why "),
        lines,
    )


def phases(target: TargetReport) -> Table:
    """The bytes of the file by phase of training."""
    file = target.trimmed.file
    lines = [Line((p.title, _owners(p), p.bytes, percent(p.bytes, file))) for p in target.phases]
    total = sum(p.bytes for p in target.phases)
    lines.append(Line(("The whole file", "", total, percent(total, file)), "total"))
    return Table(
        "phases",
        "By phase of training",
        "Own and shared code by the phases whose steps run it; what every phase needs has rows by kind.",
        ("Phase ", "What ", "Bytes", "Of file"),
        tuple(lines),
    )


def _owners(phase: Phase) -> str:
    shown = ", ".join(phase.owners[:_OWNERS])
    more = len(phase.owners) - _OWNERS
    return f"{shown} and {more} more" if more > 0 else shown


def suggestion_table(target: TargetReport) -> Table:
    """Build options that would save more, largest saving first."""
    lines = tuple(Line((a.title, a.file, a.model, a.ram, a.changes, a.how)) for a in target.suggestions)
    return Table(
        "suggestions",
        "Suggestions",
        "Every saving was planned and built. Bytes saved of the library's file, of the model's files, and of RAM.",
        ("Suggestion ", "File", "Model", "RAM", "What it changes ", "How "),
        lines,
    )
