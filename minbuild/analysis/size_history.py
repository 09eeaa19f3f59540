"""Figures of reports as lines of a history: made of a report, written, read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from minbuild.errors import BadInput
from minbuild.frontend.files import read_file
from minbuild.ir.size_record import Entry, SizeRecord, TargetFigures

OPERATOR = "operator"
_COMMIT = (
    "MINBUILD_COMMIT",
    "GITHUB_SHA",
    "CI_COMMIT_SHA",
    "BUILD_SOURCEVERSION",
    "GIT_COMMIT",
)  # in the environment


def record_of(report: Mapping[str, Any]) -> SizeRecord:
    """The figures of a report as `report.json` has it. Raises KeyError, TypeError or AttributeError if it is none."""
    model = report["model"]
    return SizeRecord(
        str(model["name"]),
        minbuild=str(model["minbuild"]),
        files=dict(model["files"]),
        sizes=dict(model["sizes"]),
        arenas={arena["graph"]: int(arena["peak"]) for arena in model["arenas"]},
        persistent={
            name: int(size) for name, size in model["persistent"].items() if name not in ("total", "frozen")
        },
        plan=int(model["plan_bytes"]),
        targets=tuple(_target(target) for target in report["targets"]),
        build_options=dict(report.get("build_options", {})),
    )


def _target(target: Mapping[str, Any]) -> TargetFigures:
    stack = (target["verification"] or {}).get("stack")
    entries = (Entry(r["kind"], r["name"], int(r["bytes"]), tuple(r["users"])) for r in target["rows"])
    return TargetFigures(
        target["target"],
        toolchain=target["toolchain"],
        flags=tuple(target["flags"]),
        file=int(target["trimmed"]["file"]),
        loaded=int(target["trimmed"]["loaded"]),
        download=int(target["trimmed"]["download"]),
        ram=int(target["ram"]),
        static=int(target["static"]["total"]),
        entries=tuple(entries),
        stack=int(stack["peak"]) if stack else None,
        session=int(target.get("session", {}).get("total", 0)),
    )


# -------------------------------------------------------------------------------------------------- history


def as_line(snapshot: SizeRecord) -> str:
    """A snapshot as one line of JSON."""
    return json.dumps({"history": 1, **asdict(snapshot)}, ensure_ascii=False, separators=(",", ":")) + "\n"


def check_line(path: Path) -> None:
    """Refuse, before any work, a history that no line can be added to. Raises BadInput."""
    there = next(p for p in (path, *path.absolute().parents) if p.exists())
    if path.is_dir():
        raise BadInput(f"--history {path}: is a folder. Name a file.")
    if there != path and not there.is_dir():
        raise BadInput(f"--history {path}: {there} is a file, not a folder. Choose another place.")
    if not os.access(there, os.W_OK):
        raise BadInput(
            f"--history {path}: no permission to write {there}. Change its mode, or choose another place."
        )


def append_line(path: Path, snapshot: SizeRecord) -> None:
    """Add a line to a history, which is made where there is none; with the commit, where a CI service names it. Raises
    BadInput."""
    snapshot = replace(snapshot, commit=next((os.environ[n] for n in _COMMIT if os.environ.get(n)), ""))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as stream:
            stream.write(as_line(snapshot))
    except OSError as error:
        raise BadInput(
            f"--history {path}: cannot be written: {error.strerror}. Choose another place."
        ) from error


def read_history(path: Path) -> tuple[SizeRecord, ...]:
    """The snapshots in a report.json (one) or in a history (a line each, oldest first). Raises BadInput."""
    try:
        text = bytes(read_file(path, "Give a report.json, or a history.")).decode("utf-8")
        try:
            document = json.loads(text)
            documents = [document]
        except ValueError:
            documents = [json.loads(line) for line in text.splitlines() if line.strip()]
        return tuple(_from_line(d) if "history" in d else record_of(d) for d in documents)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(
            f"{path}: neither a report of minbuild nor a history: {type(error).__name__} {error}. Give the report.json "
            "of a package, or the file that --history wrote."
        ) from error


def _from_line(line: Mapping[str, Any]) -> SizeRecord:
    targets = []
    for target in line["targets"]:
        entries = tuple(Entry(e["kind"], e["name"], e["bytes"], tuple(e["users"])) for e in target["entries"])
        targets.append(TargetFigures(**{**target, "flags": tuple(target["flags"]), "entries": entries}))
    rest = {name: value for name, value in line.items() if name not in ("history", "targets")}
    return SizeRecord(**rest, targets=tuple(targets))
