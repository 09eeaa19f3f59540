"""The report as HTML, Markdown and console text: each page is complete and well formed by itself."""

from __future__ import annotations

import json
import re

import pytest
from report_pages import Page
from sample_report import make_report, make_target

from minbuild.ir.size_report import SizeReport
from minbuild.report import console, html, markdown, svg
from minbuild.report import json as json_report


def test_html_stands_alone(report: SizeReport) -> None:
    page = html.render(report)
    parsed = Page(page)
    assert page.startswith("<!doctype html>")
    assert "http:" not in page and "https:" not in page and "url(" not in page and "@import" not in page
    assert not {"link", "img", "iframe", "object"} & {tag for tag, _ in parsed.tags}
    assert "default-src 'none'" in page, "the browser refuses what the page should never ask for"
    assert not any({"src", "href", "onclick"} & set(attributes) for _, attributes in parsed.tags)
    assert "prefers-color-scheme: dark" in page and "@media print" in page
    assert len(page.encode()) < 131_000
    assert html.render(report) == page


def test_the_data_of_the_page_is_the_report() -> None:
    """In the shape of report.json, so that the explorer reads both; and no name ends the element that it stands in."""
    report = make_report(name="</script><b>")
    page = html.render(report)
    assert page.count("</script>") == 2
    found = re.search(r'<script id="report-data" type="application/json">(.*?)</script>', page)
    assert found
    data, whole = json.loads(found[1]), json_report.as_dict(report)
    assert data["model"]["name"] == "</script><b>" and data["schema"] == whole["schema"]
    assert [target["rows"] for target in data["targets"]] == [target["rows"] for target in whole["targets"]]


def test_html_escapes_names() -> None:
    page = html.render(make_report(name="<b>&</b>"))
    assert "<b>&</b>" not in page and "&lt;b&gt;&amp;&lt;/b&gt;" in page
    assert "Op1<x>" not in page and "Op1&lt;x&gt;" in page


def test_every_drawing_has_its_table(report: SizeReport) -> None:
    """Rectangles are titled, as wide as their bytes, and name only rows that a table holds too."""
    page = Page(html.render(make_report()))
    target = make_target()
    texts = {row[0] for row in page.rows if row}
    titles = re.findall(r"<title>([^<]*)</title>", svg.treemap(target))
    shown = {r.name for r in target.rows if r.bytes}
    assert len(titles) == len(shown) and shown <= texts
    assert all(dict(attributes).get("aria-label") for tag, attributes in page.tags if tag == "svg")
    widths = [
        float(w)
        for w in re.findall(r'<rect class="k-\w+" x="[\d.]+" y="0.0" width="([\d.]+)"', svg.bars(target))
    ]
    assert sum(widths) == pytest.approx(780, abs=1)  # the larger build fills the width


def test_markdown_fits_a_comment_and_keeps_its_columns(report: SizeReport) -> None:
    page = markdown.render(report)
    assert len(page) < 65_536
    assert page.startswith("<!-- minbuild")
    width = 0
    for line in page.splitlines():
        cells = len(re.split(r"(?<!\\)\|", line)) if line.startswith("| ") else 0
        assert not (width and cells) or cells == width, line
        width = cells
    assert "\n\n\n" not in page


def test_console_is_plain_unless_told() -> None:
    plain = console.render(make_report())
    assert "\x1b" not in plain and "\x1b[" in console.render(make_report(), color=True)
    assert plain.startswith("lenet: PROVEN on x86_64-linux-gnu\nlenet for x86_64-linux-gnu: ")
    assert "4 smaller operators" in plain and "Library: dist/lib/libminbuild.so" in plain
    assert "0.438 times the reference's own noise" in " ".join(plain.split())
    assert not any(line != line.rstrip() for line in plain.splitlines())
