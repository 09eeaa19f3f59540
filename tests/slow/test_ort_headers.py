"""Programs compiled against ONNX Runtime's own headers train with `--abi ort`, to the losses that it recorded.

    MINBUILD_ORT_HEADERS=onnxruntime-1.21.0 pytest tests/slow/test_ort_headers.py

The folder is ONNX Runtime's source, such as that of Debian's package (`apt-get source onnxruntime`, 1.21.0).
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[1] / "support"), str(HERE.parents[1] / "compat"), str(HERE.parents[2])]

from case_sets import folders  # noqa: E402
from ort_programs import PROGRAMS, write_batches  # noqa: E402
from programs import CC, run  # noqa: E402
from test_ort_abi import package  # noqa: E402

from minbuild.codegen.ort_abi import INTERFACE, ort_functions  # noqa: E402

HEADERS = Path(os.environ.get("MINBUILD_ORT_HEADERS", "none"))
C_API = HEADERS / "include/onnxruntime/core/session/onnxruntime_c_api.h"
TRAINING_API = HEADERS / "orttraining/orttraining/training_api/include/onnxruntime_training_c_api.h"
# Losses that no rounding explains are judged elsewhere; these follow ONNX Runtime closely.
CASES = {"dense", "conv", "mlp", "mlp_sgd", "lenet", "bert_tiny", "mobilenetv2"}

if not C_API.is_file():
    pytest.skip("MINBUILD_ORT_HEADERS names no source of ONNX Runtime", allow_module_level=True)


@pytest.mark.parametrize(("path", "table"), [(C_API, "OrtApi"), (TRAINING_API, "OrtTrainingApi")])
def test_places_are_those_of_the_header(path: Path, table: str) -> None:
    text = re.sub(r"/\*.*?\*/|//[^\n]*|^#.*?$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    start = text.index(f"struct {table} {{") + len(f"struct {table} {{")
    found = []
    for statement in text[start : text.index("\n};", start)].split(";"):
        if released := re.search(r"ORT_CLASS_RELEASE2?\(\s*(\w+)", statement):
            found.append(f"Release{released[1]}")
        elif name := re.search(r"ORT_API2_STATUS\(\s*(\w+)|\*\s*(\w+)\)", statement):
            found.append(name[1] or name[2])
    assert tuple(found) == ort_functions()[table]


@pytest.mark.parametrize("case", [f for f in folders() if f.name in CASES], ids=lambda f: f.name)
@pytest.mark.parametrize("language", ["c", "cc"])
def test_a_program_trains_to_the_recorded_losses(case: Path, language: str, tmp_path: Path) -> None:
    libraries = package(tmp_path / "dist", case)
    meta, recorded = json.loads((case / "meta.json").read_text()), np.load(case / "reference.npz")
    steps = write_batches(tmp_path / "batches", [recorded[f"in/{name}"] for name in meta["input_names"]])
    steps = min(steps, len(recorded["loss"]))
    compiler = (*CC, "-std=c11") if language == "c" else ("c++", "-std=c++17")
    include = (f"-I{C_API.parent}", f"-I{TRAINING_API.parent}", '-DORT_HEADER="onnxruntime_training_c_api.h"')
    library = (libraries / INTERFACE.soname, f"-Wl,-rpath,{libraries}", "-Wno-unused-parameter")
    run(*compiler, *include, PROGRAMS / f"train.{language}", *library, "-o", "train", cwd=tmp_path)
    said = run("./train", case, "batches", steps, meta["lr"], cwd=tmp_path)
    losses = [float(word) for word in re.findall(r"^loss (.*)$", said, re.MULTILINE)]
    noise = np.max(meta["noise"]["loss_per_step"]) if "noise" in meta else 0.0
    np.testing.assert_allclose(losses, recorded["loss"][:steps], rtol=1e-5, atol=4 * noise)
