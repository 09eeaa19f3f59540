"""Losses with low-rank adapters beside peft's: reports/baseline/peft.md.

    python tests/slow/compare_peft.py [--peft-python PYTHON] [--keep FOLDER]

peft trains three models in PyTorch for 200 steps of AdamW (peft_losses.py, in an environment of its own). Here, each
is trained twice from the same first values: `peft's` is the exported model with peft's adapters in it, which `train
'*.lora_*'` chooses; `--lora` is the exported base model, whose adapters are made here. The table has the largest
relative difference of a loss over all steps; the goal is 1e-4. Double precision is the interpreter's run of the same
artifacts, and tells how far PyTorch itself is from exact numbers.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE.parent), str(ROOT)]

from minbuild.authoring import Recipe, generate_artifacts  # noqa: E402
from minbuild.authoring.optimizers import OptimizerOptions  # noqa: E402
from minbuild.authoring.recipe import LoraOptions  # noqa: E402
from minbuild.frontend.artifacts import load_artifacts  # noqa: E402
from minbuild.reference.interpreter import ReferenceTrainer  # noqa: E402
from minbuild.training.api import CheckpointState, Module, Optimizer  # noqa: E402

TABLE = ROOT / "reports" / "baseline" / "peft.md"
PACKAGES = ("torch", "peft", "onnx", "onnxscript")
GOAL, RANK, ALPHA, RATE = 1e-4, 4, 8, 2e-3
ADAMW = OptimizerOptions(weight_decay=0.01, epsilon=1e-8, decay_first=True)
ADAPTED = {
    "mlp": ("0", "2", "4"),
    "cnn": ("0", "3", "6"),
    "attention": ("query", "value", "out", "up", "down", "words"),
}
HEAD = (
    "model",
    "adapters",
    "parameters",
    "first loss",
    "last loss",
    "difference from peft",
    "peft from double",
)


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        python = options.peft_python or _environment(folder / "env")
        if not all((folder / f"{name}.npz").exists() for name in ADAPTED):
            subprocess.run([str(python), str(HERE.with_name("peft_losses.py")), str(folder)], check=True)
        rows = [row for name in ADAPTED for row in _compared(name, folder)]
    TABLE.write_text(_table(rows), "utf-8")
    return 0 if all(float(row[5]) <= GOAL for row in rows) else 1


def _options() -> argparse.Namespace:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--peft-python", type=Path, help=f"Python with {', '.join(PACKAGES)}")
    parser.add_argument("--keep", type=Path, help="folder that keeps what peft computed")
    return parser.parse_args()


def _environment(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return python


def _compared(name: str, folder: Path) -> list[list[str]]:
    recorded = np.load(folder / f"{name}.npz")
    first = {n.removeprefix("first/"): recorded[n] for n in recorded.files if n.startswith("first/")}
    own = {}
    for title, array in first.items():
        own |= _here(title.removeprefix("base_model.model."), array)
    patterns = tuple(f"{layer}.weight" for layer in ADAPTED[name])
    recipes = {
        "peft's": (f"{name}_peft.onnx", Recipe(loss="cross-entropy", train=("*.lora_*",)), first),
        "--lora": (
            f"{name}_base.onnx",
            Recipe(loss="cross-entropy", lora=LoraOptions(patterns, RANK, ALPHA)),
            own,
        ),
    }
    rows = []
    for kind, (model, recipe, values) in recipes.items():
        made = folder / f"{name}_{kind.strip('-')}"
        recipe = _with_optimizer(recipe)
        generate_artifacts(folder / model, made, recipe)
        losses = _losses(made, recorded, values)
        theirs = recorded["losses"]
        exact = _double(made, recorded, values)
        count = sum(a.size for a in values.values())
        away = f"{_relative(losses, theirs):.1e}", f"{_relative(theirs, exact):.1e}"
        rows.append([name, kind, f"{count:,}", f"{theirs[0]:.4f}", f"{theirs[-1]:.4f}", *away])
        print(" ".join(rows[-1]), file=sys.stderr, flush=True)
    return rows


def _with_optimizer(recipe: Recipe) -> Recipe:
    return replace(recipe, optimizer="adamw", optimizer_options=ADAMW)


def _here(title: str, array: np.ndarray) -> dict[str, np.ndarray]:
    """peft's tensor under the name, and in the layout, of the adapter that is made here."""
    layer, _, kind = title.partition(".lora_")
    which = "A" if "A" in kind.split(".")[0] else "B"
    return {f"{layer}.lora_{which}": array if array.ndim > 2 else np.ascontiguousarray(array.T)}


def _losses(made: Path, recorded: np.lib.npyio.NpzFile, first: dict[str, np.ndarray]) -> np.ndarray:
    state = CheckpointState.load_checkpoint(made / "checkpoint")
    assert {name for name, _ in state.parameters} == set(first), sorted(first)
    for name, parameter in state.parameters:
        parameter.data = first[name]
    module = Module(made / "training_model.onnx", state, made / "eval_model.onnx")
    optimizer = Optimizer(made / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(RATE)
    losses = []
    for step in range(len(recorded["losses"])):
        at = step % len(recorded["inputs"])
        losses.append(float(module(recorded["inputs"][at], recorded["labels"][at])))
        optimizer.step()
        module.lazy_reset_grad()
    return np.array(losses)


def _double(made: Path, recorded: np.lib.npyio.NpzFile, first: dict[str, np.ndarray]) -> np.ndarray:
    trainer = ReferenceTrainer(load_artifacts(made))
    trainer.parameters |= {n: a.astype(np.float64) for n, a in first.items()}
    trainer.learning_rate = RATE
    losses = []
    for step in range(len(recorded["losses"])):
        at = step % len(recorded["inputs"])
        losses.append(float(trainer.train_step(recorded["inputs"][at], recorded["labels"][at])[0]))
        trainer.optimizer_step()
        trainer.lazy_reset_grad()
    return np.array(losses)


def _relative(found: np.ndarray, wanted: np.ndarray) -> float:
    return float((np.abs(found - wanted) / np.abs(wanted)).max())


def _table(rows: list[list[str]]) -> str:
    lines = [
        "# Losses with adapters beside peft",
        "",
        "200 steps of AdamW from the same first values; the largest relative difference of a loss (goal: 1e-4), and",
        "how far PyTorch's float32 is from double precision. Made by `tests/slow/compare_peft.py`.",
        "",
        "| " + " | ".join(HEAD) + " |",
        "|---|---|" + "--:|" * 5,
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
