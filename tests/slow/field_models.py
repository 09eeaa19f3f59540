"""Models as people train them, from PyTorch's exporters to a trainer: reports/baseline/field.md and field.json.

    python tests/slow/field_models.py [--python PYTHON] [--ort-python PYTHON] [--work FOLDER] [--quick] [NAME...]

Every model of field_zoo.py is exported twice, made into artifacts, reduced and trained, and its losses and first
gradients are compared with PyTorch's in float64; PyTorch's own in float32 say how far rounding alone leads. PYTHON has
torch, torchvision, timm, transformers and onnxscript; without it an environment is made. With --ort-python, which has
onnxruntime-training-cpu 1.19.2, ONNX Runtime's own artifacts of the models are reduced too, and compared with its own
losses. --quick trains with the library of all kernels instead of reducing. Exit code 1 where a model fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))

from minbuild.authoring import Recipe, make_artifacts, read_source, write_artifacts  # noqa: E402
from minbuild.authoring.optimizers import OptimizerOptions  # noqa: E402
from minbuild.errors import MinbuildError  # noqa: E402
from minbuild.onnx_backend import full_library  # noqa: E402
from minbuild.planned import plan_model  # noqa: E402
from minbuild.training.library import TRAIN, Library, Session  # noqa: E402

PACKAGES = ("torch", "torchvision", "timm", "transformers", "onnx", "onnxscript")
EXPORTERS, ORT = ("legacy", "dynamo"), "ort"
ZERO = 1e-6  # of the largest of all gradients: rounding noise of a gradient that is zero
NOISES = 30  # times as far as PyTorch in float32, which may be near by chance
LOSS, GRADIENT = 2e-5, 2e-4  # relative: what float32 may cost where PyTorch was lucky
PREFACE = """\
Models exported by PyTorch, made into artifacts, reduced and trained (`tests/slow/field_models.py`); in lines with
`ort`, ONNX Runtime 1.19.2 made the artifacts of the older exporter's model. `losses` and `gradients` are distances from
PyTorch in float64, over five steps and in the first, as parts of the largest; in lines with `ort`, from ONNX Runtime's
losses. `runs` stands for models that draw random numbers. `steps` are those of the training plan, `arena` is memory at
batch 32, `artifacts` and `reduce` are seconds on a machine with other work; `library` is there where one was built.
"""
HEAD = (
    *("model", "exporter", "opset", "nodes", "steps", "artifacts", "reduce", "library", "arena", "losses"),
    *("gradients", "result"),
)


@dataclass
class Row:
    """How one exported model fared; `losses` and `gradients` are relative distances."""

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
    gradients: float = 0.0
    result: str = ""

    @property
    def failed(self) -> bool:
        return self.result.split(":")[0] not in ("agrees", "runs", "not exported", "refused by ONNX Runtime")


Same = Mapping[str, tuple[str, bool]]  # initializer -> parameter of PyTorch, and whether it is transposed
Arrays = Mapping[str, np.ndarray]


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
                        print(_line(rows[-1]), file=sys.stderr, flush=True)
    _write(rows)
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


def _recorded(folder: Path, exporter: str) -> dict[str, np.ndarray]:
    with np.load(folder / f"{exporter}.npz") as arrays:
        return dict(arrays)


def _train(folder: Path, meta: Mapping[str, Any], row: Row, place: Path, quick: bool) -> None:
    """Artifacts of minbuild against PyTorch."""
    record, source = _recorded(folder, row.exporter), read_source(folder / f"{row.exporter}.onnx")
    row.nodes = len(source.graph.nodes)
    same = matched(source.graph.initializers, record)
    # What an exporter packed or folded has no name to ask for: then all initializers train.
    train = () if _lost(record, same) else tuple(same)
    recipe = Recipe(
        loss="" if meta["loss"] == "none" else meta["loss"],
        train=train,
        optimizer_options=OptimizerOptions(**meta["adamw"]),
    )
    since = time.monotonic()
    write_artifacts(make_artifacts(source, recipe), place / "artifacts")
    row.making = time.monotonic() - since
    session = _session(place / "artifacts", row, place, quick)
    losses, gradients = _stepped(session, meta, record)
    _judge_losses(row, losses, record["loss64"], record["loss32"])
    if meta["random"]:
        row.result = "runs" if np.all(np.isfinite(losses)) else row.result
    elif wrong := _gradients(row, gradients, record, same):
        row.result = wrong


def _train_ort(folder: Path, meta: Mapping[str, Any], row: Row, place: Path, quick: bool) -> None:
    """Artifacts of ONNX Runtime against itself."""
    answer = json.loads((folder / "ort.json").read_text())
    if "refused" in answer:
        row.result = f"refused by ONNX Runtime: {answer['refused']}"
        return
    row.nodes = len(read_source(folder / "ort" / "training_model.onnx").graph.nodes)
    session = _session(folder / "ort", row, place, quick)
    record = _recorded(folder, "legacy")
    losses, _ = _stepped(session, meta, record)
    theirs = np.array(answer["losses"])
    _judge_losses(row, losses, theirs, theirs + record["loss32"] - record["loss64"])
    if meta["random"] and np.all(np.isfinite(losses)):
        row.result = "runs"


def _session(artifacts: Path, row: Row, place: Path, quick: bool) -> Session:
    """A trainer of these artifacts, reduced or of the full build."""
    since = time.monotonic()
    model = plan_model(artifacts, {}, {})
    row.steps = len(model.plan.routines[0].steps)
    row.arena = max(arena.peak for arena in model.arenas)
    if quick:
        library = full_library()
    else:
        command = ["reduce", str(artifacts), "--out", str(place / "package"), "--fast"]
        done = subprocess.run(
            [sys.executable, "-m", "minbuild.cli", *command], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise MinbuildError(done.stderr)
        path = next((place / "package" / "lib").glob("*/libminbuild.*[!a]"))
        row.library, library = path.stat().st_size, Library(path)
    row.reducing = time.monotonic() - since
    return Session(library, model.plan_bytes, model.checkpoint)


def matched(initializers: Arrays, record: Arrays) -> dict[str, tuple[str, bool]]:
    """By initializer, the parameter of PyTorch that it is: by name, or by its elements, as exporters rename some."""
    known = {n.removeprefix("gradient64/") for n in record if n.startswith("gradient64/")}
    trained = {n: record[f"value/{n}"] for n in sorted(known)}
    found = {n: (n, False) for n, a in initializers.items() if n in trained and trained[n].shape == a.shape}
    rest = {n: a for n, a in trained.items() if n not in found}
    for name, array in initializers.items():
        if name in found or array.dtype != np.float32 or array.ndim == 0:
            continue
        for other, value in rest.items():
            turned = value.ndim == 2 and np.array_equal(value.T, array)
            if turned or np.array_equal(value, array):
                found[name] = (other, turned)
                del rest[other]
                break
    return found


def _lost(record: Arrays, same: Same) -> list[str]:
    """Parameters of PyTorch with a gradient that no initializer is."""
    found = {f"gradient64/{p}" for p, _ in same.values()}
    return sorted(n for n, a in record.items() if n.startswith("gradient64/") and n not in found and a.any())


def _stepped(
    session: Session, meta: Mapping[str, Any], record: Arrays
) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses of all recorded steps, and the first gradients."""
    session.learning_rate = float(meta["rate"])
    names = session.names(TRAIN, outputs=False)
    given = {n: record[f"in/{n}" if n in meta["inputs"] else "target"] for n in names}
    losses: list[float] = []
    gradients: dict[str, np.ndarray] = {}
    for step in range(len(record["loss64"])):
        losses.append(float(np.ravel(session.run(TRAIN, [given[n][step] for n in names])[0])[0]))
        if step == 0:
            trained = (n for n, p in session.parameters.items() if p.gradient)
            gradients = {n: np.array(session.gradient(n)) for n in trained}
        session.optimizer_step()
        session.lazy_reset_grad()
    return losses, gradients


def _judge_losses(row: Row, losses: Sequence[float], exact: np.ndarray, rounded: np.ndarray) -> None:
    scale = np.abs(exact).max()
    row.losses = float(np.abs(np.array(losses) - exact).max() / scale)
    noise = float(np.abs(rounded - exact).max() / scale)
    near = row.losses <= max(LOSS, NOISES * noise)  # false for what is no number
    row.result = "agrees" if near else f"losses {np.round(losses, 6)} instead of {np.round(exact, 6)}"


def _gradients(row: Row, found: Arrays, record: Arrays, same: Same) -> str:
    """What is wrong with the gradients. Each is measured by its largest element."""
    largest = max(float(np.abs(a).max()) for n, a in record.items() if n.startswith("gradient64/"))
    worst = (0.0, "")
    for name, (other, turned) in same.items():
        wanted = record[f"gradient64/{other}"]
        size = float(np.abs(wanted).max())
        if size <= ZERO * largest or name not in found:
            continue
        distance = float(np.abs((found[name].T if turned else found[name]) - wanted).max()) / size
        noise = float(np.abs(record[f"gradient32/{other}"] - wanted).max()) / size
        row.gradients = max(row.gradients, distance)
        worst = max(worst, (distance / max(GRADIENT, NOISES * noise), name))
    return f"gradient of {worst[1]} differs" if not worst[0] <= 1 else ""


def _line(row: Row) -> str:
    numbers = (
        *(row.opset, row.nodes, row.steps, f"{row.making:.1f}", f"{row.reducing:.1f}"),
        *(f"{row.library:,}" if row.library else "", f"{row.arena:,}", f"{row.losses:.1e}"),
        f"{row.gradients:.1e}",
    )
    return (
        "| "
        + " | ".join(map(str, (row.model, row.exporter, *numbers, row.result.replace("|", "/")[:200])))
        + " |"
    )


def _write(rows: Sequence[Row]) -> None:
    """The report: these rows in place of older ones of the same models, whose libraries count where none was built."""
    place = ROOT / "reports" / "baseline"
    old = json.loads((place / "field.json").read_text()) if (place / "field.json").exists() else []
    found = {(r["model"], r["exporter"]): Row(**r) for r in old}
    for row in rows:
        key = row.model, row.exporter
        library = row.library or (found[key].library if key in found else 0)
        found[key] = replace(row, library=library)
    every = [found[key] for key in sorted(found)]
    lines = ["| " + " | ".join(HEAD) + " |", "|---|---|" + "--:|" * (len(HEAD) - 3) + "---|"]
    (place / "field.md").write_text("\n".join([PREFACE, *lines, *map(_line, every)]) + "\n", "utf-8")
    (place / "field.json").write_text(json.dumps([asdict(r) for r in every], indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
