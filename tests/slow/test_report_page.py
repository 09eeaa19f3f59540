"""The report's page as a browser shows it: nothing overflows or overlaps its tile, everything can be read, light and
dark, wide and narrow, and it prints. Its explorer is clicked and typed into; a script measures it."""

from __future__ import annotations

import json
import re
import sys
from html import unescape
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "support"))

from programs import run  # noqa: E402
from sample_report import make_report, make_target  # noqa: E402

from minbuild.report import html  # noqa: E402

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DARK = ("--blink-settings=preferredColorScheme=0",)
MEASURE = """
<script>
const rgb = (color) => color.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => {
  const [x, y, z] = [r, g, b].map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
};
const contrast = (a, b) => {
  const [low, high] = [light(rgb(a)), light(rgb(b))].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
};
const paper = getComputedStyle(document.body).backgroundColor;
const texts = [...document.querySelectorAll("h1, h3, p, td, th, dt, dd, code")].filter((e) => e.textContent.trim());
const worst = Math.min(...texts.map((e) => contrast(getComputedStyle(e).color, paper)));
const tiles = [];
for (const svg of document.querySelectorAll("svg")) {
  const rects = [...svg.querySelectorAll("rect")];
  for (const text of svg.querySelectorAll("text.tile")) {
    const t = text.getBoundingClientRect();
    const under = rects.filter((r) => {
      const b = r.getBoundingClientRect();
      return b.left - 1 <= t.left && b.top - 1 <= t.top && t.right <= b.right + 1 && t.bottom <= b.bottom + 2;
    });
    const fill = under.length ? getComputedStyle(under[under.length - 1]).fill : "";
    tiles.push({ text: text.textContent, inside: under.length > 0,
                 contrast: fill ? contrast(getComputedStyle(text).fill, fill) : 0 });
  }
}
document.body.dataset.found = JSON.stringify({
  paper, worst, tiles, width: innerWidth, needed: document.documentElement.scrollWidth,
  drawings: [...document.querySelectorAll("svg")].map((s) => s.getBoundingClientRect().height),
});
</script>
"""


def browser() -> str:
    import shutil

    found = next((b for b in BROWSERS if shutil.which(b)), None)
    if found is None:
        pytest.skip("chromium is not installed")
    return found


def with_script(page: str, script: str) -> str:
    """The page with one more script, which its policy would refuse."""
    changed = re.sub(r"script-src 'sha256-[^']*'", "script-src 'unsafe-inline'", page)
    assert changed != page
    return changed.replace("</body>", f"{script}</body>")


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    text = html.render(make_report(make_target(), make_target("aarch64-linux-musl", growth=1000)))
    (folder / "report.html").write_text(text, "utf-8")
    (folder / "measured.html").write_text(with_script(text, MEASURE), "utf-8")
    return folder


def opened(folder: Path, *flags: str) -> str:
    common = ("--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}")
    return run(browser(), *common, *flags, cwd=folder)


@pytest.mark.parametrize("width", [1100, 500])
@pytest.mark.parametrize("scheme", [(), DARK], ids=["light", "dark"])
def test_everything_can_be_read(page: Path, scheme: tuple[str, ...], width: int) -> None:
    address = (page / "measured.html").as_uri()
    shown = opened(page, *scheme, f"--window-size={width},1400", "--dump-dom", address)
    match = re.search(r'data-found="([^"]*)"', shown)
    assert match, shown[-500:]
    found = json.loads(
        match[1].replace("&quot;", '"').replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    )
    red = int(re.findall(r"\d+", found["paper"])[0])
    assert red < 64 if scheme else red > 192
    assert found["needed"] <= found["width"], "the page is wider than the window"
    assert found["worst"] >= 4.5, "text that is hard to read"
    assert len(found["drawings"]) == 4 and min(found["drawings"]) > 10
    assert len(found["tiles"]) > 20
    for tile in found["tiles"]:
        assert tile["inside"], f"{tile['text']} does not fit its tile"
        assert tile["contrast"] >= 3, f"{tile['text']} is hard to read: {tile['contrast']:.1f}"


def test_it_prints_and_can_be_photographed(page: Path) -> None:
    address = (page / "report.html").as_uri()
    opened(page, f"--print-to-pdf={page / 'report.pdf'}", address)
    opened(
        page, "--hide-scrollbars", "--window-size=1100,1400", f"--screenshot={page / 'report.png'}", address
    )
    printed, picture = (page / "report.pdf").read_bytes(), (page / "report.png").read_bytes()
    assert printed.startswith(b"%PDF") and printed.count(b"/Type /Page\n") >= 2
    assert picture.startswith(b"\x89PNG") and len(picture) > 50_000


# ------------------------------------------------------------------------------------------- the explorer, clicked

CLICKS = """
<script>
const said = {}, at = (id) => document.getElementById(id);
const later = () => new Promise((done) => setTimeout(done, 30));
const all = (selector) => [...document.querySelectorAll(selector)];
// The element on top in the middle of another takes the click, as it would a finger's.
const click = async (element) => {
  element.scrollIntoView({ block: "center" });
  const box = element.getBoundingClientRect(), x = box.left + box.width / 2, y = box.top + box.height / 2;
  const top = document.elementFromPoint(x, y);
  top.dispatchEvent(new MouseEvent("click", { clientX: x, clientY: y, bubbles: true }));
  await later();
};
const press = async (key) => {
  document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  await later();
};
const names = () => all("#explorer-table tbody tr th").map((cell) => cell.textContent);
const heads = () => Object.fromEntries(
  all("#explorer-table thead th").map((head) => [head.textContent, head.getAttribute("aria-sort")]));
const crumbs = () => all("#crumbs li").map((step) => step.textContent);
const give = async (name, text) => {
  const files = new DataTransfer();
  files.items.add(new File([text], name));
  at("compare").files = files.files;
  const before = at("explorer-status").textContent;
  at("compare").dispatchEvent(new Event("change"));
  for (let i = 0; i < 400 && at("explorer-status").textContent === before; ++i) await later();
};
(async () => {
  said.tiles = all("#map button").length;
  said.heads = heads();
  said.status = at("explorer-status").textContent;
  await click(all("#map button")[1]);
  said.row = [crumbs(), names(), all("#nodes li").length, at("back").disabled];
  await click(all("#nodes button")[0]);
  said.node = [crumbs(), names()];
  at("back").focus();
  await press("Escape");
  said.escaped = crumbs();
  history.back();
  await later(), await later();
  said.history = crumbs();
  await click(at("back"));
  await click(all("#crumbs button")[0]);
  said.top = [crumbs(), location.hash];
  await click(all('#explorer-table th[data-key="name"] button')[0]);
  said.sorted = [heads().Name, names().slice(0, 2), document.activeElement.textContent];
  at("search").value = "/net/com.microsoft:op3";
  at("search").dispatchEvent(new Event("input"));
  said.searched = [names(), all("#map button").length, at("explorer-status").textContent];
  at("search").value = "";
  at("search").dispatchEvent(new Event("input"));
  all("#map button")[0].focus();
  await press("ArrowRight");
  said.arrow = all("#map button").indexOf(document.activeElement);
  said.tabbable = all('#map button[tabindex="0"]').length;
  await give("broken.json", "{}");
  said.broken = at("explorer-status").textContent;
  const other = JSON.parse(at("report-data").textContent);
  other.targets[0].rows[0].bytes += 500;
  const gone = { kind: "operator", name: "gone", bytes: 40, users: [], types: [], nodes: [], symbols: [] };
  other.targets[0].rows.push(gone);
  await give("report.json", JSON.stringify(other));
  said.compared = [heads(), names().slice(0, 2), at("explorer-status").textContent, at("before-name").textContent];
  said.maps = all(".map").map((map) => [map.offsetParent !== null, map.childElementCount]);
  await click(at("clear"));
  said.cleared = "Before" in heads();
  const paper = () => getComputedStyle(document.body).backgroundColor;
  for (const theme of ["dark", "light"]) {
    at("theme").value = theme;
    at("theme").dispatchEvent(new Event("change"));
    said[theme] = paper();
  }
  said.labelled = all("#explorer :is(input, select)").every((field) => field.labels.length)
    && all("#map button").every((tile) => tile.ariaLabel);
  said.fetched = performance.getEntriesByType("resource").length;
  said.small = all("#map button").filter((tile) => {
    const box = tile.getBoundingClientRect();
    return [...tile.children].some((words) => {
      const inner = words.getBoundingClientRect();
      return inner.right > box.right || inner.bottom > box.bottom;
    });
  }).length;
  document.body.dataset.said = JSON.stringify(said);
})().catch((error) => (document.body.dataset.said = JSON.stringify({ failed: String(error) })));
</script>
"""


@pytest.mark.parametrize("width", [1100, 420])
def test_the_explorer_answers_clicks_and_keys(page: Path, width: int) -> None:
    text = (page / "report.html").read_text("utf-8")
    (page / "clicked.html").write_text(with_script(text, CLICKS), "utf-8")
    flags = (f"--window-size={width},1400", "--virtual-time-budget=60000", "--dump-dom")
    match = re.search(r'data-said="([^"]*)"', opened(page, *flags, (page / "clicked.html").as_uri()))
    assert match, "the page did not finish"
    said = json.loads(unescape(match[1]))
    assert "failed" not in said, said
    target = make_target()
    rows = {row.name: row for row in target.rows}
    largest = max((row for row in target.rows if row.kind == "operator"), key=lambda row: row.bytes)
    assert said["tiles"] == sum(row.bytes > 0 for row in target.rows)
    assert said["heads"]["Bytes"] == "descending" and "Before" not in said["heads"]
    assert said["status"] == f"{len(rows)} of {len(rows)} shown, {target.trimmed.file:,} bytes."
    assert said["row"] == [
        ["Everything", largest.name],
        [largest.symbols[0].names[0]],
        len(largest.nodes),
        False,
    ]
    assert said["node"] == [["Everything", largest.name, f"node {largest.nodes[0]}"], [largest.name]]
    assert said["escaped"] == ["Everything", largest.name]
    assert said["history"] == said["node"][0], "the browser's way back"
    assert said["top"][0] == ["Everything"]
    assert said["sorted"][0] == "ascending" and said["sorted"][1] == sorted(said["sorted"][1], key=str.lower)
    assert said["sorted"][2] == "Name", "the focus stays"
    found = said["searched"]
    assert found[0] == ["com.microsoft:Op3<x>&|_`"] and found[1] == 1 and found[2].startswith("1 of ")
    assert said["arrow"] == 1 and said["tabbable"] == 1
    assert "broken.json cannot be compared" in said["broken"]
    heads, names, status, before = said["compared"]
    assert heads["Change"] == "descending" and names == [target.rows[0].name, "gone"]
    assert status.endswith(f"{target.trimmed.file + 540:,} before, −540.") and before.startswith(
        "Before: lenet, "
    )
    assert [shown for shown, _ in said["maps"]] == [True, True] and said["maps"][0][1] == said["tiles"] + 1
    assert not said["cleared"]
    assert int(re.findall(r"\d+", said["dark"])[0]) < 64 and int(re.findall(r"\d+", said["light"])[0]) > 192
    assert said["labelled"] and said["fetched"] == 0 and said["small"] == 0
