"""Drawings of a report: squarified treemaps whose areas are in proportion to bytes."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_report import make_target

from minbuild.ir.size_report import (
    Bar,
    Group,
    Row,
)
from minbuild.report import svg


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=60))
def test_squarify_fills_the_box_in_proportion(areas: list[int]) -> None:
    box = svg.Box(3, 5, 960, 420)
    ordered = sorted(areas, reverse=True)
    found = svg.squarify(ordered, box)
    scale = 960 * 420 / sum(ordered)
    for area, b in zip(ordered, found, strict=True):
        assert b.width * b.height == pytest.approx(area * scale, rel=1e-6)
        assert b.x >= 3 - 1e-6 and b.y >= 5 - 1e-6
        assert b.x + b.width <= 963 + 1e-6 and b.y + b.height <= 425 + 1e-6
    for i, a in enumerate(found):
        for b in found[:i]:
            overlap_x = min(a.x + a.width, b.x + b.width) - max(a.x, b.x)
            overlap_y = min(a.y + a.height, b.y + b.height) - max(a.y, b.y)
            assert min(overlap_x, overlap_y) < 1e-6


def test_squarify_of_a_line() -> None:
    for box in (svg.Box(5, 6, 0, 9), svg.Box(5, 6, 9, 0), svg.Box(5, 6, 0, 0)):
        found = svg.squarify([3, 2, 1], box)
        assert len(found) == 3 and all(each.width * each.height == 0 for each in found)


def test_the_smallest_kind_has_its_tiles() -> None:
    """A kind of a few bytes gets a strip thinner than the gap around strips."""
    groups = (Group("operator", "Operators", 90_000, 90_000), Group("overhead", "Overhead", 40, 40))
    rows = tuple(
        Row(kind, name, size, (), (), (), ())
        for kind, name, size in (("operator", "gemm", 90_000), ("overhead", "a", 22), ("overhead", "b", 18))
    )
    drawn = svg.treemap(replace(make_target(), groups=groups, rows=rows))
    assert re.findall(r"([\d,]+) B</title>", drawn) == ["90,000", "22", "18"]


def test_squarify_of_nothing() -> None:
    assert svg.squarify([], svg.Box(0, 0, 1, 1)) == []
    assert svg.squarify([0, 0], svg.Box(0, 0, 1, 1)) == [svg.Box(0, 0, 0, 0)] * 2


def test_names_are_shortened_where_they_have_no_room() -> None:
    """Letters of 8.9 units, and `…` of 13.2."""
    name = "aecosxz"
    room = sum([8.9] * len(name))
    assert svg.shortened(name, room) == name
    assert svg.shortened(name, room - 0.1) == "aecos…"
    assert svg.shortened(name, 3 * 8.9 + 13.3) == "aec…"
    assert svg.shortened(name, 3 * 8.9 + 13.1) == ""


def test_bars_of_the_waterfall_are_as_wide_as_their_bytes() -> None:
    files = (9000, 6000, 6000, 1500)
    bars = tuple(Bar(f"step {i}", "", size, None) for i, size in enumerate(files))
    drawn = svg.steps(replace(make_target(), waterfall=bars))
    found = re.findall(r'class="k-(\w+)" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"', drawn)
    left, most = 110, 740
    shown = [(float(x), float(width)) for kind, x, _, width in found if kind == "operator"]
    assert shown == [(left, pytest.approx(most * size / 9000, abs=0.06)) for size in files]
    saved = [(float(x), float(width)) for kind, x, _, width in found if kind == "overhead"]
    gone = [(9000, 6000), (6000, 1500)]
    assert saved == [
        (
            pytest.approx(left + most * now / 9000, abs=0.06),
            pytest.approx(most * (old - now) / 9000, abs=0.06),
        )
        for old, now in gone
    ]
