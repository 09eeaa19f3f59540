"""The report as JSON: it follows its schema, and all sizes are integers."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import jsonschema
import pytest
from report_pages import schema
from sample_report import make_report

from minbuild.ir.size_report import SizeReport
from minbuild.report import console, html, markdown
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
