"""Models that carry their own training against artifacts of the same recipe: reports/baseline/training_info.md.

    python tests/slow/compare_training_info.py

Every case's forward model becomes both. The float64 interpreter trains both for some steps on a seeded batch, which
must give the same numbers, and both are planned, which tells what they take on a device.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]
OPTIMIZERS = ("sgd", "adamw")
STEPS, ROWS = 3, 2
CLOSE = 1e-5  # constants are floats, and ONNX Runtime's convention rounds powers
HEAD = ("case", "optimizer", "loss off by", "parameters off by", "RAM of artifacts", "RAM of training info")


def main() -> int:
    from case_sets import SHARED

    lines = ["| " + " | ".join(HEAD) + " |", "|---|---" + "|--:" * 4 + "|"]
    agree = True
    for forward in sorted(SHARED.glob("*/forward.onnx")):
        for optimizer in OPTIMIZERS:
            with tempfile.TemporaryDirectory(prefix="minbuild-compare-") as folder:
                loss, parameters, *bytes_of = _compare(forward, optimizer, Path(folder))
            agree &= max(loss, parameters) <= CLOSE
            cells = [forward.parent.name, optimizer, f"{loss:.1e}", f"{parameters:.1e}"]
            lines.append("| " + " | ".join([*cells, *(f"{b:,}" for b in bytes_of)]) + " |")
            print(lines[-1], flush=True)
    text = (
        "Training by artifacts and by training information, made of the same forward models: the largest differences\n"
        f"after {STEPS} steps in float64, and bytes of temporaries and state on a device.\n\n"
    )
    report = TESTS.parent / "reports" / "baseline" / "training_info.md"
    report.write_text(text + "\n".join(lines) + "\n", "utf-8")
    return 0 if agree else 1


def _compare(forward: Path, optimizer: str, folder: Path) -> tuple[float, float, int, int]:
    from minbuild.authoring import Recipe, generate_artifacts, read_source, write_artifacts
    from minbuild.authoring.training_model import FILE, make_training_model
    from minbuild.batches import index_limits, inputs_of, seeded_batch
    from minbuild.interpreter import ReferenceTrainer
    from minbuild.ops import registry
    from minbuild.planned import plan_model

    recipe = Recipe(loss="mse", optimizer=optimizer)
    generate_artifacts(forward, folder, recipe)
    write_artifacts(make_training_model(read_source(forward), recipe, registry()), folder)
    models = [plan_model(path, {}, {}) for path in (folder, folder / FILE)]
    program = models[1].program
    sizes = dict.fromkeys(program.symbols, ROWS)
    batch = seeded_batch(inputs_of(program), index_limits(program, registry()), sizes, seed=0)
    inputs = [batch[name] for name in program.procedures[0].inputs]
    apart, together = (ReferenceTrainer(model.bundle) for model in models)
    loss = 0.0
    for _ in range(STEPS):
        wanted, found = (float(np.ravel(t.train_step(*inputs)[0])[0]) for t in (apart, together))
        loss = max(loss, abs(wanted - found) / max(abs(wanted), 1e-12))
        apart.optimizer_step()
        apart.lazy_reset_grad()
    worst = max(float(np.abs(apart.parameters[n] - together.parameters[n]).max()) for n in apart.trained)
    ram = [max(a.peak for a in m.arenas) + m.plan.persistent_bytes for m in models]
    return loss, worst, ram[0], ram[1]


if __name__ == "__main__":
    sys.exit(main())
