"""SizeReport -> JSON, as `schemas/report.schema.json` describes it. Bytes are integers; nothing depends on
the day."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from minbuild.escape import for_json
from minbuild.ir.size_report import ModelReport, SizeReport
from minbuild.report.verdict import is_proven


def render(report: SizeReport) -> str:
    """The report as indented JSON with a final newline; the summary stands first."""
    return for_json(json.dumps(as_dict(report), indent=1, ensure_ascii=False)) + "\n"


def as_dict(report: SizeReport) -> dict[str, Any]:
    """The report as plain dictionaries and lists."""
    targets = []
    for target in report.targets:
        entry = asdict(target)
        entry["rows"] = [_row(row) for row in entry["rows"]]
        if target.timing is None:
            del entry["timing"]
        else:
            entry["timing"]["graphs"] = dict(target.timing.graphs)
        entry["files"] = dict(target.files)
        entry["static"]["total"] = target.static.total
        entry["session"]["total"] = target.session.total
        if target.stack:
            entry["verification"]["stack"] = {
                "calls": dict(target.stack.calls),
                "peak": target.stack.peak,
            }
        targets.append(entry)
    summary = [
        {
            "target": t.target,
            "proven": is_proven(t),
            "file": t.trimmed.file,
            "full_file": t.full.file,
            "loaded": t.trimmed.loaded,
            "download": t.trimmed.download,
            "ram": t.ram,
            "stack": t.stack.peak if t.stack else None,
        }
        for t in report.targets
    ]
    plain: dict[str, Any] = {"schema": report.schema, "summary": summary, "model": _model(report.model)}
    if report.models:
        plain["models"] = [_model(model) for model in report.models]
    plain["targets"] = targets
    if report.board:
        plain["board"] = asdict(report.board)
    plain["build_options"] = dict(report.build_options)
    return json.loads(json.dumps(plain))  # tuples become lists, as a reader of the file sees them


def _row(row: dict[str, Any]) -> dict[str, Any]:
    """A row with its times, if any, among its other fields."""
    time = row.pop("time") or {}
    return row | {name: value for name, value in time.items() if value is not None}


def _model(report: ModelReport) -> dict[str, Any]:
    model = asdict(report)
    model["files"] = dict(report.files)
    model["sizes"] = dict(report.sizes)
    model["persistent"]["total"] = report.persistent.total
    if report.ram_price is None:
        del model["ram_price"]
    elif report.ram_price.measured is None:
        del model["ram_price"]["measured"]
    return model
