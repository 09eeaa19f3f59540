"""The report as JSON: it follows its schema, and all sizes are integers."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import jsonschema
import pytest
from report_pages import schema
from sample_report import make_report

from minbuild.ir.operator_times import OperatorTime, Timing
from minbuild.ir.size_report import SizeReport
from minbuild.report import console, html, markdown, time_tables
from minbuild.report import json as json_report


def test_what_was_not_measured_is_not_in_any_form(report: SizeReport) -> None:
    target = report.targets[0]
    rows = tuple(replace(row, leave_one_out=None) for row in target.rows)
    fast = make_report(replace(target, rows=rows, suggestions=()))
    for page in (console.render(fast), markdown.render(fast), html.render(fast)):
        assert "LOO saving" not in page and "Suggestions" not in page
        assert "By phase of training" in page
    data = json_report.as_dict(fast)
    jsonschema.validate(data, schema())
    assert data["targets"][0]["suggestions"] == [] and data["targets"][0]["rows"][0]["leave_one_out"] is None


def test_json_validates_and_is_deterministic(report: SizeReport) -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(json.loads(json_report.render(report)), schema())
    unverified = replace(report.targets[0], verification=None)
    jsonschema.validate(json_report.as_dict(make_report(unverified)), schema())
    assert json_report.render(report) == json_report.render(make_report(*report.targets))
    assert not re.search(r"\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d", json_report.render(report))


def test_the_schema_can_say_no(report: SizeReport) -> None:
    wrong = (
        (("schema",), 2),
        (("model", "plan_bytes"), 1.5),
        (("summary", 0, "file"), "15 KB"),
        (("targets", 0, "rows", 0, "bytes"), -1),
        (("targets", 0, "digest"), "x"),
    )
    for path, value in wrong:
        data = json_report.as_dict(report)
        place = data
        for key in path[:-1]:
            place = place[key]  # type: ignore[index]
        place[path[-1]] = value  # type: ignore[index]
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(data, schema())


def test_all_sizes_are_integers(report: SizeReport) -> None:
    def walk(value: object, key: str = "") -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                walk(inner, name)
        elif isinstance(value, list):
            for inner in value:
                walk(inner, key)
        else:
            assert key == "worst" or not isinstance(value, float), key

    walk(json_report.as_dict(report))


def test_times_are_in_every_form_where_they_were_measured(report: SizeReport) -> None:
    target = report.targets[0]
    timing = Timing("x86_64-linux-musl", "A <processor>", 7, (("train", 1.5),), 50.0)
    times = (OperatorTime(1.25, 0.5, 10.0, 4096), OperatorTime(0.25, 0.0, None, 64))
    rows = tuple(replace(r, time=t) for r, t in zip(target.rows, times, strict=False)) + target.rows[2:]
    timed = make_report(replace(target, rows=rows, timing=timing))
    data = json_report.as_dict(timed)
    jsonschema.validate(data, schema())
    first, second, third = data["targets"][0]["rows"][:3]
    assert (first["milliseconds"], first["gflops"], first["live_bytes"]) == (1.25, 10.0, 4096)
    assert "gflops" not in second and "milliseconds" not in third and "time" not in first
    assert data["targets"][0]["timing"]["graphs"] == {"train": 1.5}
    (table,) = time_tables.operator_times(timed, timed.targets[0])
    assert [line.cells[1:6] for line in table.lines[:2]] == [
        ("1.250", "83.3 %", "0.500", "10.00", "20.0 %"),
        ("0.250", "16.7 %", "0.000", "–", "–"),
    ]
    assert "not x86_64-linux-gnu" in table.note
    for page in (console.render(timed), markdown.render(timed), html.render(timed)):
        assert "Time and memory of operators" in page and "ms a step, host" in page and "1.250" in page
    unmeasured = make_report(replace(target, timing=Timing("x86_64-linux-gnu", reason="it crashed.")))
    jsonschema.validate(json_report.as_dict(unmeasured), schema())
    for page in (console.render(unmeasured), markdown.render(unmeasured), html.render(unmeasured)):
        assert "Not measured" in page and "it crashed." in page and "GFLOP/s" not in page
    for page in (console.render(report), markdown.render(report), html.render(report)):
        assert "Time and memory of operators" not in page
