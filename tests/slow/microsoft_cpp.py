"""The C++ of Microsoft's Android sample, compiled unchanged for this machine, trains with a library of `--abi ort`.

Part of microsoft_samples.py, for `--headers`, ONNX Runtime's source. The sample's own photographs are the data, and a
main program stands for the activity that calls its functions. It hands labels over as int32, as its artifacts had them
in early 2023; those that today's script makes take int64, so the type is changed in the two graphs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = "mobile/android/c-cpp"
SOURCES = f"{SAMPLE}/app/ORTPersonalize/app/src/main/cpp"
EPOCHS, IMAGES, CLASSES, SIDE, RATE = 2, 20, 4, 224, 0.001
DUMP = """
for name, at in (("input", 0), ("labels", 1)):
    rows = [
        [(image_file_to_tensor(sorted(animals[a])[i]), k)[at] for k, a in enumerate(animals)] for i in range(20)
    ]
    np.save(f"{name}.npy", np.array(rows, np.float32 if at == 0 else np.int32))
"""
MAIN = """
#include <cstdio>
#include <vector>

#include "session_cache.h"
#include "train.h"

int main(int, char** argv) {
  const std::string folder = std::string(argv[1]) + "/";
  SessionCache cache(folder + "checkpoint", folder + "training_model.onnx", folder + "eval_model.onnx",
                     folder + "optimizer_model.onnx", ".");
  std::vector<float> pixels(IMAGES * CLASSES * 3 * SIDE * SIDE);
  std::vector<int32_t> labels(IMAGES * CLASSES);
  FILE *x = fopen("input.bin", "rb"), *y = fopen("labels.bin", "rb");
  if (fread(pixels.data(), 4, pixels.size(), x) != pixels.size()) return 1;
  if (fread(labels.data(), 4, labels.size(), y) != labels.size()) return 1;
  for (int step = 0; step < EPOCHS * IMAGES; ++step) {
    const int i = step % IMAGES;
    float* images = &pixels[size_t(i) * CLASSES * 3 * SIDE * SIDE];
    const float loss = training::train_step(&cache, images, &labels[i * CLASSES], CLASSES, 3, SIDE, SIDE);
    printf("%.9g\\n", loss);
  }
}
"""


def checked(*command: object, cwd: Path, **more: str) -> str:
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, env=os.environ | more, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{command[0]}: {done.stdout[-1500:]}{done.stderr[-1500:]}")
    return done.stdout


def with_short_labels(path: Path) -> None:
    model = onnx.load(str(path))
    (labels,) = [port for port in model.graph.input if port.name == "labels"]
    labels.type.tensor_type.elem_type = TensorProto.INT32
    onnx.save(model, str(path))


def ort_losses(python: str, folder: Path, artifacts: Path) -> np.ndarray:
    """ONNX Runtime's own losses on the same batches."""
    case = folder / "case"
    shutil.copytree(artifacts, case)
    pixels, labels = np.load(folder / "input.npy"), np.load(folder / "labels.npy")
    steps = np.zeros(EPOCHS * IMAGES)
    np.savez(case / "reference.npz", loss=steps, **{"in/input": pixels, "in/labels": labels})
    (case / "meta.json").write_text(json.dumps({"lr": RATE, "n_batches": IMAGES}), "utf-8")
    said = checked(python, Path(__file__).with_name("ort_trainer.py"), case, cwd=folder)
    return np.array(json.loads(said.splitlines()[-1]))


def run(arguments: argparse.Namespace, temporary: Path) -> str:
    from microsoft_samples import run_cells

    folder = temporary / "cpp"
    shutil.copytree(arguments.folder / SAMPLE, folder, ignore=shutil.ignore_patterns("app"))
    (folder / "training_artifacts").mkdir(exist_ok=True)
    notebook = arguments.folder / SAMPLE / "prepare_for_training.ipynb"
    if error := run_cells(arguments, notebook, folder, until="\0", dynamo=False):
        raise SystemExit(f"{notebook.name}: {error}")
    extra = folder / "images.ipynb"
    cells = json.loads((arguments.folder / SAMPLE / "train.ipynb").read_text("utf-8"))["cells"]
    chosen = [c for c in cells if c["cell_type"] == "code"][:2]
    extra.write_text(json.dumps({"cells": [*chosen, {"cell_type": "code", "source": [DUMP]}]}), "utf-8")
    if error := run_cells(arguments, extra, folder, until="\0", dynamo=False):
        raise SystemExit(f"images: {error}")
    for name in ("input", "labels"):
        np.load(folder / f"{name}.npy").tofile(folder / f"{name}.bin")

    artifacts = folder / "training_artifacts"
    for name in ("training_model", "eval_model"):
        with_short_labels(artifacts / f"{name}.onnx")
    options = ("--abi", "ort", "--no-analysis", "--out", folder / "dist")
    checked(sys.executable, "-m", "minbuild", "reduce", artifacts, *options, cwd=folder, PYTHONPATH=str(ROOT))
    (library,) = (folder / "dist/lib").glob("*/libonnxruntime.so")

    sources = arguments.folder / SOURCES
    (folder / "stub/android").mkdir(parents=True)
    (folder / "stub/android/log.h").write_text("", "utf-8")  # included by one file, which calls nothing of it
    (folder / "main.cc").write_text(MAIN, "utf-8")
    java = Path(shutil.which("javac") or "javac").resolve().parents[1] / "include"
    training = arguments.headers / "orttraining/orttraining/training_api/include"
    include = [
        arguments.headers / "include/onnxruntime/core/session",
        training,
        java,
        java / "linux",
        "stub",
        sources,
    ]
    sizes = {"EPOCHS": EPOCHS, "IMAGES": IMAGES, "CLASSES": CLASSES, "SIDE": SIDE}
    flags = [*(f"-I{p}" for p in include), *(f"-D{name}={value}" for name, value in sizes.items())]
    objects, refused = [], []
    for source in (*sorted(sources.glob("*.cpp")), folder / "main.cc"):
        command = ("c++", "-std=c++17", "-O1", "-fPIC", *flags, "-c", source, "-o", f"{source.stem}.o")
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        objects += [f"{source.stem}.o"] if done.returncode == 0 else []
        if done.returncode:
            refused.append(f"`{source.name}`: {re.search(r'error: (.*)', done.stderr)[1]}")  # type: ignore[index]
    needed = [name for name in objects if name in ("train.o", "utils.o", "main.o")]
    checked("c++", *needed, library, f"-Wl,-rpath,{library.parent}", "-o", "personalize", cwd=folder)
    losses = np.array([float(x) for x in checked("./personalize", artifacts, cwd=folder).split()])
    compiled = ", ".join(f"`{name[:-2]}.cpp`" for name in objects if name != "main.o")
    lines = [
        "## C++ of the Android sample",
        "",
        f"`{SOURCES.split('/app/', 1)[1]}`, unchanged, against ONNX Runtime 1.21's headers, on this machine.",
        f"Compiled: {compiled}.",
        *(f"- Not compiled by GCC: {reason}." for reason in refused),
        f"- `train.cpp` and `session_cache.h` trained MobileNetV2 at {SIDE}x{SIDE} on the sample's 80 photographs",
        f"  with a library of {library.stat().st_size:,} B: loss {losses[:IMAGES].mean():.4f} in epoch 1, "
        f"{losses[-IMAGES:].mean():.4f} in epoch {EPOCHS}.",
    ]
    if arguments.ort_python:
        theirs = ort_losses(arguments.ort_python, folder, artifacts)
        difference = np.max(np.abs(losses - theirs) / np.abs(theirs))
        lines.append(
            f"- ONNX Runtime 1.19.2 on the same artifacts and batches: losses within {difference:.1e} of these."
        )
    lines.append(
        "- `inference.cpp` opens an `Ort::Session`, to which `--abi ort` returns `ORT_NOT_IMPLEMENTED`: it trains only."
    )
    return "\n".join(lines)
