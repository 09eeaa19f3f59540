"""Gradients of single operators against PyTorch in float64: reports/baseline/gradient_probe.md.

    python tests/slow/probe_gradients.py [--torch-python PYTHON] [NAME...]

probe_models.py makes the models and the gradients they must have, in an environment with torch and onnx (made for the
purpose without --torch-python). Each model becomes artifacts and is trained, in float32 unless it is of another
precision, with a library of all kernels:
one step at two batch sizes, after which every parameter's gradient is compared, and some steps of gradient descent.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve()
TESTS, ROOT = HERE.parents[1], HERE.parents[2]
sys.path[:0] = [str(TESTS / "support"), str(ROOT)]
PACKAGES = ("torch", "onnx==1.16.2", "numpy<2")
TOLERANCES = {"float32": 1e-5, "float64": 1e-12, "float16": 2e-3}
STRAYS = {"float32": 1e-4, "float64": 1e-6, "float16": 5e-3}  # that losses may be off after some steps
RATE = 0.05
SIZES = (6, 9)
HEAD = "| operator | ONNX Runtime 1.19.2 | minbuild | error | losses |"


@dataclass(frozen=True)
class Told:
    """What the models' table says of one probe."""

    name: str
    file: str
    ort: str
    stops: str
    kind: str


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="minbuild-probe-") as name:
        place = options.models or Path(name) / "models"
        if not (place / "probes.json").is_file():
            place.mkdir(exist_ok=True, parents=True)
            python = options.torch_python or _environment(Path(name) / "env", options.python)
            subprocess.run([str(python), str(HERE.with_name("probe_models.py")), str(place)], check=True)
        library = _everything(Path(name))
        rows = [_probe(told, place, library) for told in _told(place) if _chosen(told.name, options.names)]
    text = "\n".join((HEAD, "|---|---|---|--:|--:|", *map(_row, rows)))
    text += f"\n\n{_count(rows)}\n"
    sys.stdout.write(text)
    if not options.names:
        (ROOT / "reports" / "baseline" / "gradient_probe.md").write_text(_PREFACE + text, "utf-8")
    return 0 if all(verdict == "right" for _, verdict, *_ in rows) else 1


_PREFACE = """Gradients of single operators, against PyTorch in float64 (`tests/slow/probe_gradients.py`), with a free
batch of 6 and of 9, or a fixed one of 6.
The error is the largest over both and over all parameters, as part of the largest element of the parameter's gradient;
losses are how far those of ten steps of gradient descent are from PyTorch's, as part of the first.
An error is right up to 1e-5, in double models up to 1e-12. Half models round on the way: theirs is up to 2e-3.

"""


def _options() -> argparse.Namespace:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--torch-python", type=Path, help="Python with torch and onnx")
    parser.add_argument("--python", default="python3.11", help="Python to make an environment with")
    parser.add_argument("--models", type=Path, help="keep the models here, or take them from here")
    parser.add_argument("names", nargs="*")
    return parser.parse_args()


def _environment(folder: Path, python: str) -> Path:
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    inside = folder / "bin" / "python"
    subprocess.run([str(inside), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return inside


def _told(place: Path) -> Iterator[Told]:
    for entry in json.loads((place / "probes.json").read_text()):
        yield Told(**entry)


def _chosen(name: str, names: list[str]) -> bool:
    return not names or any(n.lower() in name.lower() for n in names)


def _everything(place: Path):
    """A library of all kernels."""
    import trainers

    from minbuild.ops import registry
    from minbuild.planning.library_contents import full_contents

    return trainers.library_of(full_contents(registry()), registry(), place)


Row = tuple[Told, str, float, float]


def _probe(told: Told, place: Path, library) -> Row:
    from minbuild.errors import MinbuildError

    try:
        error = max(_errors(told, place, library))
        stray = _stray(told, place, library)
    except MinbuildError as refused:
        print(f"{told.name}: {refused}", file=sys.stderr)
        return told, "refused", float("nan"), float("nan")
    right = error <= TOLERANCES[told.kind] and stray <= STRAYS[told.kind]
    verdict = "right" if right else "wrong gradient"
    if verdict != "right":
        print(f"{told.name}: {error:.1e}, {stray:.1e}", file=sys.stderr)
    return told, verdict, error, stray


def _session(told: Told, place: Path, library):
    """The model, ready to train from its first parameters, and what it was made of."""
    from trainers import plan_of

    from minbuild.authoring import Recipe, artifacts_of, read_source
    from minbuild.frontend.checkpoint import write_checkpoint
    from minbuild.ops import registry
    from minbuild.planning.plan_encoding import encode_plan
    from minbuild.training.library import Session, aligned_copy, arena_size

    model = read_source(place / f"{told.file}.onnx")
    stops = [n.outputs[0] for n in model.graph.nodes if n.op_type == told.stops][:1]
    artifacts = artifacts_of(model, Recipe(loss="mse", optimizer="sgd", stops=stops), registry())
    plan = plan_of(artifacts, registry())
    data = encode_plan(plan, dict.fromkeys(plan.symbols, max(SIZES)))
    arena = aligned_copy(b"\xff" * arena_size(library, data))
    return Session(library, data, write_checkpoint(artifacts.checkpoint), arena=arena), artifacts


def _arrays(told: Told, place: Path) -> dict[str, np.ndarray]:
    with np.load(place / f"{told.file}.npz") as stored:
        return dict(stored)


def _errors(told: Told, place: Path, library) -> Iterator[float]:
    """Of every parameter at every batch size, as part of its gradient's largest element."""
    from minbuild.training.library import TRAIN

    arrays = _arrays(told, place)
    for size in (s for s in SIZES if f"x/{s}" in arrays):
        session, artifacts = _session(told, place, library)
        session.run(TRAIN, [arrays[f"x/{size}"], arrays[f"target/{size}"]])
        yield from _compared(session, arrays, f"gradient/{size}/", artifacts)


def _stray(told: Told, place: Path, library) -> float:
    """How far losses are from PyTorch's while both train, as part of the first one."""
    from minbuild.training.library import TRAIN

    arrays = _arrays(told, place)
    session, _ = _session(told, place, library)
    session.learning_rate = RATE
    losses = []
    for _ in arrays["losses"]:
        batch = [arrays[f"x/{SIZES[0]}"], arrays[f"target/{SIZES[0]}"]]
        losses.append(float(np.ravel(session.run(TRAIN, batch)[0])[0]))
        session.optimizer_step()
        session.lazy_reset_grad()
    return float(np.abs(losses - arrays["losses"]).max() / abs(arrays["losses"][0]))


def _compared(session, arrays, start: str, artifacts) -> Iterator[float]:
    wanted = {n[len(start) :]: g for n, g in arrays.items() if n.startswith(start)}
    for parameter in artifacts.checkpoint.parameters:
        if parameter.trainable:
            found = session.gradient(parameter.name).astype(np.float64)
            exact = _matching(parameter.name, found, wanted)
            yield float(np.abs(found - exact).max() / max(np.abs(exact).max(), 1e-6))


def _matching(name: str, found: np.ndarray, wanted: dict[str, np.ndarray]) -> np.ndarray:
    """The gradient of a parameter; exporters rename some and transpose matrices, and then the nearest one of its
    elements counts."""
    if name in wanted and wanted[name].shape == found.shape:
        return wanted[name]
    forms = [v for g in wanted.values() for v in (g, g.T) if v.size == found.size]
    if not forms:
        raise AssertionError(f"no parameter of PyTorch's is {name} {found.shape}")
    return min((v.reshape(found.shape) for v in forms), key=lambda v: float(np.abs(v - found).max()))


def _row(row: Row) -> str:
    told, verdict, error, stray = row
    return f"| {told.name} | {told.ort} | {verdict} | {error:.1e} | {stray:.1e} |"


def _count(rows: list[Row]) -> str:
    theirs = sum(told.ort == "right" for told, *_ in rows)
    ours = sum(verdict == "right" for _, verdict, *_ in rows)
    return f"{len(rows)} models: ONNX Runtime is right in {theirs}, minbuild in {ours}."


if __name__ == "__main__":
    sys.exit(main())
