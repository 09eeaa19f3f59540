"""`minbuild export --quantize` judged by ONNX Runtime: reports/baseline/quantized_export.md.

    python tests/slow/measure_quantized_export.py [--ort-python PYTHON]

Each model is exported with its trained parameters in float and in 8 bits. Ranges come from every other of its recorded
batches. ONNX Runtime runs both files on those batches and on the others; the table has the largest difference of an
output as part of the largest element, with ONNX Runtime's optimisations, which make integer kernels of the pairs, and
without. `lora` is bert_tiny with trained adapters of rank 4, merged. The goal is 1 % on the batches that ranges come
of.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve()
TESTS, ROOT = HERE.parents[1], HERE.parents[2]
sys.path[:0] = [str(HERE.parent), str(TESTS / "support"), str(TESTS / "golden"), str(ROOT)]
TABLE = ROOT / "reports" / "baseline" / "quantized_export.md"
MODELS = ("mlp", "lenet", "resnet8", "mobilenetv2", "bert_tiny", "lora")
GOAL = 0.01
JUDGE = """
import json, sys, numpy as np, onnxruntime
folder, batches = sys.argv[1], sys.argv[2:]
onnxruntime.set_default_logger_severity(3)
levels = onnxruntime.GraphOptimizationLevel
found = []
def session(name, level):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    return onnxruntime.InferenceSession(f"{folder}/{name}.onnx", options, providers=["CPUExecutionProvider"])
plain = session("float", levels.ORT_ENABLE_ALL)
for level in (levels.ORT_ENABLE_ALL, levels.ORT_DISABLE_ALL):
    small = session("small", level)
    for batch in batches:
        arrays = np.load(batch)
        feed = {i.name: arrays[i.name] for i in plain.get_inputs()}
        pairs = zip(plain.run(None, feed), small.run(None, feed))
        found.append(max(float(abs(a - b).max() / abs(a).max()) for a, b in pairs))
print(json.dumps([onnxruntime.__version__, found]))
"""


def main() -> int:
    options = _options()
    python, rows, good = options.ort_python, [], True
    if python is None:
        from make_artifacts import prepare

        python = prepare(Path(tempfile.gettempdir()) / "minbuild-ort-env", options.python)
    version = ""
    for name in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            row, worst, version = _measured(name, Path(folder), str(python))
        print(" ".join(row), file=sys.stderr, flush=True)
        rows.append(row)
        good &= worst <= GOAL
    TABLE.write_text(_table(rows, version), "utf-8")
    return 0 if good else 1


def _options() -> argparse.Namespace:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--ort-python", type=Path, help="Python with onnxruntime")
    parser.add_argument("--python", default="python3.11", help="Python to make an environment with")
    return parser.parse_args()


def _measured(name: str, folder: Path, python: str) -> tuple[list[str], float, str]:
    from case_sets import SHARED

    case = SHARED / ("bert_tiny" if name == "lora" else name)
    artifacts, checkpoint = case, case / "checkpoint_final_opt"
    checkpoint = checkpoint if checkpoint.exists() else case / "checkpoint"
    if name == "lora":
        artifacts, checkpoint = _with_trained_adapters(case, folder)
    batches = _batches(case, folder)
    _minbuild("export", artifacts, "--checkpoint", checkpoint, "--out", folder / "float.onnx")
    given = [word for path in batches[::2] for word in ("--batches", path)]
    out = folder / "small.onnx"
    said = _minbuild("export", artifacts, "--checkpoint", checkpoint, "--out", out, "--quantize", *given)
    layers = next(line for line in said.splitlines() if " layers in 8 bits" in line).removeprefix("note: ")
    answer = subprocess.run(
        [python, "-c", JUDGE, str(folder), *map(str, batches)], capture_output=True, text=True, check=True
    )
    version, found = json.loads(answer.stdout)
    optimised, plain = found[: len(batches)], found[len(batches) :]
    worst = max(*optimised[::2], *plain[::2])
    sizes = [(folder / f"{n}.onnx").stat().st_size for n in ("float", "small")]
    row = [name, layers.partition(";")[0], f"{sizes[0]:,} B", f"{sizes[1]:,} B", f"{sizes[1] / sizes[0]:.2f}"]
    parts = (optimised[::2], plain[::2], optimised[1::2], plain[1::2])
    return [*row, *(f"{max(part):.2%}" for part in parts)], worst, version


def _batches(case: Path, folder: Path) -> list[Path]:
    recorded = np.load(case / "reference.npz")
    names = [name[3:] for name in recorded.files if name.startswith("in/")]
    paths = []
    for i in range(len(recorded[f"in/{names[0]}"])):
        paths.append(folder / f"batch{i}.npz")
        np.savez(paths[-1], **{n: recorded[f"in/{n}"][i] for n in names})
    return paths


def _with_trained_adapters(case: Path, folder: Path) -> tuple[Path, Path]:
    """Artifacts of the forward model with adapters, and a checkpoint of them after some steps."""
    from minbuild.training.api import CheckpointState, Module, Optimizer

    made, package = folder / "artifacts", folder / "dist"
    adapted = ["--lora", "*attn*", "--lora", "*ff*", "--lora-rank", "4", "--loss", "cross-entropy"]
    _minbuild("artifacts", case / "forward.onnx", "--out", made, *adapted)
    _minbuild("reduce", made, "--out", package, "--no-analysis", "--json")
    state = CheckpointState.load_checkpoint(package / "model" / "checkpoint")
    module = Module(package, state)
    optimizer = Optimizer(package, module)
    optimizer.set_learning_rate(0.01)
    recorded = np.load(case / "reference.npz")
    for step in range(20):
        module(
            *(
                recorded[f"in/{n}"][step % 4] if f"in/{n}" in recorded else recorded["in/labels"][step % 4]
                for n in module.input_names()
            )
        )
        optimizer.step()
        module.lazy_reset_grad()
    CheckpointState.save_checkpoint(state, folder / "trained")
    return made, folder / "trained"


def _minbuild(*words: object) -> str:
    command = [sys.executable, "-m", "minbuild", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(f"minbuild {words[0]}: {done.stderr}")
    return done.stdout


def _table(rows: list[list[str]], version: str) -> str:
    head = [
        "model",
        "layers",
        "float",
        "8 bits",
        "ratio",
        "ranges' batches",
        "unoptimised",
        "others",
        "unoptimised",
    ]
    lines = [
        "# Models exported in 8 bits",
        "",
        f"`minbuild export --quantize`, run by ONNX Runtime {version}: the largest difference from the float model's",
        "outputs, as part of the largest, on the batches that ranges were taken of (goal: 1 %) and on others. Made by",
        "`tests/slow/measure_quantized_export.py`, whose head says how.",
        "",
        "| " + " | ".join(head) + " |",
        "|---|---|" + "--:|" * 7,
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
