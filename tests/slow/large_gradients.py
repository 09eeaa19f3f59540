"""First gradients at real size, beside PyTorch in double precision: reports/baseline/large_gradients.md.

    python tests/slow/large_gradients.py [--torch PYTHON] [--ort PYTHON] [--work FOLDER] [--batches 1,8] [--dry]
                                         [NAME...]

The networks are those of bench_large.py, with its artifacts, and each is built in the ways that take other kernels:
as by default on two threads, without threads and AVX-512, and with `--profile fastest` on one. PyTorch's gradients in
double precision are what theirs are compared with, and its own in single precision say how far rounding leads, of
weights that differ in their last bit at most. PYTHON has torch, onnx and onnxscript (--torch),
onnxruntime-training-cpu 1.19.2 (--ort); environments are made where none is given. Exit code 1 where one differs;
--dry leaves the report alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT), str(HERE.parent)]
from field_judge import GRADIENT, LOSS, NOISES, distances, lost, matched  # noqa: E402

RUNS = 5  # of weights that are moved
PREFACE = f"""\
# Gradients at real size

Written by `python tests/slow/large_gradients.py`: first losses and gradients of the networks of `large.md`, beside
PyTorch's in float64, each as a part of the largest element of its parameter: the parameter in the middle and the
farthest. Noise is PyTorch's own distance in float32, the largest of runs whose weights differ in their last bit at
most: a ReLU that turns over moves gradients much, and in few runs. A parameter differs if its distance is above
{GRADIENT:g} and ten times its noise.

| network | batch | build | loss | noise | gradients | farthest | noise | differ | result |
|---|--:|---|--:|--:|--:|--:|--:|--:|---|
"""
# Profile, other options, and threads of a call.
BUILDS: dict[str, tuple[str, dict[str, str], int]] = {
    "default, two threads": ("balanced", {}, 2),
    "no threads, no AVX-512": ("balanced", {"threads": "off", "avx512": "off"}, 1),
    "fastest, no threads": ("fastest", {"threads": "off"}, 1),
}


def main() -> int:
    from bench_large import chosen, environments, make_artifacts

    options = _options()
    lines, differ = [], 0
    with tempfile.TemporaryDirectory(prefix="minbuild-large-") as scratch:
        work = options.work or Path(scratch)
        pythons = environments(options, work)
        for name in chosen(options.names):
            folder = work / name.replace(":", "-")
            make_artifacts(folder, name, pythons, options.batches)
            for batch in options.batches:
                record = _of_torch(folder, name, batch, pythons["torch"])
                for build, row in _rows(folder, batch, record):
                    lines.append(f"| {name} | {batch} | {build} | {row} |")
                    differ += "differs" in row
                    print(lines[-1], flush=True)
    if not options.dry:
        (ROOT / "reports/baseline/large_gradients.md").write_text(PREFACE + "\n".join(lines) + "\n", "utf-8")
    return 1 if differ else 0


def _options() -> argparse.Namespace:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--torch", type=Path)
    parser.add_argument("--ort", type=Path)
    parser.add_argument("--work", type=Path, help="keep what is exported here")
    parser.add_argument("--batches", type=lambda text: [int(n) for n in text.split(",")], default=[1, 8])
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("names", nargs="*")
    return parser.parse_args()


def _of_torch(folder: Path, name: str, batch: int, python: Path) -> dict[str, np.ndarray]:
    """Values, gradients and noise of all parameters that train, as field_judge.py reads them, and both losses."""
    with tempfile.TemporaryDirectory(prefix="minbuild-large-") as scratch:
        out = Path(scratch) / "record.npz"
        command = [str(python), str(HERE), "--worker", str(folder), name, str(batch), str(out)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        subprocess.run(command, check=True, env=environment)
        with np.load(out) as arrays:
            return dict(arrays)


def worker(folder: str, name: str, batch: str, out: str) -> None:
    import torch
    from large_nets import made, net_of
    from torch.nn import functional

    with np.load(Path(folder) / f"batch_{batch}.npz") as arrays:
        x, labels = (torch.from_numpy(arrays[name]) for name in ("x", "labels"))
    found: dict[str, np.ndarray] = {}
    for run in range(RUNS + 2):  # in double precision, and in single precision as they are and moved
        dtype = torch.float64 if run == 0 else torch.float32
        model = made(name).to(dtype)
        given = x.to(dtype) if x.is_floating_point() else x
        if run > 1:
            with torch.no_grad():
                random = torch.Generator().manual_seed(run)
                for value in model.parameters():
                    value.mul_(1 + torch.randint(-1, 2, value.shape, generator=random) * 2.0**-23)
        loss = (
            model(given, labels)
            if net_of(name).gives_loss
            else functional.cross_entropy(model(given), labels)
        )
        loss.backward()
        if run == 0:
            found["loss/gradient64"] = np.array(loss.item())
        off = abs(loss.item() - float(found["loss/gradient64"]))
        found["loss/noise"] = np.maximum(found.get("loss/noise", 0.0), off)
        for parameter, value in model.named_parameters():
            if value.grad is None:
                continue
            gradient = value.grad.numpy()
            if run == 0:
                found[f"gradient64/{parameter}"] = gradient
                continue
            if run == 1:
                found[f"value/{parameter}"] = value.detach().numpy()
            noise = np.abs(gradient - found[f"gradient64/{parameter}"]).max()
            found[f"noise/{parameter}"] = np.maximum(found.get(f"noise/{parameter}", 0.0), noise)
    np.savez(out, **found)


def _rows(folder: Path, batch: int, record: Mapping[str, np.ndarray]) -> Iterator[tuple[str, str]]:
    """The builds, and what the table says of each."""
    from minbuild.authoring.load import load
    from minbuild.ops import registry

    loss = float(record["loss/gradient64"])
    same = matched({p.name: p.data for p in load(folder, registry()).checkpoint.parameters}, record)
    rounding = float(record["loss/noise"]) / loss
    for build in BUILDS:
        found_loss, found = _of_build(folder, batch, *BUILDS[build])
        away = dict(distances(found, record, same))
        noise = {p: float(record[f"noise/{p}"] / np.abs(record[f"gradient64/{p}"]).max()) for p in away}
        differ = [p for p, far in away.items() if not far <= max(GRADIENT, NOISES * noise[p])]
        off = abs(found_loss - loss) / loss
        agrees = not differ and off <= max(LOSS, NOISES * rounding)
        missing = lost(record, same)
        result = ("agrees" if agrees else "differs") + (
            f", {len(missing)} parameters left out" if missing else ""
        )
        farthest = (np.median(list(away.values())), np.max(list(away.values())), max(noise.values()))
        numbers = " | ".join(f"{n:.1e}" for n in (off, rounding, *farthest))
        yield build, f"{numbers} | {len(differ)} of {len(away)} | {result}"


def _of_build(
    folder: Path, batch: int, profile: str, others: dict[str, Any], threads: int
) -> tuple[float, dict[str, np.ndarray]]:
    """The loss and the gradients of a first training step by a trainer that is built now."""
    from bench_large import built

    from minbuild.options.build_options import in_profile
    from minbuild.pipeline import plan_options
    from minbuild.toolchain import host_target
    from minbuild.training.library import TRAIN, Library, Session

    options = replace(in_profile(profile), **others)
    model, shared = built(folder, options, plan_options(options, [host_target()]))
    with tempfile.TemporaryDirectory(prefix="minbuild-large-") as scratch:
        path = Path(scratch) / "trainer.so"
        path.write_bytes(shared)
        sizes = [batch] * len(model.plan.symbols)
        checkpoint = (folder / "checkpoint").read_bytes()
        session = Session(Library(path), model.plan_bytes, checkpoint, sizes, threads=threads)
        with np.load(folder / f"batch_{batch}.npz") as arrays:
            given = [arrays[name] for name, _ in model.plan.routines[0].inputs]
        loss = float(np.ravel(session.run(TRAIN, given)[0])[0])
        gradients = {n: session.gradient(n) for n in session.parameters}
        return loss, {n: np.array(g) for n, g in gradients.items() if g is not None}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(*sys.argv[2:])
    else:
        sys.exit(main())
