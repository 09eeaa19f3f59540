"""SizeReport -> the first screen: verdict, sizes beside other trainers, the best savings."""

from __future__ import annotations

from collections.abc import Iterator

from minbuild.escape import printable
from minbuild.ir.size_report import SizeReport, Suggestion, TargetReport
from minbuild.report.boards import line
from minbuild.report.peers import peers, times
from minbuild.report.report_tables import flash_total, ram_at
from minbuild.report.table import saving
from minbuild.report.verdict import NOT_PROVEN, is_proven, reason, verdicts

MOST_LINES, WIDTH = 20, 60  # of the whole screen, with the two lines that the command adds
_SAVINGS = 3
_TARGETS = 4  # rows; more are counted
_NAME, _NUMBER = 22, 9


def render(report: SizeReport) -> str:
    """At most 18 lines. Tables are at most 60 columns wide; the first line names every target."""
    lines = [printable(f"{report.model.name}: {verdicts(report)}")]
    lines += [printable(line) for line in _reasons(report)]
    lines += [printable(line) for line in (_one(report) if len(report.targets) == 1 else _several(report))]
    first = next((t for t in report.targets if t.target.startswith("x86_64-linux")), report.targets[0])
    if report.board:
        lines.append(_cut(line(report, report.targets[0], report.board), WIDTH))
    lines += ["", *_beside(first)]
    if savings := [printable(line) for line in _savings(first.suggestions[:_SAVINGS])]:
        lines += ["", *savings]
    return "\n".join(lines) + "\n"


def _reasons(report: SizeReport) -> Iterator[str]:
    found = dict.fromkeys(reason(t) for t in report.targets if not is_proven(t))
    if found:
        first, *rest = found
        more = f" ({len(rest)} further reasons are in the report)" if rest else ""
        yield f"{NOT_PROVEN}: {first}{more}"


def _one(report: SizeReport) -> Iterator[str]:
    target, facts = report.targets[0], report.model
    at = ", ".join(f"{symbol} {size}" for symbol, size in facts.sizes[:2])
    least = facts.smaller[0] if facts.smaller else None
    less = ""
    if least:  # its symbol is written once where it is the only one
        symbol = "" if len(facts.sizes) == 1 else f"{least.symbol} "
        less = f"{ram_at(report, target, least):,} at {symbol}{least.size}"
    stack = target.stack
    yield _fact(
        "Library", target.trimmed.file, f"{saving(target.trimmed.file, target.full.file)} of the full build"
    )
    yield _fact("Flash total", flash_total(report, target), "with plan and checkpoint")
    yield _fact("RAM", target.ram, "; ".join(text for text in (f"at {at}" if at else "", less) if text))
    yield _fact("Peak stack", stack.peak, f"in {stack.call}") if stack else "Peak stack    not measured"


def _fact(label: str, value: int, note: str) -> str:
    return _cut(f"{label:<12}{value:>12,} B  {note}".rstrip(), WIDTH)


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1]}…"


def _several(report: SizeReport) -> Iterator[str]:
    head = ("Library", "Flash", "RAM", "Stack")
    most = _TARGETS - bool(report.board)
    shown = report.targets if len(report.targets) <= most else report.targets[: most - 1]
    rows = [head]
    for target in shown:
        stack = f"{target.stack.peak:,}" if target.stack else "–"
        rows.append(
            (f"{target.trimmed.file:,}", f"{flash_total(report, target):,}", f"{target.ram:,}", stack)
        )
    widths = [max(_NUMBER, 1 + max(map(len, column))) for column in zip(*rows, strict=True)]
    name = min(_NAME, WIDTH - sum(widths))
    for title, cells in zip(("Bytes", *(target.target for target in shown)), rows, strict=True):
        numbers = "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        yield f"{_cut(title, name - 1):<{name}}{numbers}"
    if rest := len(report.targets) - len(shown):
        yield f"{rest} more targets are in the report"


def _beside(target: TargetReport) -> Iterator[str]:
    own = target.trimmed.file
    yield "Library beside others (x86-64, sources in the report)"
    yield f"  {_cut('minbuild, ' + target.target, 35):<36}{own:>11,} B"
    for peer in peers():
        yield f"  {peer.name:<36}{peer.bytes:>11,} B {times(peer, own):>7}"


def _savings(suggestions: tuple[Suggestion, ...]) -> Iterator[str]:
    """The options that save most, as measured."""
    if suggestions:
        yield "Measured savings"
    for each in suggestions:
        kinds = (("library", each.file), ("model", each.model), ("RAM", each.ram))
        saved = ", ".join(f"{size:,} B {kind}" for kind, size in kinds if size)
        yield f"  {each.how}: {saved}"
