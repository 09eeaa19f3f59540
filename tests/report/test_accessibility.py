"""The report's page by keyboard, by screen reader, on a phone and in the dark, as Chromium hands it out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from devtools import Browser
from sample_report import make_report, make_target

from minbuild.report import html

CONTRAST = """(() => {
  const rgb = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => {
    const [r, g, b] = rgb(color).map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = (element) => {
    const color = getComputedStyle(element).backgroundColor;
    return (rgb(color)[3] ?? 1) > 0 || !element.parentElement ? color : paper(element.parentElement);
  };
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    const skipped = !element.checkVisibility() || element.closest("svg, script, :disabled");
    if (skipped || !texts.currentNode.data.trim()) continue;
    const [low, high] = [light(getComputedStyle(element).color), light(paper(element))].sort((a, b) => a - b);
    found.push([(high + 0.05) / (low + 0.05), texts.currentNode.data.trim()]);
  }
  const tile = [...document.querySelectorAll("svg rect")].map((rect) => getComputedStyle(rect).fill);
  const white = getComputedStyle(document.querySelector("svg .tile")).fill;
  for (const fill of new Set(tile)) found.push([(light(white) + 0.05) / (light(fill) + 0.05), `on ${fill}`]);
  return found.sort(([a], [b]) => a - b).slice(0, 3);
})()"""


CRUMBS = "document.querySelectorAll('#crumbs li').length"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    folder = tmp_path_factory.mktemp("page")
    report = make_report(make_target(), make_target("aarch64-linux-musl", growth=1000))
    (folder / "report.html").write_text(html.render(report), "utf-8")
    with Browser(folder) as browser:
        browser.open((folder / "report.html").as_uri())
        yield browser


def focused(page: Browser) -> dict:
    """The node that a screen reader reads now."""
    return [node for node in page.tree() if node.get("focused") and node["role"] != "RootWebArea"][-1]


def test_landmarks_and_headings(page: Browser) -> None:
    tree = page.tree()
    roles = [node["role"] for node in tree]
    assert [roles.count(role) for role in ("banner", "main", "contentinfo")] == [1, 1, 1]
    named = {(node["role"], node["name"]) for node in tree}
    assert ("region", "Explore every byte") in named and ("navigation", "Place in the report") in named
    headings = [node for node in tree if node["role"] == "heading"]
    levels = [int(node["level"]) for node in headings]
    assert levels[0] == 1 and levels.count(1) == 1
    targets = [node["name"] for node in headings if node["level"] == 2]
    assert targets[-2:] == [make_target().target, "aarch64-linux-musl"]
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False)), levels


def test_tables_have_names_and_headers(page: Browser) -> None:
    tree = page.tree()
    tables = [i for i, node in enumerate(tree) if node["role"] == "table"]
    assert len(tables) > 8
    for table in tables:
        inside = [node for node in tree if table in node["above"]]
        columns = [node["name"] for node in inside if node["role"] == "columnheader"]
        rows = [i for i, node in enumerate(tree) if node["role"] == "row" and table in node["above"]]
        assert tree[table]["name"] and columns
        for row in rows[1:]:  # below the titles
            first = next(node for node in tree if row in node["above"])
            assert first["role"] == "rowheader", (tree[table]["name"], first)


def test_everything_that_takes_a_key_has_a_name(page: Browser) -> None:
    tree = page.tree()
    roles = ("button", "combobox", "searchbox", "textbox", "link", "image", "group", "region", "status")
    nameless = [
        node for node in tree if node["role"] in roles and not node["name"] and node["role"] != "status"
    ]
    assert not nameless
    assert not [node for node in tree if node.get("focusable") and not node["name"]]
    assert sum(node["role"] in ("image", "img") for node in tree) >= 4


def test_the_treemap_by_keys_alone(page: Browser) -> None:
    """Tab to it, arrows within it, Enter to open, Escape to go back; each tile is read with its bytes and share."""
    page.run("document.activeElement.blur()")
    for _ in range(15):
        page.press("Tab")
        if page.run("document.getElementById('map').contains(document.activeElement)"):
            break
    first = focused(page)
    assert first["role"] == "button" and " bytes, " in first["name"] and first["name"].endswith("%, open")
    page.press("ArrowRight")
    second = focused(page)
    assert second["name"] != first["name"]
    page.press("Enter")
    page.wait_for(CRUMBS, 2)
    within = focused(page)
    assert within["disabled"] and " bytes, " in within["name"]  # a symbol: read, and nothing to open
    page.press("Escape")
    page.wait_for(CRUMBS, 1)
    page.press("Tab")
    assert page.run("document.getElementById('map').contains(document.activeElement)") is False


def test_escape_in_the_search_field_clears_it_only(page: Browser) -> None:
    page.click("#map button")
    page.wait_for(CRUMBS, 2)
    page.click("#search")
    page.call("Input.insertText", text="nothing is called that")
    assert page.run("document.querySelectorAll('#map button').length") == 0
    page.press("Escape")
    assert page.run(
        "[document.getElementById('search').value, document.querySelectorAll('#crumbs li').length]"
    ) == ["", 2]
    page.click("#crumbs button")


@pytest.mark.parametrize("width", [360, 1100])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read(page: Browser, scheme: str, width: int) -> None:
    """WCAG's 4.5 for every text, and no scrolling sideways; by the rules of axe-core too, where `MINBUILD_AXE` is the
    path of its script."""
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500
    )
    page.run("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))")
    worst = page.run(CONTRAST)
    assert worst[0][0] >= 4.5, worst
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    wide = "[...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth)"
    assert page.run(f"{wide}.every((e) => e.tabIndex === 0)")
    if width < 500:
        assert page.run(f"{wide}.length") > 0
    if axe := os.environ.get("MINBUILD_AXE"):
        page.run(Path(axe).read_text("utf-8") + ";0")
        found = page.run(
            "axe.run().then((r) => r.violations.map((v) => [v.id, v.help, v.nodes.slice(0, 3).map((n) => n.html)]))"
        )
        assert not found, found
