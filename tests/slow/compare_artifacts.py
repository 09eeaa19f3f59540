"""Artifacts made here against those that ONNX Runtime made of the same models: reports/baseline/artifacts.md.

    python tests/slow/compare_artifacts.py [--ort-python PYTHON] [NAME...]

Every case has the losses of ONNX Runtime training its own artifacts. Here its forward model becomes artifacts once
more, and both sets are trained by both runtimes on the recorded batches, from the first step to the last one recorded.
Without --ort-python an environment with onnxruntime-training-cpu 1.19.2 is made for the purpose.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve()
TESTS, ROOT = HERE.parents[1], HERE.parents[2]
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "golden"), str(ROOT)]
HEAD = (
    "case",
    "steps",
    "last loss",
    "noise",
    "ORT's in minbuild",
    "ours in ORT",
    "ours in minbuild",
    "gradient",
)
SEEDED, SEED = "seed7_loss", 7
NOISES = 5  # that a run may be away: few were recorded to tell the noise from
LEAST = 1e-6  # of noise, relative to the loss: float32 sums in another order
ZERO = 1e-6  # of the largest of all gradients: rounding noise of a gradient that is zero
AFFORDABLE = 2e-5  # of the first gradients, relative to their largest element


def main() -> int:
    options = _options()
    from case_sets import SHARED
    from make_artifacts import prepare

    named = [SHARED / name for name in options.names]
    cases = named or sorted(f.parent for f in SHARED.glob("*/forward.onnx"))
    with tempfile.TemporaryDirectory(prefix="minbuild-compare-") as name:
        place = Path(name)
        python = Path(options.ort_python or prepare(place / "env", options.python))
        rows = [_compare(case, place / case.name, python) for case in cases]
    lines = ["| " + " | ".join(HEAD) + " |", "|---|" + "--:|" * (len(HEAD) - 1)]
    text = "\n".join(lines + [_row(row) for row in rows]) + "\n"
    sys.stdout.write(text)
    if not options.names:
        (ROOT / "reports" / "baseline" / "artifacts.md").write_text(_preface() + text, "utf-8")
    return 0 if all(row["agrees"] for row in rows) else 1


def _options() -> argparse.Namespace:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--ort-python", type=Path, help="Python with onnxruntime-training-cpu 1.19.2")
    parser.add_argument("--python", default="python3.11", help="Python to make an environment with")
    parser.add_argument("names", nargs="*")
    return parser.parse_args()


def _preface() -> str:
    return (
        "Artifacts made of every case's forward model, next to those ONNX Runtime 1.19.2 made of it "
        "(`tests/slow/compare_artifacts.py`).\nThe columns say how far losses are, at most over all steps, from those "
        "recorded of ONNX Runtime with its own artifacts;\n`noise` is how far ONNX Runtime's own runs are from each "
        "other, and `gradient` how far the first gradients of ours in minbuild are,\nas part of each one's largest "
        "element.\n\n"
    )


def _compare(folder: Path, place: Path, python: Path) -> dict[str, object]:
    """Both artifact sets in both runtimes."""
    from case_sets import load

    case = load(folder)
    _artifacts(case, place)
    losses, gradients = _trained_here(place)
    recorded = np.array(_recorded(case))
    # A run that left the others never comes back: noise does not shrink.
    per_step = np.zeros(len(recorded)) + case.meta.get("noise", {}).get("loss_per_step", 0.0)
    noise = np.maximum.accumulate(np.maximum(per_step, LEAST * np.abs(recorded).max()))
    row: dict[str, object] = {"case": folder.name, "steps": len(recorded), "last": recorded[-1]}
    row["noise"] = float(noise.max())
    runs = {
        "theirs here": _trained_here(folder)[0],
        "ours in ort": _ask(python, place),
        "ours here": losses,
    }
    row |= {n: _distance(run, recorded) for n, run in runs.items()}
    row["gradient"] = _gradient_distance(case, gradients)
    near = [
        run is not None and bool(np.all(np.abs(run - recorded) <= NOISES * noise)) for run in runs.values()
    ]
    row["agrees"] = all(near) and row["gradient"] <= AFFORDABLE
    print(f"{folder.name}: {'agrees' if row['agrees'] else 'DIFFERS'}", file=sys.stderr)
    return row


def _recorded(case) -> list[float]:
    """The recorded losses; those of a seeded run where the model draws random numbers."""
    return case.losses(SEEDED if SEEDED in case.reference else "loss")


def _artifacts(case, place: Path) -> None:
    """Artifacts of the case's forward model, trained as the case says, beside its recording."""
    from minbuild.authoring import make_artifacts, write_artifacts

    write_artifacts(make_artifacts(case.folder / "forward.onnx", recipe_of(case)), place)
    for name in ("meta.json", "reference.npz"):
        os.symlink(case.folder / name, place / name)


def recipe_of(case):
    """What the case's own artifacts were asked to be."""
    from minbuild.authoring import Recipe
    from minbuild.authoring.optimizers import OptimizerOptions

    kinds = {
        "CrossEntropyLoss": "cross-entropy",
        "MSELoss": "mse",
        "L1Loss": "l1",
        "BCEWithLogitsLoss": "bce",
    }
    norm, attributes, kind = None, {}, "sgd"
    for node in case.artifacts.optimizer.nodes:
        norm = node.attributes.get("max_norm", norm)
        if node.op_type == "AdamWOptimizer":
            kind, attributes = "adamw", dict(node.attributes)
    given = {n: attributes[n] for n in ("epsilon", "weight_decay") if n in attributes}
    given |= {"betas": (attributes["alpha"], attributes["beta"])} if attributes else {}
    return Recipe(
        loss=kinds.get(case.meta["loss"], _weighted),
        optimizer=kind,
        optimizer_options=OptimizerOptions(max_norm=norm, **given),
        train=tuple(case.meta["requires_grad"]),
        frozen=tuple(case.meta["frozen"]),
        outputs=tuple(case.artifacts.evaluation.outputs[1:]),
    )


def _weighted(compose, output: str) -> str:
    """The loss of the case that has one of its own: 0.6 of the squared and 0.4 of the absolute error."""
    from minbuild.authoring.loss_graph import loss_of
    from minbuild.authoring.losses import LossOptions

    parts = []
    for kind, part in (("mse", 0.6), ("l1", 0.4)):
        error = loss_of(compose, kind, LossOptions(), output, "target")
        parts.append(compose.add("Mul", compose.constant(part, error), error))
    return compose.add("Add", *parts)


def _trained_here(folder: Path) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses of all recorded steps, and the first gradients."""
    from case_sets import TRAIN, load, trainer

    case = load(folder)
    session = trainer(folder).session(case.checkpoint)
    session.learning_rate = case.rate
    if SEEDED in case.reference:
        session.seed = SEED
    losses, gradients = [], {}
    for step in range(len(_recorded(case))):
        losses.append(float(np.ravel(session.run(TRAIN, case.batch(step))[0])[0]))
        if step == 0:
            gradients = {n: session.gradient(n).copy() for n in case.recorded(_gradients_of(case))}
        session.optimizer_step()
        session.lazy_reset_grad()
    return losses, gradients


def _ask(python: Path, folder: Path) -> list[float] | None:
    """The losses of ONNX Runtime with the artifacts in `folder`; None where it cannot load them."""
    command = [str(python), str(HERE.with_name("ort_trainer.py")), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{folder.name}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def _distance(losses: list[float] | None, recorded: np.ndarray) -> float | None:
    return None if losses is None else float(np.abs(np.array(losses) - recorded).max())


def _gradients_of(case) -> str:
    return "seed7_grad_step1" if SEEDED in case.reference else "grad_step1"


def _gradient_distance(case, found: dict[str, np.ndarray]) -> float:
    """The largest difference of the first gradients, as part of each one's largest element. Gradients that are zero but
    for rounding do not count."""
    recorded = case.recorded(_gradients_of(case))
    largest = max(float(np.abs(g).max()) for g in recorded.values())
    wanted = {n: g for n, g in recorded.items() if np.abs(g).max() > ZERO * largest}
    return max(float(np.abs(found[n] - g).max() / np.abs(g).max()) for n, g in wanted.items())


def _row(row: dict[str, object]) -> str:
    def number(value: object) -> str:
        return "refused" if value is None else f"{value:.1e}"

    cells = [row["case"], row["steps"], f"{row['last']:.6f}", number(row["noise"])]
    cells += [number(row[n]) for n in ("theirs here", "ours in ort", "ours here", "gradient")]
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    sys.exit(main())
