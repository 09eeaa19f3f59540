"""The page of WebAssembly beside native code, of which a run measures some nets."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "slow")]
from wasm_page import NetResult, read_page, write_page  # noqa: E402

PAGE = (TESTS.parent / "reports/baseline/wasm.md").read_text()
SLOW = NetResult(("| slow | 8 | Node | 1.000 ms |",), ("* slow, Node: 1.60 = 1.00 + 0.60.", "  In vectors."))
FAST = NetResult(("| fast | 8 | Node | 1.000 ms |", "| fast | 8 | Chrome | 2.000 ms |"))


def test_a_run_without_nets_leaves_the_page_as_it_is():
    assert write_page(PAGE, {}) == PAGE


def test_nets_that_are_not_measured_keep_their_rows_and_notes():
    page = write_page("", {"slow": SLOW, "fast": FAST})
    assert read_page(page) == {"slow": SLOW, "fast": FAST}
    other = NetResult(("| fast | 8 | Node | 3.000 ms |",), ("* fast, Node: 1.70 = 1.00 + 0.70.",))
    again = write_page(page, {"fast": other})
    assert read_page(again) == {"slow": SLOW, "fast": other}
    assert again.count("# WebAssembly") == again.count("Where a module takes") == 1


def test_a_net_at_the_goal_loses_its_note_and_keeps_its_place():
    page = write_page("", {"slow": SLOW, "fast": FAST})
    at_goal = NetResult(("| slow | 8 | Node | 0.900 ms |",))
    again = write_page(page, {"slow": at_goal})
    assert list(read_page(again).items()) == [("slow", at_goal), ("fast", FAST)]
    assert "Where a module takes" not in again


def test_new_nets_stand_behind_the_others():
    page = write_page(PAGE, {"slow": SLOW})
    assert list(read_page(page)) == [*read_page(PAGE), "slow"]
    assert page.endswith("  In vectors.\n")
