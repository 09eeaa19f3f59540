"""A table in lines of limited length: texts wrap between words, and no name goes on in the next line."""

from __future__ import annotations

from dataclasses import replace

from minbuild.report.table import Cell, Table, text

_GAPS = (3, 2)  # characters between columns: the first with which no name must be cut, else the last
_CLOSE = (1,)
_SHORTEST = 12  # characters that names keep


def fit(table: Table, width: int) -> tuple[Table, tuple[int, ...], int]:
    """The table with names cut in their middle where that cannot be helped, the width of every column, and the gap
    between columns. Columns of numbers stay as they are: where those alone have no room, lines are longer."""
    columns = range(len(table.columns))
    cells = [
        [title.strip(), *(text(x.cells[i]) for x in table.lines)] for i, title in enumerate(table.columns)
    ]
    words = [
        each if table.numeric(i) else [w for c in each for w in c.split()] for i, each in enumerate(cells)
    ]
    narrowest, most = (tuple(max(map(len, each), default=0) for each in found) for found in (words, cells))
    texts = [i for i in columns if not table.numeric(i)]
    gaps = _CLOSE if table.close else _GAPS
    gap = next((g for g in gaps if sum(narrowest) + g * (len(columns) - 1) <= width), gaps[-1])
    room = width - gap * (len(columns) - 1)
    narrowest = _narrowed(narrowest, tuple(min(size, _SHORTEST) for size in narrowest), texts, room)
    return _cut(table, narrowest), _narrowed(most, narrowest, texts, room), gap


def _narrowed(
    widths: tuple[int, ...], narrowest: tuple[int, ...], columns: list[int], room: int
) -> tuple[int, ...]:
    """The widths with the widest of these columns made narrower, as often as needed and not below `narrowest`."""
    found = list(widths)
    while sum(found) > room:
        able = [i for i in columns if found[i] > narrowest[i]]
        if not able:
            break
        found[max(able, key=lambda i: found[i])] -= 1
    return tuple(found)


def _cut(table: Table, widths: tuple[int, ...]) -> Table:
    def cell(i: int, value: Cell) -> Cell:
        if isinstance(value, int) or table.numeric(i):
            return value
        return " ".join(_short(word, widths[i]) for word in value.split(" "))

    lines = (replace(x, cells=tuple(cell(i, value) for i, value in enumerate(x.cells))) for x in table.lines)
    return replace(table, lines=tuple(lines))


def _short(word: str, room: int) -> str:
    """A word with `…` for its middle where it has no room; its end says more than its beginning."""
    if len(word) <= room:
        return word
    head = (room - 1) // 3
    return f"{word[:head]}…{word[len(word) - (room - 1 - head) :]}"
