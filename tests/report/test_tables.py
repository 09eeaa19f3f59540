"""Tables of a report: what their cells add up to, how many lines they have, how they fit a width."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sample_report import make_target

from minbuild.ir.size_report import Bar, Row
from minbuild.report import size_tables
from minbuild.report.table import Line, Table, kib
from minbuild.report.wrap import fit

BARS = (
    Bar("everything", "Every kernel.", 9000, None),
    Bar("operators", "Only those of the model.", 6500, 700),
    Bar("types", "Only those that it uses.", 6600, 0),
)


def operators(count: int) -> tuple[Row, ...]:
    return tuple(Row("operator", f"op{i}", 100 - i, (), (), (), ()) for i in range(count))


def test_every_step_of_the_waterfall_saves_from_the_one_before() -> None:
    lines = size_tables.waterfall(replace(make_target(), waterfall=BARS)).lines
    assert [line.cells[2:] for line in lines] == [(9000, "", ""), (6500, 2500, 700), (6600, -100, 0)]
    assert [line.level for line in lines] == ["row", "row", "total"]


@pytest.mark.parametrize(("count", "shown", "added"), [(4, 4, 0), (5, 5, 0), (6, 4, 2), (9, 4, 5)])
def test_rows_beyond_a_limit_are_added_up(count: int, shown: int, added: int) -> None:
    """The limit is on lines, so that one is kept for the sum only where there is one."""
    target = replace(make_target(), rows=operators(count))
    names = [line.cells[0] for line in size_tables.operators(target, 5).lines[:-1]]
    assert names == [f"op{i}" for i in range(shown)] + [f"{added} smaller operators"] * bool(added)
    runtime = replace(target, rows=tuple(replace(row, kind="runtime") for row in target.rows))
    lines = size_tables.others(runtime, 5).lines[:-2]
    assert [line.cells[0] for line in lines] == [f"op{i}" for i in range(shown)] + [
        f"{added} smaller ones"
    ] * bool(added)
    assert sum(line.cells[2] for line in lines) == sum(row.bytes for row in runtime.rows)


def test_savings_are_a_column_and_a_remark_where_they_were_measured() -> None:
    bare = replace(make_target(), rows=operators(3))
    measured = replace(bare, rows=(replace(bare.rows[0], leave_one_out=117), *bare.rows[1:]))
    made = size_tables.operators(measured)
    assert made.columns[-1] == "LOO saving" and "LOO (leave-one-out) saving: bytes" in made.note
    assert [line.cells[-1] for line in made.lines] == [117, "", "", ""]
    made = size_tables.operators(bare)
    assert made.columns[-1] == "Of file" and "LOO" not in made.note


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0.0 KiB"),
        (1536, "1.5 KiB"),
        ((1 << 20) - 52, "1023.9 KiB"),
        (1 << 20, "1.0 MiB"),
        (5 << 19, "2.5 MiB"),
    ],
)
def test_a_mebibyte_is_1024_kibibytes(size: int, text: str) -> None:
    assert kib(size) == text


@pytest.mark.parametrize(("width", "gap"), [(36, 3), (35, 2), (34, 2), (33, 2)])
def test_columns_stand_apart_as_long_as_no_name_is_cut_for_it(width: int, gap: int) -> None:
    """Three columns of ten letters each, with two gaps between them."""
    words = tuple(letter * 10 for letter in "abc")
    table = Table("t", "T", "", ("A ", "B ", "C "), (Line(words),))
    fitted, widths, found = fit(table, width)
    assert found == gap
    assert sum(widths) + 2 * gap <= max(width, 34) and (fitted == table)
