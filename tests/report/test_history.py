"""`minbuild history`: the sizes of all builds as a picture, and the schema of the file."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest
from places import ROOT
from sample_report import make_report, make_target
from typer.testing import CliRunner

from minbuild.analysis.size_history import append_line, as_line, read_history, record_of
from minbuild.cli.main import app
from minbuild.ir.size_record import SizeRecord
from minbuild.report import json as json_report
from minbuild.report.history_svg import FIGURES, render

SVG = "{http://www.w3.org/2000/svg}"


def record(growth: int = 0, commit: str = "", *, stack: bool = True) -> SizeRecord:
    report = make_report(make_target(growth=growth), make_target("aarch64-<linux>&", growth=2 * growth))
    made = record_of(json_report.as_dict(report))
    if stack:
        return replace(made, commit=commit)
    return replace(made, commit=commit, targets=tuple(replace(t, stack=None) for t in made.targets))


@pytest.fixture
def history(tmp_path: Path) -> Path:
    path = tmp_path / "sizes.jsonl"
    path.write_text("".join(as_line(record(growth, f"{growth:040x}")) for growth in (0, 40, 10)), "utf-8")
    return path


def test_every_build_is_a_point_of_a_line(history: Path, tmp_path: Path) -> None:
    out = tmp_path / "sizes.svg"
    done = CliRunner().invoke(app, ["history", str(history), "--out", str(out), "--figure", "file"])
    assert done.exit_code == 0, done.output
    picture = ElementTree.parse(out).getroot()
    records = read_history(history)
    titles = [title.text or "" for title in picture.iter(f"{SVG}title")]
    said = [f"{r.commit[:10]}: {t.target}, Library file {t.file:,} B" for r in records for t in r.targets]
    assert sorted(titles) == sorted(said)
    assert len(list(picture.iter(f"{SVG}path"))) == 2
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    first, last = records[0].targets[0].file, records[-1].targets[0].file
    assert f"{last:,} B, +{last - first:,}" in texts


def test_heights_are_in_proportion_and_inside(history: Path) -> None:
    records = read_history(history)
    picture = ElementTree.fromstring(render(records, tuple(FIGURES)))
    bottom = float(picture.attrib["viewBox"].split()[3])
    for circle in picture.iter(f"{SVG}circle"):
        assert 0 < float(circle.attrib["cy"]) < bottom and 0 < float(circle.attrib["cx"]) < 960
    ys = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", render(records, ("file",)).split("<path")[1])]
    a, b, c = (r.targets[0].file for r in records)
    assert (ys[0] - ys[1]) / (ys[0] - ys[2]) == pytest.approx((b - a) / (c - a), rel=0.02)


def test_what_is_missing_leaves_no_gap_in_the_picture(history: Path) -> None:
    without = [record(stack=False), record(5, stack=False)]
    assert "Peak stack" not in render(without, ("file", "stack"))
    one = render([record()], ("ram",))
    assert "build 1" in one and ElementTree.fromstring(one) is not None
    assert render(without, ("file",)) == render(without, ("file",))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--figure", "weight"], "no such figure"), (["--out", "none/at/all.svg"], "cannot be written")],
)
def test_wrong_calls_are_refused(history: Path, arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["history", str(history), *arguments])
    assert done.exit_code == 2 and said in done.stderr


def test_a_line_has_the_commit_and_follows_its_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = json.loads((ROOT / "schemas/history.schema.json").read_text())
    path = tmp_path / "sizes.jsonl"
    for commit in ("", "0123abc"):
        for name in ("MINBUILD_COMMIT", "GITHUB_SHA", "CI_COMMIT_SHA", "BUILD_SOURCEVERSION", "GIT_COMMIT"):
            monkeypatch.delenv(name, raising=False)
        if commit:
            monkeypatch.setenv("GITHUB_SHA", commit)
        append_line(path, record())
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["commit"] for line in lines] == ["", "0123abc"]
    for line in lines:
        jsonschema.validate(line, schema)
    for broken in ({"history": 2}, {"targets": []}, {"plan": -1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**lines[0], **broken}, schema)


def test_lines_of_before_are_read(tmp_path: Path) -> None:
    """Fields are only ever added within a version."""
    line = json.loads(as_line(record(7)))
    del line["commit"]
    path = tmp_path / "sizes.jsonl"
    path.write_text(json.dumps(line) + "\n")
    assert read_history(path) == (record(7),)
