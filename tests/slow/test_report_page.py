"""The report's page as a browser shows it: nothing overflows or overlaps its tile, everything can be read, light and
dark, wide and narrow, and it prints. The page has no script of its own; here one measures it."""

from __future__ import annotations

import json
import re
import sys
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


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    text = html.render(make_report(make_target(), make_target("aarch64-linux-musl", growth=1000)))
    assert "<script" not in text
    (folder / "report.html").write_text(text, "utf-8")
    (folder / "measured.html").write_text(text.replace("</body>", f"{MEASURE}</body>"), "utf-8")
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
