"""Inline SVG by hand: stacked bars and a treemap. Colours are classes, so the page's style sheet decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from minbuild.ir.size_report import TargetReport

_WIDTHS = {
    "mwMW@%…": 13.2,
    "ijlft.,:;|' ()": 5.6,
    "ABCDEGHKNOQRUVXYZ&<>": 10.6,
}  # of letters; others are in between


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in the drawing's units."""

    x: float
    y: float
    width: float
    height: float


def squarify(areas: Sequence[float], box: Box) -> list[Box]:
    """Fills `box` with one rectangle per area, in order (largest first gives the squarest), areas in
    proportion.

    Rows are laid along the shorter side for as long as another rectangle makes the worst aspect ratio better
    (Bruls, Huizing, van Wijk: Squarified Treemaps, 2000).
    """
    total = sum(areas)
    if not areas or total <= 0:
        return [Box(box.x, box.y, 0, 0) for _ in areas]
    scale = box.width * box.height / total
    rest, boxes, at = box, [], 0
    while at < len(areas):
        side = min(rest.width, rest.height)
        count = 1
        while at + count < len(areas) and _worst(areas[at : at + count + 1], side, scale) <= _worst(
            areas[at : at + count], side, scale
        ):
            count += 1
        row = [a * scale for a in areas[at : at + count]]
        placed, rest = _lay(row, rest)
        boxes += placed
        at += count
    return boxes


def _worst(areas: Sequence[float], side: float, scale: float) -> float:
    total = sum(areas) * scale
    if side <= 0 or total <= 0:
        return float("inf")
    thickness = total / side
    return max(
        max(thickness * thickness / (a * scale), a * scale / (thickness * thickness)) if a else float("inf")
        for a in areas
    )


def _lay(row: Sequence[float], box: Box) -> tuple[list[Box], Box]:
    total = sum(row)
    placed = []
    if box.width >= box.height:
        thickness = total / box.height if box.height else 0
        y = box.y
        for area in row:
            height = area / thickness if thickness else 0
            placed.append(Box(box.x, y, thickness, height))
            y += height
        return placed, Box(box.x + thickness, box.y, max(0.0, box.width - thickness), box.height)
    thickness = total / box.width if box.width else 0
    x = box.x
    for area in row:
        width = area / thickness if thickness else 0
        placed.append(Box(x, box.y, width, thickness))
        x += width
    return placed, Box(box.x, box.y + thickness, box.width, max(0.0, box.height - thickness))


def bars(target: TargetReport) -> str:
    """Full and trimmed file as two stacked bars on one scale."""
    width, height, gap, left, right = 960, 34, 22, 84, 96
    scale = (width - left - right) / max(target.full.file, target.trimmed.file, 1)
    parts = [_open(width, 2 * height + gap, "Bytes of the full and the trimmed build by kind of owner")]
    for i, (label, total) in enumerate((("Full", target.full.file), ("Trimmed", target.trimmed.file))):
        y, x = i * (height + gap), float(left)
        parts.append(f'<text class="axis" x="0" y="{y + height / 2 + 5:g}">{label}</text>')
        for group in target.groups:
            size = group.bytes if i else group.full_bytes
            if size:
                parts.append(
                    _rect(Box(x, y, size * scale, height), group.kind, f"{label}, {group.title}: {size:,} B")
                )
            x += size * scale
        parts.append(f'<text class="value" x="{x + 10:.1f}" y="{y + height / 2 + 5:g}">{total:,} B</text>')
    return "\n".join([*parts, "</svg>"])


def steps(target: TargetReport) -> str:
    """The waterfall: a bar per step, what the step saved hatched behind it."""
    width, height, gap, left, right = 960, 20, 8, 110, 110
    most = max((bar.file for bar in target.waterfall), default=1) or 1
    scale = (width - left - right) / most
    count = len(target.waterfall)
    parts = [_open(width, count * (height + gap), "The file after each step, and what the step saved")]
    before = most
    for i, bar in enumerate(target.waterfall):
        y = i * (height + gap)
        parts.append(f'<text class="axis" x="0" y="{y + height / 2 + 5:g}">{escape(bar.step)}</text>')
        if before > bar.file:
            saved = Box(left + bar.file * scale, y, (before - bar.file) * scale, height)
            parts.append(_rect(saved, "overhead", f"saved by {bar.step}: {before - bar.file:,} B"))
        parts.append(_rect(Box(left, y, bar.file * scale, height), "operator", f"{bar.step}: {bar.file:,} B"))
        at = left + max(before, bar.file) * scale + 10
        parts.append(f'<text class="value" x="{at:.1f}" y="{y + height / 2 + 5:g}">{bar.file:,} B</text>')
        before = bar.file
    return "\n".join([*parts, "</svg>"])


def treemap(target: TargetReport) -> str:
    """The trimmed file: kinds of owner, in them their rows, area in proportion to bytes."""
    width, height = 960, 420
    groups = sorted((g for g in target.groups if g.bytes), key=lambda g: (-g.bytes, g.kind))
    parts = [_open(width, height, "Every byte of the trimmed file; the tables below hold the same data")]
    for group, outer in zip(
        groups, squarify([g.bytes for g in groups], Box(0, 0, width, height)), strict=True
    ):
        rows = sorted(
            (r for r in target.rows if r.kind == group.kind and r.bytes), key=lambda r: (-r.bytes, r.name)
        )
        for row, box in zip(rows, squarify([r.bytes for r in rows], _inside(outer)), strict=True):
            parts.append(_rect(box, group.kind, f"{group.title}: {row.name}, {row.bytes:,} B"))
            parts.extend(_label(box, row.name.partition(" (")[0], f"{row.bytes:,}"))
    return "\n".join([*parts, "</svg>"])


def _inside(box: Box) -> Box:
    """A box with a gap around it, narrower where the box is thin."""
    gap = min(2.0, box.width / 4, box.height / 4)
    return Box(box.x + gap, box.y + gap, box.width - 2 * gap, box.height - 2 * gap)


def _open(width: int, height: int, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}" '
        f'preserveAspectRatio="xMinYMin meet">'
    )


def _rect(box: Box, kind: str, title: str) -> str:
    return (
        f'<rect class="k-{kind}" x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}"><title>{escape(title)}</title></rect>'
    )


def _label(box: Box, name: str, size: str) -> list[str]:
    """The tile's name and bytes where they fit."""
    room = box.width - 14
    shown = shortened(name, room)
    if not shown or box.height < 20:
        return []
    lines = [f'<text class="tile" x="{box.x + 7:.1f}" y="{box.y + 16:.1f}">{escape(shown)}</text>']
    if box.height >= 36 and _length(size) <= room:
        lines.append(f'<text class="tile small" x="{box.x + 7:.1f}" y="{box.y + 31:.1f}">{size}</text>')
    return lines


def shortened(name: str, room: float) -> str:
    """The name, its beginning with `…`, or nothing where not even three letters have room."""
    if _length(name) <= room:
        return name
    beginnings = (f"{name[:count].rstrip()}…" for count in range(len(name) - 1, 2, -1))
    return next((text for text in beginnings if _length(text) <= room), "")


def _length(text: str) -> float:
    """Units that a bold text of 12 takes at most, in the widest of common fonts."""
    return sum(next((width for some, width in _WIDTHS.items() if letter in some), 8.9) for letter in text)
