"""The price of a budget of RAM: estimated, measured with --time, and the curve of an analysis."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
from commands import FREE, Command
from commands import command_fixture as command_fixture
from report_pages import schema

from minbuild.planning.compile import compile_model
from minbuild.planning.ram_budget import ram_of


def test_the_command_reports_the_price_of_a_budget(minbuild: Command, tmp_path: Path) -> None:
    """The curve begins with the plan without a budget; this plan is on it, with a measured time of its own."""
    usual = compile_model(FREE, {}, {})
    whole = ram_of(usual.plan, usual.largest)
    budget = (whole + usual.plan.persistent_bytes) // 2
    options = ("--ram", str(budget), "--time", "--analysis")
    said = minbuild("reduce", FREE, "--out", tmp_path / "dist", *options)
    assert said.code == 0, said.err
    report = json.loads((tmp_path / "dist" / "report" / "report.json").read_text("utf-8"))
    jsonschema.validate(report, schema())
    price = report["model"]["ram_price"]
    assert price["ram"] <= budget < price["unlimited"] == whole
    assert price["curve"][0] == {"ram": whole, "added_time": 0.0} and len(price["curve"]) > 1
    assert price["curve"][-1]["ram"] <= price["ram"]
    assert price["added_time"] > 0 and price["measured"] > 0  # one sample after the other: far more calls
    page = (tmp_path / "dist" / "report" / "report.md").read_text("utf-8")
    assert "Time over memory" in page and f"{1 + price['measured']:.2f} as measured" in page
