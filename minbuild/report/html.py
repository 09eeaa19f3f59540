"""SizeReport -> one HTML page that needs nothing else: no network, no script, light and dark, printable."""

from __future__ import annotations

from minbuild import assets
from minbuild.escape import printable
from minbuild.ir.size_report import SizeReport, TargetReport
from minbuild.report import memory_tables as memory
from minbuild.report import peers, report_tables, suggestions, svg
from minbuild.report import size_tables as library
from minbuild.report.table import kib, saving, text
from minbuild.report.verdict import is_proven, proof, verdicts
from minbuild.templating import render as render_template


def render(report: SizeReport) -> str:
    """The report as a self-contained page."""
    style = (assets.root("templates") / "report" / "report.css").read_text(encoding="utf-8")
    return render_template(
        "report/report.html.j2",
        report=report,
        name=printable(report.model.name),
        verdicts=printable(verdicts(report)),
        style=style,
        overview=report_tables.overview(report),
        targets=[_target(report, target) for target in report.targets],
        text=text,
    )


def _target(report: SizeReport, target: TargetReport) -> dict[str, object]:
    first, *facts = report_tables.headline(report, target)
    return {
        "report": target,
        "first": first,
        "size": kib(first.value),
        "saving": saving(target.trimmed.file, target.full.file),
        "facts": facts,
        "proven": is_proven(target),
        "proof": printable(proof(target)),
        "peers": peers.comparison(target),
        "bars": svg.bars(target),
        "treemap": svg.treemap(target),
        "steps": svg.steps(target) if target.waterfall else "",
        "waterfall": library.waterfall(target),
        "composition": library.composition(target),
        "operators": library.operators(target),
        "others": library.others(target),
        "memory": memory.memory(report.model, target),
        "further": suggestions.all_tables(report, target),
        "regions": (library.regions(target),) if target.regions else (),
        "sections": library.sections(target),
        "provenance": report_tables.provenance(report, target),
    }
