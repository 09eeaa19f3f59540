"""Models as people train them, from PyTorch's exporters to a trainer: reports/baseline/field.md and field.json.

    python tests/slow/field_models.py [--python PYTHON] [--ort-python PYTHON] [--work FOLDER] [--quick] [NAME...]

Every model of field_zoo.py is exported twice, made into artifacts, reduced and trained, and its losses and first
gradients are compared with PyTorch's in float64; PyTorch's own in float32 say how far rounding alone leads. Where that
is far, as in batch normalisation of few values, the model is computed in double as well. PYTHON has
torch, torchvision, timm, transformers and onnxscript; without it an environment is made. With --ort-python, which has
onnxruntime-training-cpu 1.19.2, ONNX Runtime's own artifacts of the models are reduced too, and compared with its own
losses. --quick trains with the library of all kernels instead of reducing, and computes in double only what does not
agree without. Exit code 1 where a model fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from field_double import widened, write_double
from field_judge import Arrays, Same, compare_gradients, compare_losses, distances, judge, lost, matched
from field_table import Row, line, write_table

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))

from minbuild.authoring import Recipe, make_artifacts, read_source, write_artifacts  # noqa: E402
from minbuild.authoring.load import load  # noqa: E402
from minbuild.authoring.optimizers import OptimizerOptions  # noqa: E402
from minbuild.errors import MinbuildError, Unsupported  # noqa: E402
from minbuild.ops import registry  # noqa: E402
from minbuild.planning.compile import compile_model  # noqa: E402
from minbuild.planning.plan_encoding import is_wide  # noqa: E402
from minbuild.reference.interpreter import ReferenceTrainer, user_inputs  # noqa: E402
from minbuild.training.library import TRAIN, Library, Session  # noqa: E402
from minbuild.training.onnx_backend import full_library  # noqa: E402

PACKAGES = ("torch", "torchvision", "timm", "transformers", "onnx", "onnxscript")
EXPORTERS, ORT = ("legacy", "dynamo"), "ort"


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="minbuild-field-") as scratch:
        work = options.work or Path(scratch)
        if not options.exported:
            _ask(options.python or _environment(work / "env"), "field_export.py", work, options.names)
            if options.ort_python:
                _ask(options.ort_python, "field_ort.py", work, options.names)
        rows: list[Row] = []
        for folder in sorted(p.parent for p in work.glob("*/meta.json")):
            if not options.names or folder.name in options.names:
                for exporter in options.exporter or (*EXPORTERS, ORT):
                    if exporter != ORT or (folder / "ort.json").exists():
                        rows.append(tried(folder, exporter, options.quick))
                        print(line(rows[-1]), file=sys.stderr, flush=True)
                        write_table(rows[-1:], ROOT / "reports" / "baseline")
    failed = [row for row in rows if row.failed]
    print(f"{len(rows)} exported models, {len(failed)} failed")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--python", type=Path, help="Python with torch and the libraries of models")
    parser.add_argument("--ort-python", type=Path, help="Python with onnxruntime-training-cpu 1.19.2")
    parser.add_argument("--work", type=Path, help="keep what is exported here")
    parser.add_argument("--exported", action="store_true", help="train what --work holds already")
    parser.add_argument("--exporter", action="append", choices=(*EXPORTERS, ORT))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("names", nargs="*")
    return parser.parse_args()


def _environment(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return python


def _ask(python: Path, script: str, work: Path, names: Sequence[str]) -> None:
    subprocess.run([str(python), str(HERE.with_name(script)), str(work), *names], check=True)


def tried(folder: Path, exporter: str, quick: bool) -> Row:
    """One exported model made into artifacts, reduced and trained."""
    meta = json.loads((folder / "meta.json").read_text())
    row = Row(folder.name, exporter, meta["opset"]["legacy" if exporter == ORT else exporter])
    if exporter in meta["failed"]:
        row.result = f"not exported: {meta['failed'][exporter]}"
        return row
    try:
        with tempfile.TemporaryDirectory() as place:
            (_train_ort if exporter == ORT else _train)(folder, meta, row, Path(place), quick)
    except MinbuildError as error:
        row.result = f"{type(error).__name__}: {' '.join(str(error).split())}"
    except Exception as error:  # noqa: BLE001  (a defect: the table says which model has it)
        row.result = f"crashed: {type(error).__name__}: {error}"
    return row


def recorded(folder: Path, exporter: str) -> dict[str, np.ndarray]:
    with np.load(folder / f"{exporter}.npz") as arrays:
        return dict(arrays)


def _train(folder: Path, meta: Mapping[str, Any], row: Row, place: Path, quick: bool) -> None:
    """Artifacts of minbuild against PyTorch."""
    model = folder / f"{row.exporter}.onnx"
    record, source = recorded(folder, row.exporter), read_source(model)
    row.nodes = len(source.graph.nodes)
    same = matched(source.graph.initializers, record)
    # What an exporter packed or folded has no name to ask for: then all initializers train.
    train = () if lost(record, same) else tuple(same)
    recipe = Recipe(loss="" if meta["loss"] == "none" else meta["loss"], train=train)
    since = time.monotonic()
    adamw = replace(recipe, optimizer_options=OptimizerOptions(**meta["adamw"]))
    write_artifacts(make_artifacts(source, adamw), place / "artifacts")
    row.making = time.monotonic() - since
    losses, gradients = _stepped(_session(place / "artifacts", row, place, quick), meta, record)
    compare_losses(row, losses, record["loss64"], record["loss_noise"])
    if meta["random"]:
        row.result = "runs" if np.all(np.isfinite(losses)) else f"losses {losses}"
        return
    compare_gradients(row, gradients, record, same)
    judge(row)
    if quick and row.result == "agrees":
        return
    write_double(model, place / "double.onnx")
    try:
        row.double = _in_double(place, recipe, meta, record, same)
    except Unsupported as error:
        print(f"{row.model} in double: {error}", file=sys.stderr)
    judge(row)


def _in_double(place: Path, recipe: Recipe, meta: Mapping[str, Any], record: Arrays, same: Same) -> float:
    """The distance of the first loss and gradients of `double.onnx`, computed by the kernels for double."""
    made = make_artifacts(read_source(place / "double.onnx"), replace(recipe, optimizer="none"))
    write_artifacts(made, place / "double")
    model = compile_model(place / "double", {}, {})
    session = Session(full_library(is_wide(model.plan_bytes)), model.plan_bytes, model.checkpoint)
    loss = session.run(TRAIN, given(session, meta, {n: widened(a) for n, a in record.items()}, 0))[0]
    return _distance(loss, gradients_of(session), record, same)


def _train_ort(folder: Path, meta: Mapping[str, Any], row: Row, place: Path, quick: bool) -> None:
    """Artifacts of ONNX Runtime against itself."""
    answer = json.loads((folder / "ort.json").read_text())
    if "refused" in answer:
        row.result = f"refused by ONNX Runtime: {answer['refused']}"
        return
    row.nodes = len(read_source(folder / "ort" / "training_model.onnx").graph.nodes)
    record = recorded(folder, "legacy")
    losses, _ = _stepped(_session(folder / "ort", row, place, quick), meta, record)
    compare_losses(row, losses, np.array(answer["losses"]), record["loss_noise"])
    if meta["random"]:
        row.result = "runs" if np.all(np.isfinite(losses)) else f"losses {losses}"
        return
    row.double = _interpreted(folder / "ort", meta, record)
    judge(row)


def _interpreted(artifacts: Path, meta: Mapping[str, Any], record: Arrays) -> float:
    """The distance of the first loss and gradients of artifacts, read node by node in float64."""
    trainer = ReferenceTrainer(load(artifacts, registry()))
    same = matched({p.name: p.data for p in trainer.artifacts.checkpoint.parameters}, record)
    names = user_inputs(trainer.artifacts.training, trainer.parameters)
    loss = trainer.train_step(*(record[f"in/{n}" if n in meta["inputs"] else "target"][0] for n in names))[0]
    return _distance(loss, trainer.gradients, record, same)


def _distance(loss: np.ndarray, gradients: Arrays, record: Arrays, same: Same) -> float:
    first = float(record["loss64"][0])
    away = (d for _, d in distances(gradients, record, same))
    return max(abs(float(np.ravel(loss)[0]) - first) / abs(first), *away)


def _session(artifacts: Path, row: Row, place: Path, quick: bool) -> Session:
    """A trainer of these artifacts, reduced or of the full build."""
    since = time.monotonic()
    model = compile_model(artifacts, {}, {})
    row.steps = len(model.plan.routines[0].steps)
    row.arena = max(arena.peak for arena in model.arenas)
    if quick:
        library = full_library(is_wide(model.plan_bytes))
    else:
        command = ["reduce", str(artifacts), "--out", str(place / "package"), "--no-analysis"]
        done = subprocess.run(
            [sys.executable, "-m", "minbuild.cli.main", *command], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise MinbuildError(done.stderr)
        path = next((place / "package" / "lib").glob("*/libminbuild.*[!a]"))
        row.library, library = path.stat().st_size, Library(path)
    row.reducing = time.monotonic() - since
    return Session(library, model.plan_bytes, model.checkpoint)


def _stepped(
    session: Session, meta: Mapping[str, Any], record: Arrays
) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses of all recorded steps, and the first gradients."""
    session.learning_rate = float(meta["rate"])
    losses: list[float] = []
    gradients: dict[str, np.ndarray] = {}
    for step in range(len(record["loss64"])):
        losses.append(float(np.ravel(session.run(TRAIN, given(session, meta, record, step))[0])[0]))
        gradients = gradients or gradients_of(session)
        session.optimizer_step()
        session.lazy_reset_grad()
    return losses, gradients


def given(session: Session, meta: Mapping[str, Any], record: Arrays, step: int) -> list[np.ndarray]:
    """The recorded batch, in the order of the trainer's inputs."""
    names = session.names(TRAIN, outputs=False)
    return [record[f"in/{n}" if n in meta["inputs"] else "target"][step] for n in names]


def gradients_of(session: Session) -> dict[str, np.ndarray]:
    return {n: np.array(session.gradient(n)) for n, p in session.parameters.items() if p.gradient}


if __name__ == "__main__":
    sys.exit(main())
