"""docs/reference/comparison.md, and its table in README.md: one trainer, built by this and by other projects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from minbuild.docgen.markdown import recorded_rows, table
from minbuild.toolchain.targets import proven_targets

_HEAD = """# Comparison

The trainer of one model, a multilayer perceptron of 784, 128 and 10 units (101,770 parameters), in bytes of the
stripped library or program on x86-64 Linux. The figures of others were measured for this project as the notes say; ours
is the row `mlp` of [Measurements](measurements.md), and `minbuild reduce` prints its counterpart for any model.

"""
_ROWS = (
    (
        "ONNX Runtime 1.19.2, training wheel",
        21_234_368,
        "all operators",
        "Size of `onnxruntime_pybind11_state` in the package `onnxruntime-training-cpu` 1.19.2 for "
        "manylinux x86-64, the last "
        "release with training.",
    ),
    (
        "ONNX Runtime 1.21.0, own minimal build",
        1_165_544,
        "10 kernels",
        "Training APIs and the 10 kernels of this model, type reduction on, built from the 1.21.0 sources "
        "with MinSizeRel "
        "(gcc 12.2, `-Os`), no exceptions, no RTTI, no ML operators, and stripped; without any kernel it "
        "has 1,018,024 bytes. "
        "A C program trained 5 steps to the losses of the 1.19.2 wheel. libstdc++ is linked dynamically.",
    ),
    (
        "ExecuTorch, operators pruned",
        303_040,
        "24 kernels",
        "Sources of August 2026 with `EXECUTORCH_OPTIMIZE_SIZE` flags (gcc 12.2, `-Os`, `--gc-sections`, "
        "stripped, logging "
        "off) and upstream's own selective build: forward, backward and SGD; libstdc++ is linked dynamically. With all "
        "portable kernels 1,618,464 bytes.",
    ),
)
_CHIPS = sorted(
    (name.removeprefix("cortex-").upper() for name in proven_targets() if name.startswith("cortex-")),
    key=lambda chip: int("".join(filter(str.isdigit, chip))),
)
_CAPABILITIES = (
    ("optimizers", "AdamW, SGD", "SGD", "AdamW, Adam, SGD, momentum, Adagrad, RMSprop, own rules"),
    ("maintained training", "withdrawn after 1.19.2", "experimental", "yes"),
    ("microcontrollers", "no", "inference only", f"Cortex-{', '.join(_CHIPS)}"),
    ("checkpoint", "with optimizer state", "weights only", "ONNX Runtime's, with optimizer state"),
    ("proof of the shipped binary", "no", "no", "identical bits at every build, or NOT PROVEN"),
)
_CAPABILITY_NOTE = """
## Capabilities

ONNX Runtime 1.19.2 and ExecuTorch 1.5 as published, read in their sources and documentation in August 2026.

"""


def comparison_rows(root: Path) -> list[list[str]]:
    """System, bytes and kernels of each row; the last is ours, as recorded in the checkout at `root`."""
    ours = _ours(root)
    rows = [[name, f"{size:,}", kernels] for name, size, kernels, _ in _ROWS]
    rows.append(["**minbuild**, default build", f"**{ours['trimmed']:,}**", f"{ours['kernels']} kernels"])
    return rows


def readme_table(root: Path) -> str:
    """Sizes, times and capabilities in one table."""
    ours = _ours(root)
    sizes = [
        f"{_ROWS[1][1]:,} B (wheel {_ROWS[0][1]:,} B)",
        f"{_ROWS[2][1]:,} B",
        f"**{ours['trimmed']:,} B**",
    ]
    times = ["1", "not measured", _times(root)]
    rows: Sequence[Sequence[str]] = [
        ["trainer of a 784-128-10 MLP", *sizes],
        ["time of a training step, one thread", *times],
        *_CAPABILITIES,
    ]
    return table(["", "ONNX Runtime", "ExecuTorch", "minbuild"], rows)


def comparison_page(root: Path) -> str:
    """Markdown: sizes, how they were measured, capabilities."""
    notes = "".join(f"- **{name}.** {note}\n" for name, _, _, note in _ROWS)
    return "".join(
        (
            _HEAD,
            table(["system", "bytes", "kernels"], comparison_rows(root), "lr"),
            f"\n{notes}",
            _CAPABILITY_NOTE,
            table(["", "ONNX Runtime 1.19.2", "ExecuTorch 1.5", "minbuild"], _CAPABILITIES),
        )
    )


def _times(root: Path) -> str:
    """The time of a training step beside ONNX Runtime's, geometric means over small models and over large networks."""
    recorded = recorded_rows((root / "reports/baseline/speed.md").read_text("utf-8"))
    small = [float(row[2]) / float(row[3]) for row in recorded]
    measured = json.loads((root / "reports/baseline/large.json").read_text("utf-8"))
    own = [row for row in measured if row["threads"] == 1 and "ort" in row and ":" not in row["net"]]
    large = [row["ort"] / row["ours"] for row in own]
    return (
        f"**{1 / geometric_mean(small):.2f}** (small models), **{1 / geometric_mean(large):.2f}** (real size)"
    )


def _ours(root: Path) -> Mapping[str, Any]:
    measured = json.loads((root / "reports/baseline/sizes.json").read_text("utf-8"))
    return next(row for row in measured if row["case"] == "mlp")
