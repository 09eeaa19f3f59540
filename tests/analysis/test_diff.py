"""What changed between two builds, budgets, and the history of builds."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import SMALL, Command, command_fixture, copy_of  # noqa: F401

from minbuild import assets
from minbuild.analysis.budgets import judge, parse_budgets
from minbuild.analysis.size_diff import compare
from minbuild.analysis.size_history import append_line, as_line, read_history, record_of
from minbuild.cli.settings_file import read_settings, settings_beside
from minbuild.errors import BadInput
from minbuild.report.size_diff import MARKER, render_markdown, render_text

SAMPLE = json.loads(
    (assets.root("schemas").parent / "reports" / "samples" / "report.json").read_text("utf-8")
)
TARGET = SAMPLE["targets"][0]["target"]
PEAK = SAMPLE["model"]["arenas"][0]["peak"]


def bytes_of(*names: str) -> int:
    """What owners have in the sample, together."""
    return sum(row["bytes"] for row in SAMPLE["targets"][0]["rows"] if row["name"] in names)


CONV = bytes_of("conv")


def changed(edit: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    report = copy.deepcopy(SAMPLE)
    edit(report)
    return report


def grow(report: dict[str, Any], name: str, by: int) -> None:
    """The same report with an owner that is larger, and sums that agree."""
    target = report["targets"][0]
    next(row for row in target["rows"] if row["name"] == name)["bytes"] += by
    target["trimmed"]["file"] += by
    target["trimmed"]["loaded"] += by


def difference(edit: Callable[[dict[str, Any]], None]):  # type: ignore[no-untyped-def]
    return compare(record_of(SAMPLE), record_of(changed(edit)))


def saved(path: Path, report: dict[str, Any]) -> Path:
    path.write_text(json.dumps(report))
    return path


# ----------------------------------------------------------------------------------------------- difference


def test_nothing_changed_is_silence(
    minbuild: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    one, two = saved(tmp_path / "1", SAMPLE), saved(tmp_path / "2", SAMPLE)
    for options in ((), ("--markdown",)):
        said = minbuild("diff", one, two, *options)
        assert said == type(said)(0, "", "")
    assert not summary.exists()


CAUSES = [
    (lambda r: r["model"]["files"].update(checkpoint="0"), "The model changed: checkpoint"),
    (lambda r: r["model"].update(name="other"), "The model changed from trainer to other"),
    (lambda r: r["model"].update(minbuild="9"), f"minbuild changed: {SAMPLE['model']['minbuild']} → 9"),
    (lambda r: r["model"]["sizes"].update(batch=8), "The sizes changed: batch 32 → batch 8"),
    (lambda r: r["targets"][0].update(toolchain="gcc 99"), "The compiler changed: "),
    (lambda r: r["targets"][0]["flags"].append("-O3"), "The flags changed: with -O3"),
    (lambda r: grow(r, "conv", 8), "minbuild's own sources changed"),
]


@pytest.mark.parametrize("edit,text", CAUSES, ids=[text[:24] for _, text in CAUSES])
def test_the_cause_comes_first(edit: Callable[[dict[str, Any]], None], text: str) -> None:
    def both(report: dict[str, Any]) -> None:
        edit(report)
        grow(report, "gemm", 100)

    found = difference(both)
    assert any(text in cause for cause in found.causes)
    for rendered in (render_text(found), render_markdown(found)):
        assert 0 < rendered.index(text[:12]) < rendered.index("gemm")


def test_choices_are_a_cause_where_both_tell() -> None:
    one, two, three = (
        record_of(changed(lambda r, made=made: r.update(build_options=made)))
        for made in ({}, {"lto": "off", "speed-for": ""}, {"lto": "on", "speed-for": "conv"})
    )
    assert compare(two, three).causes == ("The build options changed: lto off → on, speed-for none → conv",)
    assert not compare(one, three) and not compare(two, two)


def test_rows_are_ordered_by_what_they_changed() -> None:
    def edit(report: dict[str, Any]) -> None:
        for name, by in (("gemm", 5), ("conv", -700), ("relu", 90)):
            grow(report, name, by)

    target = difference(edit).targets[0]
    assert [(row.name, row.delta) for row in target.rows] == [("conv", -700), ("relu", 90), ("gemm", 5)]
    assert {c.name: c.delta for c in target.figures} == {"File": -605, "Flash": -605}


def test_rows_come_and_go() -> None:
    found = difference(lambda r: r["targets"][0]["rows"].pop(0)).targets[0].rows
    gone = SAMPLE["targets"][0]["rows"][0]
    assert [(row.name, row.old, row.new) for row in found] == [(gone["name"], gone["bytes"], 0)]
    renamed = difference(lambda r: r["targets"][0].update(target="arm"))
    assert renamed.added == ("arm",) and renamed.removed == (TARGET,) and not renamed.targets


def test_graphs_come_and_go() -> None:
    """From nothing, and to it."""
    (arena,) = difference(lambda r: r["model"]["arenas"].append({"graph": "new", "peak": 4096})).memory
    assert (arena.name, arena.old, arena.new) == ("Arena: new", 0, 4096)
    (arena,) = difference(lambda r: r["model"]["arenas"].pop(0)).memory
    assert (arena.old, arena.new) == (PEAK, 0)


def test_markdown_is_for_pull_requests(
    minbuild: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def edit(report: dict[str, Any]) -> None:
        grow(report, "conv", 1234)
        report["model"]["files"]["<b>.onnx"] = "1"
        report["model"]["arenas"][0]["peak"] += 4096

    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    (tmp_path / "summary").write_text("before\n")
    said = minbuild("diff", saved(tmp_path / "1", SAMPLE), saved(tmp_path / "2", changed(edit)), "--markdown")
    assert said.code == 0 and said.out.startswith(MARKER)
    assert "+1,234 B flash" in said.out and "&lt;b&gt;.onnx" in said.out and "<b>" not in said.out
    assert f"| Operators | conv | {CONV:,} | {CONV + 1234:,} | +1,234 |" in said.out
    assert f"| Arena: train | {PEAK:,} | {PEAK + 4096:,} | +4,096 |" in said.out
    assert (tmp_path / "summary").read_text() == "before\n" + said.out
    monkeypatch.delenv("GITHUB_STEP_SUMMARY")
    text = minbuild("diff", tmp_path / "1", tmp_path / "2").out
    assert (
        "conv" in text and "<details>" not in text and (tmp_path / "summary").read_text().count(MARKER) == 1
    )


@pytest.mark.parametrize("content", [b"{}", b"[1]", b"no", b"\xff", b'{"model": 3}', b'{"history": 1}'])
def test_what_is_no_report_is_bad_input(minbuild: Command, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "odd").write_bytes(content)
    said = minbuild("diff", tmp_path / "odd", saved(tmp_path / "2", SAMPLE))
    assert said.code == 2 and "neither a report of minbuild nor a history" in said.err


# -------------------------------------------------------------------------------------------------- history


def test_a_history_keeps_all_that_a_difference_needs(minbuild: Command, tmp_path: Path) -> None:
    new = changed(lambda r: grow(r, "conv", 40))
    path = tmp_path / "deep" / "history.jsonl"
    for report in (SAMPLE, new):
        append_line(path, record_of(report))
    assert read_history(path) == (record_of(SAMPLE), record_of(new))
    assert len(path.read_text().splitlines()) == 2 and len(as_line(record_of(SAMPLE))) < 6000
    said = minbuild("diff", path)
    assert said.out == minbuild("diff", saved(tmp_path / "1", SAMPLE), saved(tmp_path / "2", new)).out != ""
    assert minbuild("diff", path, tmp_path / "2").out == ""
    path.write_text(as_line(record_of(SAMPLE)))
    assert "nothing to compare" in minbuild("diff", path).err
    assert "one too many" in minbuild("diff", path, path, path).err


def test_reduce_adds_a_line(minbuild: Command, tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    for _ in range(2):
        said = minbuild("reduce", SMALL, "-o", tmp_path / "d", "--history", history, "--json")
        assert said.code == 0
    assert read_history(history) == (record_of(json.loads(said.out)),) * 2
    assert minbuild("diff", history).out == ""


def test_a_history_that_cannot_be_written_shows_before_the_build(
    minbuild: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    allowed = tmp_path / "deep" / "history"
    for path, told in (
        (tmp_path, "is a folder"),
        (tmp_path / "file" / "h", "not a folder"),
        (allowed, "permission"),
    ):
        monkeypatch.setattr("os.access", lambda _, mode, told=told: mode != os.W_OK or told != "permission")
        said = minbuild("reduce", SMALL, "-o", tmp_path / "d", "--history", path)
        assert said.code == 2 and said.err.startswith(f"error: --history {path}: ") and told in said.err
    assert not (tmp_path / "d").exists()


# -------------------------------------------------------------------------------------------------- budgets


def verdicts(table: dict[str, Any], old: dict[str, Any] | None = None, new: dict[str, Any] = SAMPLE):  # type: ignore[no-untyped-def]
    return judge(parse_budgets(table, "f"), record_of(new), record_of(old) if old else None)


FLASH = SAMPLE["targets"][0]["trimmed"]["loaded"]
LIMITS = [
    ("flash", FLASH),
    ("file", SAMPLE["targets"][0]["trimmed"]["file"]),
    ("download", SAMPLE["targets"][0]["trimmed"]["download"]),
    ("ram", SAMPLE["targets"][0]["ram"]),
    ("arena", SAMPLE["model"]["arenas"][0]["peak"]),
]


@pytest.mark.parametrize("name,used", LIMITS)
def test_a_budget_is_kept_warned_of_and_exceeded(name: str, used: int) -> None:
    assert not verdicts({name: used * 2}) and not verdicts({name: f"{used * 2} B"})
    assert [v.over for v in verdicts({name: used})] == [False]
    assert [v.over for v in verdicts({name: int(used / 0.9) - 1})] == [False]
    assert not verdicts({name: int(used / 0.9) + 2})
    (found,) = verdicts({name: used - 1})
    assert (
        found.over and f"{TARGET}: {name}: {used:,} bytes, 1 over" in found.text and "largest: " in found.text
    )


def deep(size: int | None) -> dict[str, Any]:
    """The sample with a stack of so many bytes, or one that was not measured."""
    stack = None if size is None else {"calls": {"mb_train_step": size, "mb_create": 9}, "peak": size}
    return changed(lambda r: r["targets"][0]["verification"].update(stack=stack))


def test_the_stack_has_a_budget_where_it_was_measured() -> None:
    assert not verdicts({"stack": "16 KiB"}, new=deep(9_000))
    (found,) = verdicts({"stack": "16 KiB"}, new=deep(17_000))
    assert found.over and f"{TARGET}: stack: 17,000 bytes, 616 over" in found.text
    (found,) = verdicts({"stack": "16 KiB"}, deep(16_000), deep(17_000))
    assert "grew by 1,000 bytes" in found.text
    with pytest.raises(BadInput, match=f"budgets.stack: there is no figure for {TARGET}"):
        verdicts({"stack": "16 KiB"}, new=deep(None))


def test_a_stack_is_compared_only_with_another() -> None:
    both = compare(record_of(deep(9_000)), record_of(deep(9_500)))
    (found,) = both.targets[0].figures
    assert (found.name, found.old, found.new) == ("Stack", 9_000, 9_500)
    assert not compare(record_of(deep(None)), record_of(deep(9_500)))


def test_what_grew_is_named() -> None:
    new = changed(lambda r: grow(r, "gemm", 300))
    (found,) = verdicts({"growth": 299}, SAMPLE, new)
    assert found.over and "grew: gemm by 300" in found.text
    assert [v.over for v in verdicts({"growth": "300 B"}, SAMPLE, new)] == [False]
    assert not verdicts({"growth": 400}, SAMPLE, new) and not verdicts({"growth": 0}, SAMPLE)
    larger = changed(lambda r: r["model"]["arenas"][0].update(peak=PEAK + 1000))
    (found,) = verdicts({"arena": PEAK + 999}, SAMPLE, larger)
    assert "grew: arena: train by 1,000" in found.text


@pytest.mark.parametrize("name", ["conv", "Conv"])
def test_operators_go_by_any_of_their_names(name: str) -> None:
    (found,) = verdicts({"operators": {name: "1 KiB"}})
    assert found.over and f"operator {name}: {CONV:,} bytes, {CONV - 1024:,} over" in found.text
    new = changed(lambda r: grow(r, "conv", 40))
    assert "conv grew by 40 bytes" in verdicts({"operators": {name: "1 KiB"}}, SAMPLE, new)[0].text
    assert not verdicts({"operators": {"TopK": 1}})  # the model has none
    (found,) = verdicts({"operators": {"Convv": 1}})
    assert not found.over and "nothing is called so" in found.text and "Did you mean Conv?" in found.text


def test_an_operator_has_the_bytes_of_all_its_kernels() -> None:
    for name in ("ConvGrad", "com.microsoft:ConvGrad"):
        (found,) = verdicts({"operators": {name: 2000}})
        assert (
            f"operator {name}: {bytes_of('conv', 'reduce'):,} bytes" in found.text
            and "its code is conv.cc and reduce.cc" in found.text
        )


def test_a_target_can_have_its_own() -> None:
    table = {"flash": 1, "targets": {TARGET: {"flash": "1 MiB"}}}
    assert not verdicts(table)
    assert not verdicts({"targets": {"cortex-m4f": {"flash": 1}}})  # not built this time
    with pytest.raises(BadInput, match="budgets.targets.moon: target 'moon': unknown"):
        parse_budgets({"targets": {"moon": {"flash": 1}}}, "f")
    assert set(parse_budgets({"targets": {"arm64-macos": {"flash": 1}}}, "f").targets) == {"aarch64-macos"}


WRONG: list[Any] = [{"flesh": 1}, {"flash": -1}, {"flash": "64 stones"}, {"flash": True}, {"operators": 3}, 5]


@pytest.mark.parametrize("table", WRONG, ids=str)
def test_wrong_budgets_are_refused(table: Any) -> None:
    with pytest.raises(BadInput, match="f: budgets"):
        parse_budgets(table, "f")


def test_sizes_have_units() -> None:
    table = {"flash": "1.5 KiB", "file": "2kB", "ram": "1 MiB", "arena": "3 MB", "download": "7"}
    limits = parse_budgets(table, "f").limits
    assert limits == {"flash": 1536, "file": 2000, "ram": 1 << 20, "arena": 3_000_000, "download": 7}


def test_a_build_over_budget_ends_with_5(minbuild: Command, tmp_path: Path) -> None:
    artifacts, out = copy_of(SMALL, tmp_path / "a"), tmp_path / "d"
    (artifacts / "minbuild.toml").write_text(
        '[budgets]\nflash = "1 MiB"\narena = "1 GB"\n'.replace("GB", "MB")
    )
    said = minbuild("reduce", artifacts, "-o", out)
    assert said.code == 0 and "warning" not in said.err
    flash = json.loads((out / "report/report.json").read_text())["summary"][0]["loaded"]
    (tmp_path / "pyproject.toml").write_text(f"[tool.minbuild.budgets]\nflash = {flash}\n")
    said = minbuild("reduce", artifacts, "-o", out, "--settings", tmp_path / "pyproject.toml")
    assert said.code == 0 and f"warning: {TARGET}: flash: {flash:,} bytes, 100 %" in said.err
    (tmp_path / "pyproject.toml").write_text('[tool.minbuild.budgets]\nflash = "4 KiB"\n')
    said = minbuild("reduce", artifacts, "-o", out, "--settings", tmp_path / "pyproject.toml")
    assert said.code == 5 and "over the budget of 4,096; largest: " in said.err
    assert (out / "manifest.json").is_file()  # what was built can be looked at


def test_growth_needs_a_baseline(minbuild: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "minbuild.toml"
    config.write_text("[budgets]\ngrowth = 10\n")
    said = minbuild("reduce", SMALL, "-o", tmp_path / "d", "--settings", config)
    assert said.code == 2 and "--baseline" in said.err and not (tmp_path / "d").exists()
    said = minbuild("reduce", SMALL, "-o", tmp_path / "d", "--settings", config, "--history", tmp_path / "h")
    assert said.code == 0
    report = json.loads((tmp_path / "d/report/report.json").read_text())
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    same = saved(tmp_path / "same.json", report)
    said = minbuild("reduce", SMALL, "-o", tmp_path / "d", "--settings", config, "--baseline", same)
    assert said.code == 0 and not (tmp_path / "summary").exists()
    report["targets"][0]["trimmed"]["loaded"] -= 11
    report["targets"][0]["rows"][0]["bytes"] -= 11
    baseline = saved(tmp_path / "smaller.json", report)
    said = minbuild("reduce", SMALL, "-o", tmp_path / "d", "--settings", config, "--baseline", baseline)
    assert said.code == 5 and f"grew: {report['targets'][0]['rows'][0]['name']} by 11" in said.err
    assert (tmp_path / "summary").read_text("utf-8").startswith(f"{MARKER}\n## ")
    history = tmp_path / "kept"
    append_line(history, read_history(baseline)[0])
    for _ in range(2):  # a build over budget is not what the next one is compared with
        said = minbuild("reduce", SMALL, "-o", tmp_path / "d", "--settings", config, "--history", history)
        assert said.code == 5 and len(read_history(history)) == 1


def test_diff_holds_budgets_too(minbuild: Command, tmp_path: Path) -> None:
    config = tmp_path / "minbuild.toml"
    config.write_text("[budgets]\ngrowth = 99\n")
    old, new = saved(tmp_path / "1", SAMPLE), saved(tmp_path / "2", changed(lambda r: grow(r, "conv", 100)))
    said = minbuild("diff", old, new, "--settings", config)
    assert said.code == 5 and "grew: conv by 100" in said.err and "conv" in said.out
    assert minbuild("diff", new, old, "--settings", config).code == 0


# ------------------------------------------------------------------------------------------------- settings


def test_settings_are_found(tmp_path: Path) -> None:
    artifacts = tmp_path / "project" / "artifacts"
    artifacts.mkdir(parents=True)
    assert settings_beside((artifacts,), None) == ({}, "")
    (tmp_path / "project" / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert settings_beside((artifacts,), None) == ({}, "")
    (tmp_path / "project" / "pyproject.toml").write_text("[tool.minbuild]\na = 1\n")
    assert settings_beside((artifacts,), None)[0] == {"a": 1}
    (artifacts / "minbuild.toml").write_text("a = 2\n")
    assert settings_beside((artifacts,), None) == ({"a": 2}, str(artifacts / "minbuild.toml"))
    named = tmp_path / "any.toml"
    named.write_text("[tool.minbuild]\na = 3\n")
    assert settings_beside((artifacts,), named)[0] == {"a": 3}


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "minbuild.toml"
    for content, word in (
        (b"a = ", "is not TOML"),
        (b"\xff", "is not TOML"),
        (b"tool.minbuild = 3", "no table"),
    ):
        path.write_bytes(content)
        with pytest.raises(BadInput, match=word):
            read_settings(path)
