"""Microsoft's samples of on-device training, run as they are against minbuild.

python tests/slow/microsoft_samples.py FOLDER --python PYTHON [--headers FOLDER [--ort-python PYTHON]] [--write]

FOLDER is a copy of `on_device_training` of microsoft/onnxruntime-training-examples; nothing of it is kept. PYTHON has
torch, torchvision, transformers, onnxruntime and minbuild's own requirements. Notebooks and scripts run cell by cell
with `onnxruntime.training` read as `minbuild.training`, once with each exporter of torch. Pretrained weights and data
sets are not downloaded: models have random weights, of small configurations, and data that is missing is made here
(`microsoft_prelude.py`). With `--headers`, ONNX Runtime's source, the C++ of the Android sample is compiled unchanged
and trains with a library of `--abi ort`. `--write` puts the results into reports/baseline/microsoft_samples.md,
where rows that were not run, by `--only PART_OF_A_PATH`, stay as they were.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "reports" / "baseline" / "microsoft_samples.md"
HEAD = """<!-- Written by `python tests/slow/microsoft_samples.py --write`; do not edit. -->

# Microsoft's samples of on-device training

Run unchanged, with `onnxruntime.training` read as `minbuild.training`. Weights are random, and of small configurations
where the sample would download them; `microsoft_prelude.py` says how. "built" is the trainer that `minbuild reduce`
makes of the artifacts.

| sample | exporter | artifacts | built | trained |
|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Sample:
    """A notebook or script, the folder of its artifacts, and the cells that run: those before `until` occurs."""

    path: str
    artifacts: str
    until: str = "\0"
    then: str = ""  # a notebook that trains with the artifacts


MADE = "training_artifacts"
SAMPLES = (
    Sample("desktop/python/mnist.ipynb", "data"),
    Sample("web/offline-step/mnist.ipynb", "."),
    Sample("desktop/csharp/image_classification/mobilevit_offline.ipynb", "."),
    # The rest of this one tokenizes a data set for the C# program.
    Sample("desktop/csharp/masked_language_modeling/mobilebert_offline.ipynb", MADE, until="def tokenize_function"),
    Sample("mobile/android/c-cpp/prepare_for_training.ipynb", MADE, then="mobile/android/c-cpp/train.ipynb"),
    Sample("mobile/android/java/prepare_for_training.ipynb", MADE, then="mobile/android/java/train.ipynb"),
    Sample("mobile/ios/artifacts_gen.py", "MyVoice/artifacts"),
)  # fmt: skip


def cells(path: Path) -> list[str]:
    if path.suffix == ".py":
        return [path.read_text("utf-8")]
    code = [c for c in json.loads(path.read_text("utf-8"))["cells"] if c["cell_type"] == "code"]
    return ["".join(c["source"]) for c in code]


def run_cells(arguments: argparse.Namespace, path: Path, folder: Path, *, until: str, dynamo: bool) -> str:
    """The last line of the error, or "" and the output in folder/said.txt."""
    chosen: list[str] = []
    for cell in cells(path):
        if until in cell:
            break
        chosen.append("\n".join(line for line in cell.splitlines() if not re.match(r"\s*[%!]", line)))
    (folder / "cells.json").write_text(json.dumps(chosen), "utf-8")
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "SAMPLE_DYNAMO": str(int(dynamo)),
        "MPLBACKEND": "Agg",
    }
    command = (arguments.python, Path(__file__).with_name("microsoft_prelude.py"), "cells.json")
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1500, check=False
    )
    (folder / "said.txt").write_text(done.stdout, "utf-8")
    (folder / "errors.txt").write_text(done.stderr, "utf-8")
    if done.returncode == 0:
        return ""
    errors = re.findall(
        r"^[\w.]+(?:Error|Exception|Unsupported\w*|BadInput)\b: .*", done.stderr, re.MULTILINE
    )
    errors = [re.sub(r"\x1b\[\d+m", "", error).partition(" This is step")[0] for error in errors]
    return errors[-1] if errors else (done.stderr.strip().splitlines() or ["no output"])[-1]


def row_of(arguments: argparse.Namespace, sample: Sample, folder: Path, *, dynamo: bool) -> str:
    source = (arguments.folder / sample.path).parent
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("app"))
    for name in ("training_artifacts", "inference_artifacts", "data", "MyVoice/artifacts"):
        (folder / name).mkdir(parents=True, exist_ok=True)  # as their READMEs ask
    error = run_cells(arguments, arguments.folder / sample.path, folder, until=sample.until, dynamo=dynamo)
    made = (folder / sample.artifacts / "training_model.onnx").is_file()
    built, trained = "–", "–"
    if made:
        command = (
            sys.executable,
            "-m",
            "minbuild",
            "reduce",
            folder / sample.artifacts,
            "--out",
            folder / "dist",
        )
        done = subprocess.run(
            (*command, "--no-analysis"), env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        size = re.search(r"Library\s+([\d,]+ B)", done.stdout)
        proven = "PROVEN" in done.stdout and "NOT PROVEN" not in done.stdout
        built = f"{size[1]}, {'proven' if proven else 'not proven'}" if size else done.stderr.strip()[-200:]
        if sample.then:
            error = run_cells(
                arguments, arguments.folder / sample.then, folder, until="predict(", dynamo=dynamo
            )
        losses = re.findall(r"Loss:? (\d+\.\d+)", (folder / "said.txt").read_text("utf-8"))
        if losses:
            trained = f"{float(losses[0]):.3f} to {float(losses[-1]):.3f}"
        if error:
            trained = error
    cell = "made" if made else error
    text = (sample.path, "dynamo" if dynamo else "TorchScript", cell, built, trained)
    return "| " + " | ".join(part.replace("|", "\\|").replace("\n", " ") for part in text) + " |"


def _key(line: str) -> tuple[str, ...]:
    """Sample and exporter of a row, () for other lines."""
    parts = tuple(part.strip() for part in line.split("|")[1:3])
    return parts if len(parts) == 2 and "/" in parts[0] else ()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", default="")
    parser.add_argument("--headers", type=Path)
    parser.add_argument(
        "--ort-python", help="with onnxruntime-training-cpu 1.19.2, the judge of the C++ sample"
    )
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    arguments.folder = arguments.folder.resolve()
    text = TABLE.read_text("utf-8") if TABLE.is_file() else ""
    rows = {_key(line): line for line in text.splitlines() if _key(line)}
    appendix = text[text.index("## ") :] if "## " in text else ""

    def write() -> None:
        if arguments.write:
            keys = [(s.path, exporter) for s in SAMPLES for exporter in ("TorchScript", "dynamo")]
            lines = "".join(rows[key] + "\n" for key in keys if key in rows)
            TABLE.write_text((HEAD + lines + "\n" + appendix).rstrip() + "\n", "utf-8")

    with tempfile.TemporaryDirectory() as temporary:
        for sample in SAMPLES:
            if arguments.only not in sample.path:
                continue
            for dynamo in (False, True):
                folder = Path(temporary) / sample.path.replace("/", "-") / str(dynamo)
                line = row_of(arguments, sample, folder, dynamo=dynamo)
                rows[_key(line)] = line
                print(line, flush=True)
                write()
        if arguments.headers is not None:
            import microsoft_cpp

            appendix = microsoft_cpp.run(arguments, Path(temporary))
            print(appendix)
            write()


if __name__ == "__main__":
    main()
