"""Contents of generated tables: every option, limit, target and board, and the figures of the records."""

from __future__ import annotations

import re
import sys

import pytest
from places import ROOT

from minbuild.analysis.budgets import LIMITS, parse_budgets
from minbuild.cli.introspection import command_line
from minbuild.docgen import option_tables
from minbuild.docgen.__main__ import documents
from minbuild.docgen.command_pages import commands_page
from minbuild.docgen.guide_blocks import boards_table, guide_blocks, targets_table
from minbuild.docgen.markdown import recorded_rows
from minbuild.options.build_options import table as build_options
from minbuild.report.boards import known_boards
from minbuild.toolchain.targets import known_targets, unproven_targets

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.unit


def test_the_page_of_commands_has_what_help_prints() -> None:
    """But for the build options of reduce, which have a page of their own."""
    elsewhere = {("reduce", f"--{option.key}") for option in build_options()}
    for command in command_line():
        section = commands_page().split(f"\n## minbuild {command.name}\n")[1].split("\n## ")[0]
        names = [p.names[0] for p in command.parameters if (command.name, p.names[0]) not in elsewhere]
        assert not [name for name in names if f"| `{name}`" not in section]
        examples = [line.strip() for line in command.epilog.splitlines() if line.startswith("    ")]
        assert not [line for line in examples if f"\n{line}\n" not in section]


def test_the_example_of_budgets_is_read_and_every_limit_is_listed() -> None:
    budgets = parse_budgets(tomllib.loads(option_tables.BUDGET_EXAMPLE)["budgets"], "minbuild.toml")
    assert budgets.limits["ram"] == 65536 and budgets.operators == {"Conv": 4096}
    assert budgets.of("cortex-m4f").limits["flash"] == 16 * 1024 < budgets.of("wasm32").limits["flash"]
    page = option_tables.document({}, "")
    assert not [key for key in (*LIMITS, "operators", "targets") if f"| `{key}` |" not in page]


def test_every_target_is_in_one_row() -> None:
    rows = recorded_rows(targets_table())
    names = [name for row in rows for name in re.findall(r"`([^`]+)`", row[0])]
    assert sorted(names) == sorted(known_targets())
    marked = [name for row in rows if row[3] == "NOT PROVEN" for name in re.findall(r"`([^`]+)`", row[0])]
    assert sorted(marked) == sorted(unproven_targets())


def test_every_board_has_a_target() -> None:
    rows = recorded_rows(boards_table())
    assert [row[0].strip("`") for row in rows] == list(known_boards())
    assert {row[4].strip("`") for row in rows} <= set(known_targets())


def test_figures_of_guides_are_those_of_the_records() -> None:
    blocks = guide_blocks(ROOT)
    speed = recorded_rows((ROOT / "reports/baseline/speed.md").read_text("utf-8"))
    mlp = next(row for row in recorded_rows(blocks["profiles"]()) if row[0] == "`mlp`")
    assert [mlp[2], mlp[5]] == next([row[4], row[9]] for row in speed if row[:2] == ["mlp", "1"])
    modules = recorded_rows((ROOT / "reports/baseline/wasm.md").read_text("utf-8"))
    for column in (5, 6):
        assert max((row[column] for row in modules), key=float) in blocks["webassembly"]()


def test_guides_have_all_blocks() -> None:
    texts = [text for path, text in documents(ROOT).items() if path.parent.name == "guides"]
    assert not [
        name for name in guide_blocks(ROOT) if not any(f"<!-- generated: {name} -->" in t for t in texts)
    ]
