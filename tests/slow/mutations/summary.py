"""The results of a run as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Row = tuple[str, Any, str, str, str]  # area, mutation, status, what noticed it, reason


def markdown(rows: Sequence[Row], replaced: int) -> str:
    """Counts by area and by kind, then every survivor with its reason, then what was written by hand."""
    lines = ["# Mutation testing", "", "`python tests/slow/mutants.py` wrote this file.", ""]
    dead = sum(row[2] in ("killed", "timeout") for row in rows)
    same = [row for row in rows if row[2] == "equivalent"]
    alive = [row for row in rows if row[2] not in ("killed", "timeout", "equivalent")]
    lines.append(
        f"{len(rows)} single mutations: {dead} noticed by a test, {len(same)} equivalent to the original for "
        f"the reasons below, {len(alive)} others. {replaced} that did not compile were replaced."
    )
    for title, column in (("area", lambda row: row[0]), ("kind", lambda row: row[1].kind)):
        lines += [
            "",
            f"| {title} | mutations | failed a test | time limit | equivalent | survived | not run |",
        ]
        lines += ["|---|--:|--:|--:|--:|--:|--:|"]
        for name in dict.fromkeys(sorted(map(column, rows)) if title == "kind" else map(column, rows)):
            of = [row[2] for row in rows if column(row) == name]
            counts = [of.count(s) for s in ("killed", "timeout", "equivalent")]
            rest = len(of) - sum(counts) - of.count("not run")
            lines.append(
                f"| {name} | {len(of)} | " + " | ".join(map(str, [*counts, rest, of.count("not run")])) + " |"
            )
    if alive:
        lines += ["", "## Neither noticed nor explained", ""]
        lines += [f"- `{m.id}` `{m.file}:{m.line}` {status}: {_change(m)}" for _, m, status, _, _ in alive]
    lines += ["", "## Equivalent", "", "| file | mutation | why nothing can notice it |", "|---|---|---|"]
    lines += [f"| `{m.file}` | {_change(m)} | {_cell(reason)} |" for _, m, _, _, reason in same]
    lines += ["", "## Written by hand", "", "| file | what breaks | noticed by |", "|---|---|---|"]
    lines += [f"| `{m.file}` | {_cell(m.breaks)} | {_cell(by) if status != 'equivalent' else 'equivalent'} |"
              for _, m, status, by, _ in rows if m.kind == "written"]  # fmt: skip
    return "\n".join(lines) + "\n"


def _change(m: Any) -> str:
    """The lines that change, as code in a table."""
    was, becomes = (_code(" ".join(text.split())) for text in (m.was, m.becomes))
    return f"{was} becomes {becomes}" if m.becomes else f"{was} is dropped"


def _code(text: str) -> str:
    text = text if len(text) <= 110 else text[:107] + "..."
    return ("`` " if "`" in text else "`") + text.replace("|", "\\|") + (" ``" if "`" in text else "`")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
