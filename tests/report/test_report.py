"""The same numbers in console, JSON, Markdown and HTML; pages that stand alone; templates and assets."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError
from sample_report import make_report, make_target, operator

from minbuild import assets, templating
from minbuild.errors import BadInput
from minbuild.escape import for_markdown
from minbuild.ir.size_report import (
    Group,
    Row,
    SizeReport,
    Smaller,
)
from minbuild.report import console, html, markdown, report_tables, suggestions, svg
from minbuild.report import element_types as types
from minbuild.report import json as json_report
from minbuild.report import memory_tables as memory
from minbuild.report import size_tables as library
from minbuild.report.table import Line, Table, kib, percent, saving, text

# ----------------------------------------------------------------------------------------- reading pages back


class Page(HTMLParser):
    """Tables, texts and tags of a page; complains about tags that do not nest."""

    VOID = frozenset(("meta", "link", "br", "img", "input"))

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data.strip()


def markdown_rows(page: str) -> list[list[str]]:
    rows = []
    for line in page.splitlines():
        if line.startswith("| "):
            cells = [c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]]
            cells = [c[2:-2] if c.startswith("**") and c.endswith("**") else c for c in cells]
            plain = [re.sub(r"\\(.)", r"\1", c) for c in cells]
            rows.append([c.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") for c in plain])
    return rows


def numbers_of_json(report: SizeReport) -> list[tuple[str, str]]:
    """(name, number as printed) for everything a reader would compare, from the JSON text alone."""
    data = json.loads(json_report.render(report))
    pairs = []
    for entry in data["targets"]:
        pairs += [(r["name"], r["bytes"]) for r in entry["rows"]]
        pairs += [(g["title"], g["bytes"]) for g in entry["groups"]]
        pairs += [(g["title"], g["full_bytes"]) for g in entry["groups"]]
        for s in entry["sections"]:
            pairs += [(s["name"], v) for k, v in s.items() if k != "name"]
        for r in entry["regions"]:
            pairs += [(r["title"], v) for v in r.values() if isinstance(v, int)]
        pairs += [
            ("RAM", entry["ram"]),
            ("Peak stack", entry["verification"]["stack"]["peak"]),
            ("RAM and stack", entry["ram"] + entry["verification"]["stack"]["peak"]),
            *((f"Stack: {call}", size) for call, size in entry["verification"]["stack"]["calls"].items()),
            ("The file", entry["trimmed"]["file"]),
            ("File", entry["full"]["file"]),
        ]
        pairs += [
            ("of it loaded segments", entry["trimmed"]["loaded"]),
            ("after gzip -9", entry["full"]["download"]),
        ]
        pairs += [(r["name"], r["leave_one_out"]) for r in entry["rows"] if r["leave_one_out"] is not None]
        pairs += [(p["title"], p["bytes"]) for p in entry["phases"]]
        pairs += [(a["title"], a[kind]) for a in entry["suggestions"] for kind in ("file", "model", "ram")]
        pairs += [("Static: zeroed data", entry["static"]["bss"])]
        pairs += [
            (t["name"], t[kind])
            for t in entry["types"]
            if t["kernels"]
            for kind in ("kernels", "full_kernels")
        ]
        pairs += [
            ("All operators", sum(t[kind] for t in entry["types"])) for kind in ("kernels", "full_kernels")
        ]
    model = data["model"]
    pairs += [(f"Arena: {a['graph']}", a["peak"]) for a in model["arenas"]]
    pairs += [(a["name"], a["bytes"]) for a in model["arenas"][0]["live"]]
    pairs += [
        ("Live at the peak (lower bound)", model["arenas"][0]["lower_bound"]),
        ("Peak of the arena", model["arenas"][0]["peak"]),
    ]
    labels = {
        "parameters": "Parameters",
        "gradients": "Gradients",
        "optimizer": "Optimizer state",
        "state": "State",
        "other": "Counters and padding",
        "frozen": "Frozen parameters",
        "total": "Persistent",
    }
    pairs += [(label, model["persistent"][key]) for key, label in labels.items()]
    pairs += [("Plan file", model["plan_bytes"]), ("Checkpoint file", model["checkpoint_bytes"])]
    return [(name, f"{value:,}") for name, value in pairs]


def test_markdown_and_html_carry_the_numbers_of_the_json(report: SizeReport) -> None:
    expected = numbers_of_json(report)
    assert len(expected) > 100
    for rows in (markdown_rows(markdown.render(report)), Page(html.render(report)).rows):
        found = {(row[0], cell) for row in rows if row for cell in row[1:]}
        assert [pair for pair in expected if pair not in found] == []


def test_console_carries_the_numbers_of_the_json(report: SizeReport) -> None:
    lines = console.render(report, limit=None, width=200).splitlines()
    wanted = numbers_of_json(report)
    assert len(wanted) > 100
    for name, number in wanted:
        assert any(line.startswith(name) and number in line.split() for line in lines), (name, number)


def test_the_headline_is_the_same_everywhere(report: SizeReport) -> None:
    bare = unescape(re.sub(r"<[^>]+>", "", html.render(report)))
    pages = (console.render(report, width=200), markdown.render(report), bare)
    for target in report.targets:
        for fact in report_tables.headline(report, target):
            for page in pages:
                note = for_markdown(fact.note) if page is pages[1] else fact.note
                assert f"{fact.value:,}" in page and note in page, fact


def test_what_decides_is_said_last(report: SizeReport) -> None:
    facts = replace(report.model, smaller=(Smaller("batch", 1, 100), Smaller("batch", 8, 900)))
    report = replace(report, model=facts)
    last = console.render(report, width=60).splitlines()[-1]
    target = report.targets[-1]
    assert last == report_tables.one_line(report, target)
    flash = target.trimmed.loaded + facts.plan_bytes + facts.checkpoint_bytes
    rest = target.ram - max(arena.peak for arena in facts.arenas)
    assert (
        f"flash {flash:,} B" in last and f"{rest + 100:,} B at batch 1, {rest + 900:,} B at batch 8" in last
    )
    told = {fact.label: fact.value for fact in report_tables.headline(report, target)}
    assert (told["Flash total"], told["RAM at batch 1"]) == (flash, rest + 100)
    assert f"RAM then {rest + 900:,}" in str(memory.memory(facts, target).lines)
    jsonschema.validate(json_report.as_dict(report), schema())


def test_every_table_adds_up(report: SizeReport) -> None:
    for target in report.targets:
        others = library.others(target)
        sums = [line for line in others.lines if line.level == "sum"]
        assert others.lines[-1].cells[2] == target.trimmed.file == sum(int(line.cells[2]) for line in sums)
        rows = [line for line in others.lines if line.level == "row"]
        own = library.operators(target).lines[-1].cells[4]
        assert sum(int(line.cells[2]) for line in rows) + int(own) == target.trimmed.file
        for limit in (None, 3, 12):
            *rest, total = library.operators(target, limit).lines
            assert sum(int(line.cells[4]) for line in rest) == total.cells[4]
        *rest, total = suggestions.phases(target).lines
        assert sum(int(line.cells[2]) for line in rest) == total.cells[2] == target.trimmed.file
        for limit in (None, 3, 12):
            *rest, total = memory.live_tensors(report.model, limit).lines
            levels = [line.level for line in rest]
            assert levels.index("sum") == len(rest) - 2 and (limit is None or len(rest) - 2 <= limit)
            held = sum(int(line.cells[3]) for line in rest if line.level == "row")
            assert held == total.cells[3] == report.model.arenas[0].peak
        *rest, total = types.types(target).lines
        assert [line.cells[0] for line in rest] == ["gather", "gemm", "2 other operators"]
        for column in (-2, -1):
            assert sum(int(line.cells[column]) for line in rest) == total.cells[column]
        stack = target.stack
        assert stack is not None and stack.peak == 17_952 + (1000 if target is report.targets[1] else 0)
        held = {line.cells[0]: line.cells[1] for line in memory.memory(report.model, target).lines}
        assert held["Peak stack"] == max(size for name, size in held.items() if name.startswith("Stack: "))
        assert held["RAM and stack"] == held["RAM"] + held["Peak stack"]
        *rest, total = library.sections(target).lines
        for column in range(1, 5):
            assert sum(int(line.cells[column]) for line in rest) == total.cells[column]
        *rest, in_regions = library.regions(target).lines
        for column in range(1, 5):
            added = sum(int(line.cells[column + 1]) for line in rest)
            assert added == in_regions.cells[column + 1] == total.cells[column]
        for limit in (1, 3, 12):
            *rest, total = library.others(target, limit).lines
            assert sum(int(line.cells[2]) for line in rest) == total.cells[2] == target.trimmed.file
            assert len(rest) - 1 <= limit


def test_types_stand_in_their_columns(report: SizeReport) -> None:
    table = types.types(report.targets[0])
    assert [c.strip() for c in table.columns[1:-2]] == [
        *("f32", "f64", "bf16", "i32", "i64", "u8", "u32", "strange")
    ]  # fmt: skip
    marks = {line.cells[0]: line.cells[1:-2] for line in table.lines}
    assert marks["gather"] == ("", "", "", "○", "●", "○", "●", "")
    assert marks["gemm"] == ("●", "○", "○", "", "", "", "", "○")
    assert marks["2 other operators"] == ("○", "○", "", "", "", "", "", "")
    for page in (console.render(report), markdown.render(report), html.render(report)):
        for name in ("f32", "bf16", "strange"):
            assert name in page
        assert page.count("●") > page.count("f32") and "○" in page


def test_a_stack_that_was_not_measured_is_said_so(report: SizeReport) -> None:
    proven = report.targets[0].verification
    assert proven is not None
    unknown = make_report(replace(report.targets[0], verification=replace(proven, stack=None)))
    for page in (console.render(unknown), markdown.render(unknown), html.render(unknown)):
        assert "not measured" in page and "RAM and stack" not in page and "Stack: " not in page
    data = json_report.as_dict(unknown)
    jsonschema.validate(data, schema())
    assert data["targets"][0]["verification"]["stack"] is None and data["summary"][0]["stack"] is None


def test_names_are_not_broken_over_lines() -> None:
    name = "/features/features.2/conv/conv.0/Conv_output_0"
    long = Table(
        "t",
        "T",
        "",
        ("Tensor ", "Made by ", "Bytes"),
        (Line((name, f"{name} {name}", 6_291_456)), Line(("a", "b", 1))),
    )
    shown = console.as_text(long, 60)
    assert all(len(line) <= 60 for line in shown.splitlines())
    cut = [word for word in shown.split() if word.startswith("/")]
    assert len(cut) == 3 and all("…" in word and word.endswith("_output_0") for word in cut)
    assert "6,291,456" in shown
    assert console.as_text(long, 200).count(name) == 3


def test_operators_fit_into_a_hundred_characters(report: SizeReport) -> None:
    """With all columns, names as long as ONNX Runtime has them."""
    names = ("softmax_cross_entropy", "negative_log_likelihood", "layer_normalization")
    serves = (
        "com.microsoft:SoftmaxCrossEntropyLossInternalGrad",
        "com.microsoft:LayerNormalizationGrad",
        "Conv",
    )
    rows = tuple(
        replace(
            operator(name, 812, 3), users=serves, types=("float", "int64_t", "uint8_t"), leave_one_out=1_111
        )
        for name in names
    )
    shown = console.as_text(library.operators(replace(report.targets[0], rows=rows)), 100)
    assert all(len(line) <= 100 for line in shown.splitlines())
    found = shown.replace(",", " ").split()
    for name in (*names, "LayerNormalizationGrad", "int64_t"):
        assert found.count(name) >= 1, name
    assert not [word for word in found if word in ("Grad", "Loss", "py", "InternalGrad")]


def test_rows_have_a_cell_for_every_column(report: SizeReport) -> None:
    target = report.targets[0]
    found: tuple[Table, ...] = (
        library.composition(target), library.operators(target), library.others(target), library.sections(target),
        memory.memory(report.model, target), report_tables.comparison(report), report_tables.provenance(report, target),
        *suggestions.further(report, target), *suggestions.further(report, target, 3),
    )  # fmt: skip
    for table in found:
        assert {len(line.cells) for line in table.lines} == {len(table.columns)}, table.key


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


# ------------------------------------------------------------------------------------------------------- JSON


def schema() -> dict[str, object]:
    loaded = json.loads((assets.root("schemas") / "report.schema.json").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


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


# ------------------------------------------------------------------------------------------------------- HTML


def test_html_stands_alone(report: SizeReport) -> None:
    page = html.render(report)
    parsed = Page(page)
    assert page.startswith("<!doctype html>")
    assert "http:" not in page and "https:" not in page and "url(" not in page and "@import" not in page
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in parsed.tags}
    assert not any({"src", "href", "onclick"} & set(attributes) for _, attributes in parsed.tags)
    assert "prefers-color-scheme: dark" in page and "@media print" in page
    assert len(page.encode()) < 100_000
    assert html.render(report) == page


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


# ---------------------------------------------------------------------------------------------------- treemap


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=60))
def test_squarify_fills_the_box_in_proportion(areas: list[int]) -> None:
    box = svg.Box(3, 5, 960, 420)
    ordered = sorted(areas, reverse=True)
    found = svg.squarify(ordered, box)
    scale = 960 * 420 / sum(ordered)
    for area, b in zip(ordered, found, strict=True):
        assert b.width * b.height == pytest.approx(area * scale, rel=1e-6)
        assert b.x >= 3 - 1e-6 and b.y >= 5 - 1e-6
        assert b.x + b.width <= 963 + 1e-6 and b.y + b.height <= 425 + 1e-6
    for i, a in enumerate(found):
        for b in found[:i]:
            overlap_x = min(a.x + a.width, b.x + b.width) - max(a.x, b.x)
            overlap_y = min(a.y + a.height, b.y + b.height) - max(a.y, b.y)
            assert min(overlap_x, overlap_y) < 1e-6


def test_squarify_of_a_line() -> None:
    for box in (svg.Box(5, 6, 0, 9), svg.Box(5, 6, 9, 0), svg.Box(5, 6, 0, 0)):
        found = svg.squarify([3, 2, 1], box)
        assert len(found) == 3 and all(each.width * each.height == 0 for each in found)


def test_the_smallest_kind_has_its_tiles() -> None:
    """A kind of a few bytes gets a strip thinner than the gap around strips."""
    groups = (Group("operator", "Operators", 90_000, 90_000), Group("overhead", "Overhead", 40, 40))
    rows = tuple(
        Row(kind, name, size, (), (), (), ())
        for kind, name, size in (("operator", "gemm", 90_000), ("overhead", "a", 22), ("overhead", "b", 18))
    )
    drawn = svg.treemap(replace(make_target(), groups=groups, rows=rows))
    assert re.findall(r"([\d,]+) B</title>", drawn) == ["90,000", "22", "18"]


def test_squarify_of_nothing() -> None:
    assert svg.squarify([], svg.Box(0, 0, 1, 1)) == []
    assert svg.squarify([0, 0], svg.Box(0, 0, 1, 1)) == [svg.Box(0, 0, 0, 0)] * 2


def test_cells() -> None:
    assert text(1234567) == "1,234,567" and text("x") == "x"
    assert percent(1, 3) == "33.3 %" and percent(1, 0) == "–"
    assert saving(25, 100) == "−75.0 %" and saving(125, 100) == "+25.0 %" and saving(1, 0) == "–"
    assert kib(11_264) == "11.0 KiB" and kib(3 << 20) == "3.0 MiB"


# --------------------------------------------------------------------------------------- templates and assets


def test_assets_in_a_checkout_and_in_a_wheel(tmp_path: Path) -> None:
    for kind in assets.KINDS:
        assert assets.root(kind).is_dir()
    package = tmp_path / "site-packages" / "minbuild"
    (package.parent / "templates").mkdir(parents=True)  # of another package
    package.mkdir()
    with pytest.raises(BadInput, match="has no templates"):
        assets.root("templates", package)
    (package / "_assets" / "templates").mkdir(parents=True)
    assert assets.root("templates", package) == package / "_assets" / "templates"
    checkout = tmp_path / "checkout"
    (checkout / "kernels").mkdir(parents=True)
    (checkout / "pyproject.toml").write_text("")
    assert assets.root("kernels", checkout / "minbuild") == checkout / "kernels"
    with pytest.raises(ValueError, match="no assets of kind 'fonts'"):
        assets.root("fonts")


def test_templates_are_strict() -> None:
    with pytest.raises(UndefinedError):
        templating.render("report/report.md.j2")
