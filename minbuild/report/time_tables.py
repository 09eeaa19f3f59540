"""The table of operators by time, memory and arithmetic rate."""

from __future__ import annotations

from minbuild.ir.operator_times import Timing
from minbuild.ir.size_report import SizeReport, TargetReport
from minbuild.report.table import Line, Table, percent


def operator_times(report: SizeReport, target: TargetReport, limit: int | None = None) -> tuple[Table, ...]:
    """The table of operators of `target`, the slowest first, with times as measured; no table
    where `report` has none. With `limit`, the faster ones are added up in one row."""
    timing = target.timing
    if timing is None:
        return ()
    if timing.reason:
        return (Table("times", _TITLE, "", ("Not measured ",), (Line((timing.reason,)),)),)
    rows = [(row.name, row.time) for row in target.rows if row.time is not None]
    rows.sort(key=lambda row: (-row[1].milliseconds, -row[1].eval_milliseconds, row[0]))
    shown = rows if limit is None or len(rows) <= limit else rows[: limit - 1]
    whole = sum(time.milliseconds for _, time in rows)
    lines = [
        Line(
            (
                name,
                milliseconds(time.milliseconds),
                _share(time.milliseconds, whole),
                milliseconds(time.eval_milliseconds),
                "–" if time.gflops is None else f"{time.gflops:,.2f}",
                "–" if time.gflops is None else _share(time.gflops, timing.peak_gflops),
                time.live_bytes,
            ),
            kind="operator",
        )
        for name, time in shown
    ]
    if rest := [time for _, time in rows[len(shown) :]]:
        slower = sum(time.milliseconds for time in rest)
        evaluation = milliseconds(sum(time.eval_milliseconds for time in rest))
        live = max(time.live_bytes for time in rest)
        name = f"{len(rest)} faster operators"
        lines.append(Line((name, milliseconds(slower), _share(slower, whole), evaluation, "", "", live)))
    evaluation = milliseconds(sum(time.eval_milliseconds for _, time in rows))
    lines.append(
        Line(
            (
                "All operators",
                milliseconds(whole),
                _share(whole, whole),
                evaluation,
                "",
                "",
                report.model.arena,
            ),
            "total",
        )
    )
    peak = f"{timing.peak_gflops:,.2f}"
    lines.append(Line((f"Peak of this machine ({timing.target})", "", "", "", peak, _share(1, 1), "")))
    return (Table("times", _TITLE, _note(report, target, timing), _COLUMNS, tuple(lines)),)


_TITLE = "Time and memory of operators, measured on this machine"
_COLUMNS = ("Operator ", "ms a step", "Of step", "ms eval", "GFLOP/s", "Of peak", "Live RAM")


def _note(report: SizeReport, target: TargetReport, timing: Timing) -> str:
    """Where the times come from, and how to read the columns."""
    other = "" if timing.target == target.target else f", not {target.target}"
    sizes = ", ".join(f"{name} {size}" for name, size in report.model.sizes)
    return (
        f"Measured on the machine that built the library ({timing.target}{other}; {timing.machine}), one thread"
        f"{f', {sizes}' if sizes else ''}: every step counts with its fastest of {timing.runs} runs. A step is a "
        "training step with its update. GFLOP/s: multiplications and additions of products and convolutions; the "
        f"peak, {timing.peak_gflops:,.1f} GFLOP/s, is of the same without memory, in the vectors that the library has. "
        "Live RAM: bytes live in the arena at the worst step of the operator; the last row is the largest arena."
    )


def milliseconds(value: float) -> str:
    """Milliseconds, to the microsecond, where they are few."""
    return f"{value:,.3f}" if value < 100 else f"{value:,.1f}"


def _share(part: float, whole: float) -> str:
    return percent(round(part * 1e6), round(whole * 1e6))
