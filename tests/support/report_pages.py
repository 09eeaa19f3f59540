"""Pages of reports, read back: tables of HTML and Markdown, and the numbers of the JSON."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

from minbuild import assets
from minbuild.ir.size_report import SizeReport
from minbuild.report import json as json_report


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
            ("Session's own tables", entry["session"]["tables"]),
            ("Stacks of threads", entry["session"]["stacks"]),
            ("One session", entry["ram"] - entry["static"]["total"]),
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
        pairs += [(f["title"], f[kind]) for f in entry["features"][:1] for kind in ("file", "ram")]
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
        ("Live at the peak: the least for this order", model["arenas"][0]["lower_bound"]),
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


def schema() -> dict[str, object]:
    """The schema that the JSON of a report follows."""
    loaded = json.loads((assets.root("schemas") / "report.schema.json").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded
