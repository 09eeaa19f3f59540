"""The first screen of `reduce`: verdict, sizes beside other trainers, measured savings, in 20 lines and 60 columns."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from commands import SMALL, Command
from commands import command_fixture as command_fixture

from minbuild import assets
from minbuild.errors import BadInput
from minbuild.ir.size_report import Board, SizeReport, Smaller, Suggestion, Verification
from minbuild.report import boards, console, html, markdown, peers, summary
from minbuild.report import json as json_report
from minbuild.report.report_tables import flash_total
from minbuild.toolchain import host_target, parse_target, proven_targets, unproven_targets

HOST = str(host_target())
FOREIGN = "aarch64-macos"  # no machine of CI runs it
WHY = "nothing here runs it. Install an emulator."
SAVINGS = tuple(
    Suggestion(f"saving {i}", 900 - i, 10, 0, "", f"--dim batch={i}") for i in range(5)
)  # in the order of the report


def one(report: SizeReport, **changes: object) -> SizeReport:
    return replace(report, targets=(replace(report.targets[0], **changes),))


def unproven(report: SizeReport) -> SizeReport:
    verification = Verification(f"NOT PROVEN: {WHY}", proven=False, reason=WHY)
    return replace(report, targets=(report.targets[0], replace(report.targets[1], verification=verification)))


def test_twenty_lines_and_sixty_columns(report: SizeReport) -> None:
    for shown in (
        one(report, suggestions=SAVINGS),
        replace(report, targets=tuple(replace(t, suggestions=SAVINGS) for t in report.targets)),
        unproven(replace(report, targets=tuple(replace(t, suggestions=SAVINGS) for t in report.targets * 9))),
    ):
        lines = summary.render(replace(shown, board=Board("nucleo-f446re", 1 << 19, 1 << 17))).splitlines()
        assert len(lines) + 2 <= summary.MOST_LINES  # the command adds where report and package are
        tables = [line for line in lines[1:] if not line.startswith("NOT PROVEN")]
        assert all(len(line) <= summary.WIDTH for line in tables), max(tables, key=len)


def test_memory_of_several_megabytes_is_not_cut(report: SizeReport) -> None:
    sizes, smaller = (("batch", 128),), (Smaller("batch", 1, report.targets[0].ram),)
    model = replace(report.model, sizes=sizes, smaller=smaller)
    shown = summary.render(one(replace(report, model=model), ram=11_662_608))
    assert "at batch 128; " in shown and " at 1\n" in shown and "…" not in shown


def test_the_numbers_are_those_of_the_report(report: SizeReport) -> None:
    target = report.targets[0]
    shown = summary.render(one(report))
    flash = target.trimmed.loaded + report.model.plan_bytes + report.model.checkpoint_bytes
    assert target.stack is not None
    for number in (target.trimmed.file, flash, target.ram, target.stack.peak):
        assert f"{number:,} B" in shown


def test_every_peer_has_a_source_and_is_in_every_form(report: SizeReport) -> None:
    assert {peer.bytes for peer in peers.peers()} == {303_040, 1_165_544, 21_234_368}
    assert all(len(peer.source) > 40 for peer in peers.peers())
    for page in (
        summary.render(report),
        *(f(report) for f in (console.render, markdown.render, html.render)),
    ):
        assert all(f"{peer.bytes:,}" in page for peer in peers.peers())


def test_the_best_savings_are_shown_where_they_were_measured(report: SizeReport) -> None:
    shown = summary.render(one(report, suggestions=SAVINGS))
    assert [f"--dim batch={i}:" in shown for i in range(5)] == [True, True, True, False, False]
    assert "savings" not in summary.render(one(report, suggestions=()))


def test_an_unproven_target_is_named_first_in_every_form(report: SizeReport) -> None:
    found = unproven(report)
    proven, other = (t.target for t in found.targets)
    verdicts = f"NOT PROVEN on {other}; PROVEN on {proven}"
    assert summary.render(found).splitlines()[0] == f"{found.model.name}: {verdicts}"
    assert verdicts in console.render(found, width=200).splitlines()[0]
    title = next(line for line in markdown.render(found).splitlines() if line.startswith("# "))
    assert f"**NOT PROVEN** on {other.replace('_', chr(92) + '_')}" in title
    assert f"<title>{verdicts}" in html.render(found)
    assert [entry["proven"] for entry in json_report.as_dict(found)["summary"]] == [True, False]
    for page in (console.render(found, width=200), markdown.render(found), html.render(found)):
        assert WHY in page and "Verified" not in page


def test_a_report_without_a_proof_is_not_proven(report: SizeReport) -> None:
    found = one(report, verification=None)
    assert summary.render(found).startswith(f"{found.model.name}: NOT PROVEN on ")


def test_not_proven_in_output_report_and_manifest(minbuild: Command, tmp_path: Path) -> None:
    out = tmp_path / "dist"
    said = minbuild("reduce", SMALL, "-o", out, "--target", HOST, "--target", FOREIGN)
    assert said.code == 0 and len(said.out.splitlines()) <= summary.MOST_LINES
    assert said.out.splitlines()[0].endswith(f": NOT PROVEN on {FOREIGN}; PROVEN on {HOST}")
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["targets"][HOST]["proof"] == "PROVEN" and "reason" not in manifest["targets"][HOST]
    assert manifest["targets"][FOREIGN]["proof"] == "NOT PROVEN" and manifest["targets"][FOREIGN]["reason"]
    assert (
        "**NOT PROVEN**" in (out / "README.md").read_text()
        and "NOT PROVEN" in (out / "report/report.md").read_text()
    )


def test_a_required_proof_that_is_missing_ends_with_6_and_builds_nothing(
    minbuild: Command, tmp_path: Path
) -> None:
    out = tmp_path / "dist"
    said = minbuild("reduce", SMALL, "-o", out, "--target", FOREIGN, "--require-proof")
    assert said.code == 6 and f"{FOREIGN}: NOT PROVEN" in said.err and not out.exists()
    assert "Building" not in said.err
    assert minbuild("reduce", SMALL, "-o", out, "--require-proof").code == 0


def test_the_full_report_is_on_the_terminal_on_demand(minbuild: Command, tmp_path: Path) -> None:
    full = minbuild("reduce", SMALL, "-o", tmp_path / "dist", "--report", "full")
    assert full.code == 0 and "Full and trimmed build" in full.out and PROVEN_HERE in full.out.splitlines()[0]
    assert minbuild("reduce", SMALL, "-o", tmp_path / "dist", "--report", "half").code == 2


PROVEN_HERE = f"PROVEN on {HOST}"


def test_lists_of_targets_mark_those_that_ci_cannot_run(minbuild: Command) -> None:
    names = unproven_targets()
    for word in ("macos", "android", "loongarch64", "aarch64-windows"):
        assert any(word in name for name in names)
    assert not set(names) & set(proven_targets()) and FOREIGN in names
    with pytest.raises(Exception, match="NOT PROVEN") as refused:
        parse_target("nowhere")
    assert all(name in str(refused.value) for name in (*names, *proven_targets()))
    text = "".join(minbuild("reduce", "--help").out.replace("│", " ").split())
    assert "NOTPROVEN:" in text and all(name in text for name in names)


def test_what_remains_of_a_board(report: SizeReport) -> None:
    target, facts = report.targets[0], report.model
    assert target.stack is not None
    flash = target.trimmed.loaded + facts.plan_bytes + facts.checkpoint_bytes
    ram = target.ram + target.stack.peak
    fits = replace(one(report), board=Board("given", flash + 1_234, ram - 4_321))
    assert "Board given: Flash 1,234 B left, RAM 4,321 B over" in summary.render(fits)
    for page in (console.render(fits, width=200), markdown.render(fits), html.render(fits)):
        assert "1,234" in page and "-4,321" in page
    schema = json.loads((assets.root("schemas") / "report.schema.json").read_text())
    jsonschema.validate(json_report.as_dict(fits), schema)
    assert json_report.as_dict(fits)["board"] == {"name": "given", "flash": flash + 1_234, "ram": ram - 4_321}


def test_a_stack_that_was_not_measured_is_said_to_be_left_out(report: SizeReport) -> None:
    board, alone = Board("given", 1 << 20, 1 << 21), one(report, verification=None)
    for shown, left_out in ((one(report), False), (alone, True)):
        made = boards.table(shown, shown.targets[0], board)
        assert made.note.endswith("The stack was not measured and is not in it.") is left_out
        stack = shown.targets[0].stack
        assert made.lines[1].cells[1] == shown.targets[0].ram + (stack.peak if stack else 0)


def test_large_numbers_of_several_targets_stand_apart(report: SizeReport) -> None:
    """A column is one wider than its widest number."""
    large = replace(report, targets=tuple(replace(t, ram=12_345_678_901) for t in report.targets))
    for shown in (report, large):
        lines = summary.render(shown).splitlines()
        head = next(i for i, line in enumerate(lines) if line.startswith("Bytes"))
        for line, target in zip(lines[head + 1 :], shown.targets, strict=False):
            assert target.stack is not None and len(line) <= summary.WIDTH
            cells = [target.trimmed.file, flash_total(shown, target), target.ram, target.stack.peak]
            assert line.split()[1:] == [f"{cell:,}" for cell in cells]


def test_further_reasons_are_counted(report: SizeReport) -> None:
    def without(*reasons: str) -> str:
        targets = tuple(
            replace(report.targets[0], verification=Verification("", proven=False, reason=r)) for r in reasons
        )
        return summary.render(replace(report, targets=targets)).splitlines()[1]

    assert without("Nothing runs it.") == without("Nothing runs it.", "Nothing runs it.")
    assert without("Nothing runs it.") == "NOT PROVEN: Nothing runs it."
    assert without("One.", "Two.", "Three.").endswith("One. (2 further reasons are in the report)")


@pytest.mark.parametrize("name", list(boards.known_boards()))
def test_the_line_of_a_board_fits(report: SizeReport, name: str) -> None:
    """Also of one with 64 MB of flash, and of a trainer that needs 500 MB of RAM."""
    for ram in (report.targets[0].ram, 500_000_000):
        target = replace(report.targets[0], ram=ram)
        assert len(boards.line(report, target, boards.parse_board(name))) <= 60


@pytest.mark.parametrize("text", ["flash=512K,ram=128K", "ram=131072, flash=512KiB", "nucleo-f446re"])
def test_boards_are_given_by_name_or_size(text: str) -> None:
    board = boards.parse_board(text)
    assert (board.flash, board.ram) == (512 << 10, 128 << 10)


@pytest.mark.parametrize(
    "text",
    [
        "nucleo-f446",
        "flash=1M",
        "flash=1M,flash=2M",
        "flash=-1,ram=2",
        "flash=1M,ram=2G",
        "flash=1,ram=2,ram=3",
    ],
)
def test_other_boards_are_refused_with_a_cure(text: str) -> None:
    with pytest.raises(BadInput, match="flash=512K,ram=128K"):
        boards.parse_board(text)
