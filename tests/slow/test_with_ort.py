"""Checkpoints travel between this and ONNX Runtime 1.19.2, exported models run there, and a script runs with both.

    pytest tests/slow/test_with_ort.py

MINBUILD_ORT_PYTHON names a Python that has onnxruntime-training-cpu 1.19.2; without it, an environment is made.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

HERE = Path(__file__).resolve()
TESTS, ROOT = HERE.parents[1], HERE.parents[2]
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "golden"), str(HERE.parent), str(ROOT)]

from authored import FORWARD  # noqa: E402
from case_sets import (  # noqa: E402
    GOLDEN,
    SHARED,
    TRAIN,
    Library,
    emit_sources,
    folders,
    load,
    registry,
    trainer,
)
from compare_artifacts import recipe_of  # noqa: E402
from make_artifacts import prepare  # noqa: E402
from shared_library import shared_library  # noqa: E402

from minbuild.authoring import GeneratedArtifacts, make_artifacts, write_artifacts  # noqa: E402
from minbuild.codegen.sources import COMPONENTS  # noqa: E402
from minbuild.frontend.checkpoint import read_checkpoint  # noqa: E402
from minbuild.frontend.onnx.writer import LARGEST_FILE  # noqa: E402
from minbuild.ir import Checkpoint  # noqa: E402
from minbuild.training.api import CheckpointState, Module, Optimizer  # noqa: E402
from minbuild.training.library import Session  # noqa: E402

STEPS = 2
CASES = [f for f in folders() if (f / "checkpoint_final_opt").is_file()]
IMPORT = "from onnxruntime.training.api import"


@pytest.fixture(scope="session")
def ort(tmp_path_factory) -> str:
    given = os.environ.get("MINBUILD_ORT_PYTHON")
    return given or str(prepare(tmp_path_factory.mktemp("ort") / "env", "python3.11"))


def asked(python: str, script: str | Path, *arguments: object) -> str:
    done = subprocess.run(
        [python, str(script), *map(str, arguments)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def go_on(python: str, folder: Path, jobs: list[dict]) -> list[dict]:
    """ONNX Runtime's answers to jobs (see ort_jobs.py)."""
    path = folder / "jobs.json"
    path.write_text(json.dumps(jobs))
    return json.loads(asked(python, HERE.with_name("ort_jobs.py"), path).splitlines()[-1])


def opened(folder: Path, checkpoint: Path) -> tuple[CheckpointState, Module, Optimizer]:
    kind = "onnx" if (folder / "training_model.onnx").exists() else "ort"
    state = CheckpointState.load_checkpoint(checkpoint)
    module = Module(folder / f"training_model.{kind}", state, folder / f"eval_model.{kind}")
    optimizer = Optimizer(folder / f"optimizer_model.{kind}", module)
    optimizer.set_learning_rate(load(folder).meta["lr"])
    return state, module, optimizer


def steps(folder: Path, module: Module, optimizer: Optimizer, count: int) -> list[bytes]:
    losses = []
    for step in range(count):
        found = module(*load(folder).batch(step))
        losses.append((found[0] if isinstance(found, tuple) else found).tobytes())
        optimizer.step()
        module.lazy_reset_grad()
    return losses


def same(left: Checkpoint, right: Checkpoint) -> None:
    """The same parameters and optimizer state, bit for bit; the order may differ."""
    assert {p.name: (p.trainable, p.shape, p.element) for p in left.parameters} == {
        p.name: (p.trainable, p.shape, p.element) for p in right.parameters
    }
    values = {p.name: p.data.tobytes() for p in right.parameters if p.data is not None}
    for p in left.parameters:
        assert p.data is not None and p.data.tobytes() == values[p.name], p.name
    (a,), (b,) = left.groups, right.groups
    assert a.step == b.step and a.moments.keys() == b.moments.keys()
    for name, moments in a.moments.items():
        assert moments.keys() == b.moments[name].keys()
        for moment, data in moments.items():
            assert data.tobytes() == b.moments[name][moment].tobytes(), name


@pytest.mark.parametrize("folder", CASES, ids=lambda f: f.name)
def test_onnx_runtime_goes_on_from_our_checkpoint_as_from_its_own(ort, folder, tmp_path):
    """What we make of a checkpoint of ONNX Runtime is for it the same as what it wrote."""
    state, _, _ = opened(folder, folder / "checkpoint_final_opt")
    device = state._opened().session
    CheckpointState.save_checkpoint(state, tmp_path / "ours", include_optimizer_state=True)
    device.save(tmp_path / "sealed", True)
    assert read_checkpoint(tmp_path / "sealed").seal == read_checkpoint(tmp_path / "ours").seal is not None
    jobs = [
        {"folder": str(folder), "checkpoint": str(start), "steps": STEPS, "save": str(tmp_path / f"after{i}")}
        for i, start in enumerate((folder / "checkpoint_final_opt", tmp_path / "ours", tmp_path / "sealed"))
    ]
    own, ours, sealed = go_on(ort, tmp_path, jobs)
    assert sealed["losses"] == ours["losses"] == own["losses"] and len(own["losses"]) == STEPS
    for number in (1, 2):
        same(read_checkpoint(tmp_path / "after0"), read_checkpoint(tmp_path / f"after{number}"))


@pytest.mark.parametrize("folder", CASES, ids=lambda f: f.name)
def test_we_go_on_from_onnx_runtimes_checkpoint_as_from_our_own(ort, folder, tmp_path):
    """What ONNX Runtime makes of a checkpoint of ours is for us the same as what we wrote."""
    state, module, optimizer = opened(folder, folder / "checkpoint")
    steps(folder, module, optimizer, STEPS)
    CheckpointState.save_checkpoint(state, tmp_path / "ours", include_optimizer_state=True)
    job = {
        "folder": str(folder),
        "checkpoint": str(tmp_path / "ours"),
        "steps": 0,
        "save": str(tmp_path / "back"),
    }
    (answer,) = go_on(ort, tmp_path, [job])
    assert answer["properties"]["minbuild.learning_rate"] == pytest.approx(load(folder).meta["lr"])
    same(read_checkpoint(tmp_path / "ours"), read_checkpoint(tmp_path / "back"))
    straight = steps(folder, module, optimizer, STEPS)
    again = opened(folder, tmp_path / "back")
    assert again[0]._opened().session.step_count == STEPS
    assert steps(folder, *again[1:], STEPS) == straight


FORWARDS = [GOLDEN / name for name in FORWARD] + [f.parent for f in SHARED.glob("*/forward.onnx")]


@pytest.mark.parametrize("folder", FORWARDS, ids=lambda f: f.name)
def test_onnx_runtime_trains_from_our_ort_files_as_from_our_onnx_files(ort, folder, tmp_path):
    """To the same bits, but for models that draw random numbers. ONNX files run as they are, as .ort files do."""
    recipe = replace(recipe_of(load(folder)), ort=True)
    model = folder / "forward.onnx"
    if not model.is_file():
        model = tmp_path / "model.onnx"
        onnx.save(FORWARD[folder.name].build()[1], model)
    made = make_artifacts(model, recipe)
    jobs = []
    for kind in ("onnx", "ort"):
        files = {n: f for n, f in made.files.items() if n.endswith(f".{kind}") or n == "checkpoint"}
        jobs.append({**_job(replace(made, files=files), folder, tmp_path / kind), "plain": True})
    onnx_files, ort_files = go_on(ort, tmp_path, jobs)
    assert len(ort_files["losses"]) == STEPS
    if "seed7_loss" not in load(folder).reference:
        assert ort_files["losses"] == onnx_files["losses"]
        same(*(read_checkpoint(Path(job["save"])) for job in jobs))


def _job(made: GeneratedArtifacts, folder: Path, place: Path) -> dict:
    """Artifacts and the recorded batches of the set in `folder` at `place`, to train there."""
    write_artifacts(made, place)
    for name in ("meta.json", "reference.npz"):
        os.symlink(folder / name, place / name)
    start, save = place / "checkpoint", place / "after"
    return {"folder": str(place), "checkpoint": str(start), "steps": STEPS, "save": str(save)}


def test_onnx_runtime_trains_from_files_with_data_beside_them(ort, tmp_path, monkeypatch):
    """Parameters that do not train are constants of the graphs here."""
    monkeypatch.setattr("minbuild.frontend.onnx.writer.LEAST_OUTSIDE", 64)
    folder = GOLDEN / "dense"
    onnx.save(FORWARD["dense"].build()[1], tmp_path / "model.onnx")
    recipe = replace(recipe_of(load(folder)), train=("fc2.*",), frozen=("fc1.bias",))
    jobs = []
    for number, largest in enumerate((LARGEST_FILE, 64)):
        made = make_artifacts(tmp_path / "model.onnx", recipe, largest=largest)
        assert ("training_model.onnx.data" in made.files) == ("checkpoint.data" in made.files) == bool(number)
        jobs.append(_job(made, folder, tmp_path / f"set{number}"))
    whole, parted = go_on(ort, tmp_path, jobs)
    assert whole["losses"] == parted["losses"] and len(whole["losses"]) == STEPS


def test_properties_travel_both_ways(ort, tmp_path):
    """Written by the device's own code, read by ONNX Runtime, and back."""
    folder = GOLDEN / "dense"
    built = trainer(folder)
    contents = replace(built.contents, components=frozenset(COMPONENTS))
    (tmp_path / "all.so").write_bytes(shared_library(emit_sources(contents, registry())))
    library = Library(tmp_path / "all.so")
    session = Session(library, built.data, load(folder).checkpoint)
    wanted = {"epoch": 2**40, "zero": 0, "loss": 0.5, "note": "halfway — 半分", "none": ""}
    for name, value in wanted.items():
        session.set_property(name, value)
    session.learning_rate = 0.25
    session.run(TRAIN, load(folder).batch(0))
    session.optimizer_step()
    session.save(tmp_path / "ours", True)
    job = {
        "folder": str(folder),
        "checkpoint": str(tmp_path / "ours"),
        "steps": 1,
        "save": str(tmp_path / "back"),
    }
    (answer,) = go_on(ort, tmp_path, [job])
    wanted["minbuild.learning_rate"] = 0.25
    assert answer["properties"] == wanted
    again = Session(library, built.data, (tmp_path / "back").read_bytes())
    assert again.properties() == wanted and again.learning_rate == 0.25 and again.step_count == 2


EXPORTS = [f for f in CASES if f.name != "mlp_ort"] + [f for f in (SHARED / "mlp_ort",) if f.is_dir()]


@pytest.mark.parametrize("folder", EXPORTS, ids=lambda f: f.name)
def test_exported_models_run_in_onnx_runtime(ort, folder, tmp_path):
    """And give what ONNX Runtime's own export gave, where that was recorded."""
    case = load(folder)
    final = folder / "checkpoint_final_opt"
    _, module, _ = opened(folder, final if final.is_file() else folder / "checkpoint")
    names = (case.meta.get("export") or {}).get("outputs") or [
        "output" if folder.name != "embedding" else "logits"
    ]
    module.export_model_for_inferencing(tmp_path / "model.onnx", names)
    inputs = {n: x for n, x in case.reference.items() if n.startswith("eval_in/")}
    np.savez(tmp_path / "inputs.npz", **inputs)
    script = tmp_path / "run.py"
    script.write_text(
        "import sys, numpy as np, onnx, onnxruntime as o\n"
        "onnx.checker.check_model(onnx.load(sys.argv[1]), full_check=True)\n"
        "s, x = o.InferenceSession(sys.argv[1]), np.load(sys.argv[2])\n"
        "r = s.run(None, {i.name: x['eval_in/' + i.name] for i in s.get_inputs()})\n"
        "np.savez(sys.argv[3], **{y.name: v for y, v in zip(s.get_outputs(), r)})\n"
    )
    asked(ort, script, tmp_path / "model.onnx", tmp_path / "inputs.npz", tmp_path / "outputs.npz")
    found = np.load(tmp_path / "outputs.npz")
    assert set(found) == set(names)
    for name in names:
        wanted = case.reference.get(f"infer_out/{name}")
        assert np.isfinite(found[name]).all()
        if wanted is not None and final.is_file():
            np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-6)


def test_a_script_changes_only_its_import_line(ort, tmp_path):
    """The same program, run with either, prints the same; numbers to within rounding."""
    text = HERE.with_name("script_for_onnxruntime.py").read_text()
    assert text.count(IMPORT) == 1
    (tmp_path / "theirs.py").write_text(text)
    (tmp_path / "ours.py").write_text(text.replace(IMPORT, "from minbuild.training.api import"))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for folder in (GOLDEN / "mse", GOLDEN / "residual"):
        theirs = json.loads(asked(ort, tmp_path / "theirs.py", folder, tmp_path / "a").splitlines()[-1])
        ours = json.loads(
            asked(sys.executable, tmp_path / "ours.py", folder, tmp_path / "b").splitlines()[-1]
        )
        numbers = theirs.pop("numbers"), ours.pop("numbers")
        assert ours == theirs
        assert numbers[0].keys() == numbers[1].keys()
        for name in numbers[0]:
            np.testing.assert_allclose(numbers[1][name], numbers[0][name], rtol=2e-4, atol=2e-6, err_msg=name)
