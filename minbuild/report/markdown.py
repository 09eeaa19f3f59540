"""SizeReport -> Markdown for pull requests and files: the headline and operators, the rest folded away."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from minbuild.escape import for_markdown as escape
from minbuild.ir.size_report import SizeReport
from minbuild.report import memory_tables as memory
from minbuild.report import peers, report_tables, suggestions, time_tables
from minbuild.report import size_tables as library
from minbuild.report.table import Fact, Table, text
from minbuild.report.verdict import NOT_PROVEN, proof, verdicts
from minbuild.templating import render as render_template


def render(report: SizeReport) -> str:
    """The report as GitHub-flavoured Markdown."""
    return render_template(
        "report/report.md.j2",
        report=report,
        name=escape(report.model.name),
        verdicts=_strong(escape(verdicts(report))),
        targets=[
            {
                "report": target,
                "proof": _strong(escape(proof(target))),
                "first": _fact(report_tables.headline(report, target)[0]),
                "facts": [_fact(fact) for fact in report_tables.headline(report, target)[1:]],
                "open": [
                    as_markdown(t)
                    for t in (
                        library.composition(target),
                        peers.comparison(target),
                        *((suggestions.suggestion_table(target),) if target.suggestions else ()),
                        library.operators(target),
                        *time_tables.operator_times(report, target),
                    )
                ],
                "folded": [
                    (t.title, as_markdown(t, titled=False))
                    for t in (
                        *((library.waterfall(target),) if target.waterfall else ()),
                        library.others(target),
                        memory.memory(report.model, target),
                        *suggestions.further(report, target),
                        *((library.regions(target),) if target.regions else ()),
                        library.sections(target),
                        report_tables.provenance(report, target),
                    )
                ],
            }
            for target in report.targets
        ],
        overview="\n\n".join(as_markdown(table) for table in report_tables.overview(report)),
    )


def as_markdown(table: Table, titled: bool = True) -> str:
    """One table with its title and note."""
    lines = [f"### {escape(table.title)}", ""] if titled else []
    lines += [escape(table.note), ""] if table.note else []
    lines.append(_line(column.strip() for column in table.columns))
    lines.append(_line("---:" if table.numeric(i) else "---" for i in range(len(table.columns))))
    for line in table.lines:
        cells = (escape(text(cell)) for cell in line.cells)
        strong = line.level != "row"
        lines.append(_line(f"**{cell}**" if strong and cell else cell for cell in cells))
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _fact(fact: Fact) -> Fact:
    return replace(fact, label=escape(fact.label), note=escape(fact.note))


def _strong(text: str) -> str:
    """NOT PROVEN in bold."""
    return text.replace(NOT_PROVEN, f"**{NOT_PROVEN}**")
