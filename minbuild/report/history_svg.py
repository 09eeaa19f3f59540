"""A history as a picture: a panel for each figure, a line for each target, a point for each build. One SVG that needs
nothing else, in light and dark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from minbuild.escape import printable
from minbuild.ir.size_record import SizeRecord, TargetFigures

FIGURES: Mapping[str, str] = {
    "file": "Library file",
    "loaded": "Loaded segments",
    "download": "Download",
    "ram": "RAM",
    "stack": "Peak stack",
}  # figures of a target, and what the report calls them
_WIDTH, _PLOT, _GAP = 960, 150, 62  # of the picture; height of a panel, and between two
_LEFT, _RIGHT, _TOP = 96, 210, 84
_COLOURS = (("#2f6690", "#7db4e0"), ("#b06a38", "#e0a070"), ("#38827f", "#6cc3bf"), ("#7566a0", "#b3a5de"))
_DASHES = ("", "7 4", "2 3")  # colours come again with other dashes, so that no two of 12 targets look alike
_STYLE = """text { font: 13px system-ui, sans-serif; fill: #1c2024; } .soft { fill: #5f666e; font-size: 12px; }
.title { font-size: 19px; font-weight: 650; } .name { font-weight: 600; }
.grid { stroke: #d9d9d4; } .paper { fill: #fbfbf9; } path { fill: none; stroke-width: 2; } """
_DARK = """text { fill: #e7e9ea; } .soft { fill: #98a1a9; } .grid { stroke: #33393e; } .paper { fill: #15181b; } """


def render(records: Sequence[SizeRecord], figures: Sequence[str] = ("file", "ram")) -> str:
    """The picture of `records`, oldest first, with a panel for each of `figures` that any of them has."""
    panels = [name for name in figures if any(_values(records, name))]
    targets = list(dict.fromkeys(t.target for record in records for t in record.targets))
    height = _TOP + len(panels) * (_PLOT + _GAP)
    first, last = (_label(records, at) for at in (0, len(records) - 1))
    title = f"{printable(records[-1].model)}: sizes of {len(records)} builds, {first} to {last}"
    light, dark = (
        "".join(
            f".t{i} {{ {kind}: {pair[shade]}; }} " for i, pair in enumerate(_COLOURS) for kind in ("stroke",)
        )
        + "".join(f"circle.t{i} {{ fill: {pair[shade]}; }} " for i, pair in enumerate(_COLOURS))
        for shade in (0, 1)
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}">',
        f"<style>{_STYLE}{light}@media (prefers-color-scheme: dark) {{ {_DARK}{dark}}}</style>",
        f'<rect class="paper" width="{_WIDTH}" height="{height}"/>',
        f'<text class="title" x="24" y="38">{escape(printable(records[-1].model))}</text>',
        f'<text class="soft" x="24" y="58">{escape(title)}</text>',
    ]
    for place, name in enumerate(panels):
        parts += _panel(records, name, targets, _TOP + place * (_PLOT + _GAP) + 26)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(records: Sequence[SizeRecord], name: str, targets: Sequence[str], top: float) -> Iterator[str]:
    """One figure: its range, a line for each target, and the last value beside it."""
    values = list(_values(records, name))
    low, high = min(values), max(values)
    span = high - low or max(high, 1)
    low -= (span + 9) // 10 if low < high else span // 2
    low, high = max(0, low), high + (span + 9) // 10

    def at(index: int, value: int) -> tuple[float, float]:
        step = (_WIDTH - _LEFT - _RIGHT) / max(1, len(records) - 1)
        return _LEFT + index * step, top + _PLOT * (high - value) / (high - low)

    yield f'<text class="name" x="24" y="{top - 10:.1f}">{FIGURES[name]}</text>'
    for value in (low, (low + high) // 2, high):
        y = at(0, value)[1]
        yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="soft" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:,}</text>'
    yield f'<text class="soft" x="{_LEFT}" y="{top + _PLOT + 18:.1f}">{escape(_label(records, 0))}</text>'
    last = escape(_label(records, len(records) - 1))
    yield f'<text class="soft" x="{_WIDTH - _RIGHT}" y="{top + _PLOT + 18:.1f}" text-anchor="end">{last}</text>'
    taken: list[float] = []
    for number, target in enumerate(targets):
        points = [(i, v) for i, r in enumerate(records) if (v := _value(r, target, name)) is not None]
        if not points:
            continue
        colour, dash = f"t{number % len(_COLOURS)}", _DASHES[number // len(_COLOURS) % len(_DASHES)]
        path = "L".join("{:.1f} {:.1f}".format(*at(*point)) for point in points)
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        yield f'<path class="{colour}" d="M{path}"{dashed}/>'
        for index, value in points:
            x, y = at(index, value)
            said = escape(f"{_label(records, index)}: {printable(target)}, {FIGURES[name]} {value:,} B")
            yield f'<circle class="{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"><title>{said}</title></circle>'
        y = at(*points[-1])[1]
        while any(abs(y - other) < 30 for other in taken):
            y += 6
        taken.append(y)
        yield f'<text x="{_WIDTH - _RIGHT + 12}" y="{y + 1:.1f}">{escape(printable(target))}</text>'
        change = points[-1][1] - points[0][1]
        sign = "+" if change > 0 else "−" if change < 0 else "±"
        text = f"{points[-1][1]:,} B, {sign}{abs(change):,}"
        yield f'<text class="soft" x="{_WIDTH - _RIGHT + 12}" y="{y + 15:.1f}">{text}</text>'


def _values(records: Sequence[SizeRecord], name: str) -> Iterator[int]:
    """All there are of a figure."""
    for record in records:
        for target in record.targets:
            value = getattr(target, name)
            if value is not None:
                yield value


def _value(record: SizeRecord, target: str, name: str) -> int | None:
    found: TargetFigures | None = next((t for t in record.targets if t.target == target), None)
    value: int | None = getattr(found, name) if found else None
    return value


def _label(records: Sequence[SizeRecord], index: int) -> str:
    """The commit of a build, else its number from 1."""
    return printable(records[index].commit[:10]) or f"build {index + 1}"
