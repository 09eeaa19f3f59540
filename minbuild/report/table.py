"""Tables of plain cells, and how a cell is written: the same in console, Markdown and HTML."""

from __future__ import annotations

from dataclasses import dataclass

from minbuild.escape import printable

Cell = str | int


@dataclass(frozen=True, slots=True)
class Line:
    """A table row. `level` is "row", "head" (a group's title), "sum" (a subtotal) or "total"; `kind` the kind
    of owner it belongs to; `detail` a text with details."""

    cells: tuple[Cell, ...]
    level: str = "row"
    kind: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table. A column whose title ends in a blank is text, all others hold numbers, flush right. Where columns
    are many and narrow they stand `close` together."""

    key: str
    title: str
    note: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    close: bool = False

    def numeric(self, column: int) -> bool:
        return not self.columns[column].endswith(" ")


@dataclass(frozen=True, slots=True)
class Fact:
    """A headline number with its label and what it means."""

    label: str
    value: int
    unit: str
    note: str


def text(cell: Cell) -> str:
    """Numbers with thousands separated; everything else in one printable line."""
    return f"{cell:,}" if isinstance(cell, int) else printable(cell)


def percent(part: int, whole: int) -> str:
    """`17.3 %`; a dash when there is no whole."""
    return f"{100 * part / whole:.1f} %" if whole else "–"


def saving(trimmed: int, full: int) -> str:
    """`−82.7 %` of the full build."""
    if not full:
        return "–"
    change = 100 * (trimmed - full) / full
    return f"{'−' if change < 0 else '+'}{abs(change):.1f} %"


def kib(value: int) -> str:
    return f"{value / 1024:.1f} KiB" if value < 1 << 20 else f"{value / (1 << 20):.1f} MiB"
