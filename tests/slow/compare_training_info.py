"""Models that carry their own training against artifacts of the same recipe: reports/baseline/training_info.*.

    python tests/slow/compare_training_info.py

Every case's forward model becomes both. The float64 interpreter trains both for some steps on a seeded batch, which
must give the same numbers, and both are planned, which tells what they take on a device.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS.parent)]
OPTIMIZERS = ("sgd", "adamw")
STEPS, ROWS = 3, 2
CLOSE = 1e-5  # constants are floats, and ONNX Runtime's convention rounds powers
KINDS = ("artifacts", "training info")
HEAD = (
    "case",
    "optimizer",
    "loss off by",
    "parameters off by",
    *(f"{n} of {k}" for n in ("RAM", "plan") for k in KINDS),
)


def main() -> int:
    from case_sets import SHARED

    rows = []
    for forward in sorted(SHARED.glob("*/forward.onnx")):
        for optimizer in OPTIMIZERS:
            with tempfile.TemporaryDirectory(prefix="minbuild-compare-") as folder:
                found = _compare(forward, optimizer, Path(folder))
            rows.append({"case": forward.parent.name, "optimizer": optimizer, **found})
            print(_line(rows[-1]), flush=True)
    if not rows:
        sys.exit(f"{SHARED}: no forward.onnx in any folder. Set MINBUILD_CASES to the folder of the cases.")
    text = (
        "Training by artifacts and by training information, made of the same forward models: the largest differences\n"
        f"after {STEPS} steps in float64, bytes of temporaries and state on a device, and bytes of the plan.\n\n"
    )
    lines = ["| " + " | ".join(HEAD) + " |", "|---|---" + "|--:" * (len(HEAD) - 2) + "|", *map(_line, rows)]
    report = TESTS.parent / "reports" / "baseline" / "training_info.md"
    report.write_text(text + "\n".join(lines) + "\n", "utf-8")
    report.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    return 0 if all(max(row["loss"], row["parameters"]) <= CLOSE for row in rows) else 1


def _line(row: dict[str, Any]) -> str:
    cells = [row["case"], row["optimizer"], f"{row['loss']:.1e}", f"{row['parameters']:.1e}"]
    cells += [f"{row[name][kind]:,}" for name in ("ram", "plan") for kind in KINDS]
    return "| " + " | ".join(cells) + " |"


def _compare(forward: Path, optimizer: str, folder: Path) -> dict[str, Any]:
    """Differences, and bytes by kind."""
    from minbuild.authoring import Recipe, generate_artifacts, read_source, write_artifacts
    from minbuild.authoring.training_info.model_builder import FILE, make_training_model
    from minbuild.ops import registry
    from minbuild.planning.compile import compile_model
    from minbuild.planning.plan_encoding import encode_plan
    from minbuild.reference.interpreter import ReferenceTrainer
    from minbuild.reference.synthetic_data import index_limits, inputs_of, seeded_batch

    recipe = Recipe(loss="mse", optimizer=optimizer)
    generate_artifacts(forward, folder, recipe)
    write_artifacts(make_training_model(read_source(forward), recipe, registry()), folder)
    models = [compile_model(path, {}, {}) for path in (folder, folder / FILE)]
    program = models[1].program
    sizes = dict.fromkeys(program.symbols, ROWS)
    batch = seeded_batch(inputs_of(program), index_limits(program, registry()), sizes, seed=0)
    inputs = [batch[name] for name in program.procedures[0].inputs]
    apart, together = (ReferenceTrainer(model.artifacts) for model in models)
    loss = 0.0
    for _ in range(STEPS):
        wanted, found = (float(np.ravel(t.train_step(*inputs)[0])[0]) for t in (apart, together))
        loss = max(loss, abs(wanted - found) / max(abs(wanted), 1e-12))
        apart.optimizer_step()
        apart.lazy_reset_grad()
    worst = max(float(np.abs(apart.parameters[n] - together.parameters[n]).max()) for n in apart.trained)
    ram = [max(a.peak for a in m.arenas) + m.plan.persistent_bytes for m in models]
    plans = [len(encode_plan(m.plan, sizes)) for m in models]
    bytes_of = {"ram": dict(zip(KINDS, ram, strict=True)), "plan": dict(zip(KINDS, plans, strict=True))}
    return {"loss": loss, "parameters": worst, **bytes_of}


if __name__ == "__main__":
    sys.exit(main())
