"""SizeReport -> one HTML page that needs nothing else: no network, light and dark, printable, whole without its script,
which adds an explorer."""

from __future__ import annotations

import base64
import hashlib
import json

from minbuild import assets
from minbuild.escape import printable
from minbuild.ir.size_report import SizeReport, TargetReport
from minbuild.report import memory_tables as memory
from minbuild.report import peers, report_tables, suggestions, svg, time_tables
from minbuild.report import size_tables as library
from minbuild.report.json import as_dict
from minbuild.report.table import kib, saving, text
from minbuild.report.verdict import is_proven, proof, verdicts
from minbuild.templating import render as render_template


def render(report: SizeReport) -> str:
    """The report as a self-contained page."""
    folder = assets.root("templates") / "report"
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    return render_template(
        "report/report.html.j2",
        report=report,
        name=printable(report.model.name),
        verdicts=printable(verdicts(report)),
        style=style,
        script=script,
        script_digest=base64.b64encode(hashlib.sha256(f"\n{script}\n".encode()).digest()).decode(),
        data=_data(report),
        overview=report_tables.overview(report),
        targets=[_target(report, target) for target in report.targets],
        text=text,
    )


def _data(report: SizeReport) -> str:
    """The part of the report's JSON that the explorer reads, in the same shape, so that it reads files of it too. No
    name in it ends the element that it stands in."""
    whole = as_dict(report)
    targets = [{key: target[key] for key in ("target", "trimmed", "rows")} for target in whole["targets"]]
    model = {key: whole["model"][key] for key in ("name", "arenas")}
    text = json.dumps({"schema": whole["schema"], "model": model, "targets": targets}, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _target(report: SizeReport, target: TargetReport) -> dict[str, object]:
    first, *facts = report_tables.headline(report, target)
    return {
        "report": target,
        "first": first,
        "size": kib(first.value),
        "saving": saving(target.trimmed.file, target.full.file),
        "facts": facts,
        "beside": peers.beside_ort(target),
        "proven": is_proven(target),
        "proof": printable(proof(target)),
        "peers": peers.comparison(target),
        "bars": svg.bars(target),
        "treemap": svg.treemap(target),
        "steps": svg.steps(target) if target.waterfall else "",
        "waterfall": library.waterfall(target),
        "composition": library.composition(target),
        "operators": library.operators(target),
        "times": time_tables.operator_times(report, target),
        "others": library.others(target),
        "memory": memory.memory(report.model, target),
        "further": suggestions.all_tables(report, target),
        "regions": (library.regions(target),) if target.regions else (),
        "sections": library.sections(target),
        "provenance": report_tables.provenance(report, target),
    }
