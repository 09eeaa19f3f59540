"""The rows of reports/baseline/field.md and field.json. For field_models.py."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

PREFACE = """\
Models exported by PyTorch, made into artifacts, reduced and trained (`tests/slow/field_models.py`); in lines with
`ort`, ONNX Runtime 1.19.2 made the artifacts of the older exporter's model. `losses` and `gradients` are distances from
PyTorch in float64, over five steps and in the first, as parts of the largest; in lines with `ort`, from ONNX Runtime's
losses. `noise` beside each is PyTorch's own distance in float32, from weights that differ in their last bit at most.
`double` is the distance of the first loss and gradients where the device computes in double; in lines with `ort`, where
the artifacts are interpreted in double.

`agrees`: losses and gradients are as near as rounding allows a well-conditioned network. `agrees in double`: float32
says little of this network, PyTorch's own noise is as large; computed in double it agrees. `noise`: as near as
PyTorch in float32, and there is no answer in double. `runs`: the model draws random numbers. `steps` are those of the
training plan, `arena` is memory at batch 32, `artifacts` and `reduce` are seconds on a machine with other work;
`library` is there where one was built.
"""
HEAD = (
    *("model", "exporter", "opset", "nodes", "steps", "artifacts", "reduce", "library", "arena", "losses"),
    *("noise", "gradients", "noise", "double", "result"),
)
FINE = ("agrees", "agrees in double", "noise", "runs", "not exported", "refused by ONNX Runtime")
LONGEST = 160  # characters of a message in the table


@dataclass
class Row:
    """How one exported model fared; distances and noise are relative, `double` is None where none was computed."""

    model: str
    exporter: str
    opset: int
    nodes: int = 0
    steps: int = 0
    making: float = 0.0
    reducing: float = 0.0
    library: int = 0
    arena: int = 0
    losses: float = 0.0
    loss_noise: float = 0.0
    gradients: float = 0.0
    gradient_noise: float = 0.0
    double: float | None = None
    result: str = ""

    @property
    def failed(self) -> bool:
        return self.result.split(":")[0] not in FINE


def line(row: Row) -> str:
    """The row in Markdown. What has no value is empty."""
    counts = (row.nodes, row.steps, f"{row.making:.1f}", f"{row.reducing:.1f}", row.library, row.arena)
    away = (row.losses, row.loss_noise, row.gradients, row.gradient_noise, row.double)
    cells = (
        *(row.model, row.exporter, str(row.opset)),
        *(
            f"{c:,}" if isinstance(c, int) and c else c if isinstance(c, str) and row.nodes else ""
            for c in counts
        ),
        *(f"{d:.1e}" if d else "" for d in away),
        row.result.replace("|", "/")[:LONGEST],
    )
    return "| " + " | ".join(cells) + " |"


def read_rows(place: Path, stem: str = "field") -> list[Row]:
    """The rows that are there."""
    path = place / f"{stem}.json"
    return [Row(**r) for r in json.loads(path.read_text())] if path.exists() else []


def write_table(rows: Sequence[Row], place: Path, *, stem: str = "field", preface: str = PREFACE) -> None:
    """The report: these rows in place of older ones of the same models, whose libraries count where none was built."""
    found = {(r.model, r.exporter): r for r in read_rows(place, stem)}
    for row in rows:
        before = found.get((row.model, row.exporter))
        row.library = row.library or (before.library if before else 0)
        found[row.model, row.exporter] = row
    every = [found[key] for key in sorted(found)]
    lines = ["| " + " | ".join(HEAD) + " |", "|---|---|" + "--:|" * (len(HEAD) - 3) + "---|"]
    (place / f"{stem}.md").write_text("\n".join([preface, *lines, *map(line, every)]) + "\n", "utf-8")
    (place / f"{stem}.json").write_text(json.dumps([asdict(r) for r in every], indent=1) + "\n", "utf-8")
