"""The price of a budget of RAM: a table in every form of the report."""

from __future__ import annotations

from dataclasses import replace

import jsonschema
from report_pages import schema
from sample_report import make_report

from minbuild.ir.ram_price import RamPoint, RamPrice
from minbuild.ir.size_report import SizeReport
from minbuild.report import console, html, markdown
from minbuild.report import json as json_report


def test_the_price_is_in_every_form(report: SizeReport) -> None:
    curve = (RamPoint(4000, 0.0), RamPoint(3000, 0.1), RamPoint(2000, 0.5))
    for measured, text in ((None, "this plan"), (0.12, "this plan, 1.12 as measured")):
        price = RamPrice(3000, 4000, 0.1, measured, curve)
        whole = make_report(*report.targets)
        priced = replace(whole, model=replace(whole.model, ram_price=price))
        jsonschema.validate(json_report.as_dict(priced), schema())
        assert ("measured" in json_report.as_dict(priced)["model"]["ram_price"]) == (measured is not None)
        for page in (console.render(priced), markdown.render(priced), html.render(priced)):
            assert (
                "Time over memory" in page and text in page and "1.50" in page and "without a budget" in page
            )
            assert measured is not None or "as measured" not in page.replace("as measured on", "")
    assert "ram_price" not in json_report.as_dict(report)["model"]
    assert "Time over memory" not in markdown.render(report)
