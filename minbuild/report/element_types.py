"""Which element types operators are compiled for, and which the full build has as well."""

from __future__ import annotations

from collections.abc import Sequence

from minbuild.ir.size_report import TargetReport, TypeRow
from minbuild.report.table import Line, Table

HERE, FULL = "●", "○"  # compiled, only in the full build
# C++ name -> heading, in the order of the columns.
_SHORT = {"float": "f32", "double": "f64", "half": "f16", "bfloat16": "bf16"} | {
    f"{sign}int{bits}_t": f"{sign or 'i'}{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}


def types(target: TargetReport) -> Table:
    """A row per kernel file that is compiled, and one for all others; a column per element type."""
    named = {name for row in target.types for name in row.full_types}
    columns = [name for name in _SHORT if name in named] + sorted(named - _SHORT.keys())
    rows = [row for row in target.types if row.kernels]
    others = [row for row in target.types if not row.kernels]
    lines = [_line(row, columns) for row in rows]
    if others:
        lines.append(_line(_rest(others), columns))
    kernels, full = (
        sum(each) for each in zip(*((r.kernels, r.full_kernels) for r in target.types), strict=True)
    )
    lines.append(Line(("All operators", *("" for _ in columns), kernels, full), "total"))
    return Table(
        "types",
        "Element types",
        f"{HERE} compiled, {FULL} only in the full build. Kernels that only move elements have the unsigned type of "
        "their size.",
        ("Operator ", *(f"{_SHORT.get(name, name)} " for name in columns), "Kernels", "In full"),
        tuple(lines),
        close=True,
    )


def _rest(rows: Sequence[TypeRow]) -> TypeRow:
    types = tuple(sorted({name for row in rows for name in row.full_types}))
    what = "other operator" if len(rows) == 1 else "other operators"
    return TypeRow(f"{len(rows)} {what}", (), types, 0, sum(row.full_kernels for row in rows))


def _line(row: TypeRow, columns: Sequence[str]) -> Line:
    marks = (HERE if name in row.types else FULL if name in row.full_types else "" for name in columns)
    return Line((row.name, *marks, row.kernels, row.full_kernels), kind="operator")
