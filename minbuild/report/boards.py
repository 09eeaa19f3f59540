"""Bytes that a trainer leaves of a board's flash and RAM. The boards are one data file; others are given by size."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache

from minbuild import assets
from minbuild.errors import BadInput
from minbuild.ir.size_report import Board, SizeReport, TargetReport
from minbuild.options.did_you_mean import did_you_mean
from minbuild.report.report_tables import flash_total
from minbuild.report.table import Line, Table

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}


@cache
def known_boards() -> Mapping[str, tuple[Board, str]]:
    """The boards by name, each with its chip."""
    data = json.loads((assets.root("templates") / "report" / "boards.json").read_text(encoding="utf-8"))
    return {
        row["name"]: (Board(row["name"], row["flash"], row["ram"]), row["chip"]) for row in data["boards"]
    }


def parse_board(text: str) -> Board:
    """A known board by name, or `flash=512K,ram=128K`. Raises BadInput."""
    known = known_boards()
    if text in known:
        return known[text][0]
    if "=" not in text:
        raise BadInput(
            f"--board {text}: no such board.{did_you_mean(text, known)} Choose from {', '.join(known)}, or give its "
            "memory: --board flash=512K,ram=128K."
        )
    parts = [
        re.fullmatch(r"\s*(flash|ram)\s*=\s*(\d{1,12})\s*([KM]?)(?:i?B)?\s*", part)
        for part in text.split(",")
    ]
    sizes = {part[1]: int(part[2]) * _UNITS[part[3]] for part in parts if part}
    if None in parts or len(parts) != 2 or len(sizes) != 2:
        raise BadInput(f"--board {text}: not the memory of a board. Write --board flash=512K,ram=128K.")
    return Board("custom", sizes["flash"], sizes["ram"])


def _regions(report: SizeReport, target: TargetReport, board: Board) -> Iterator[tuple[str, int, int]]:
    """Region, bytes used, bytes of the board."""
    yield "Flash", flash_total(report, target), board.flash
    yield "RAM and stack", target.ram + (target.stack.peak if target.stack else 0), board.ram


def table(report: SizeReport, target: TargetReport, board: Board) -> Table:
    """Used and remaining bytes of each region. `report` and `target` are what was built, `board` has the bytes of
    flash and RAM."""
    lines = tuple(
        Line((name, used, there, f"{there - used:,}"))
        for name, used, there in _regions(report, target, board)
    )
    stack = "" if target.stack else " The stack was not measured and is not in it."
    return Table(
        "board",
        f"Board: {board.name}",
        f"Negative remainders do not fit.{stack}",
        ("Region ", "Used", "Board", "Remaining"),
        lines,
    )


def _short(count: int) -> str:
    """Bytes, or three digits of kilobytes or megabytes: the report has the bytes."""
    if count < 100_000:
        return f"{count:,} B"
    if count < 1_000_000:
        return f"{count / 1e3:.0f} kB"
    megabytes = count / 1e6
    return f"{megabytes:,.{2 if megabytes < 10 else 1 if megabytes < 100 else 0}f} MB"


def line(report: SizeReport, target: TargetReport, board: Board) -> str:
    """The remaining memory, in one line of at most 60 characters for any real board. `report` and `target` are what
    was built, `board` has the bytes of flash and RAM."""
    found = [
        f"{name.split()[0]} {_short(abs(there - used))} {'left' if used <= there else 'over'}"
        for name, used, there in _regions(report, target, board)
    ]
    return f"Board {board.name}: {', '.join(found)}"
