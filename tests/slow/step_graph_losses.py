"""Whole training steps as plain ONNX graphs: losses of trainers against ONNX Runtime running the same graphs.

    python tests/slow/step_graph_losses.py write FOLDER      in the environment of the project
    python tests/slow/step_graph_losses.py run FOLDER        in one with onnxruntime
    python tests/slow/step_graph_losses.py compare FOLDER    in that of the project

`compare` writes reports/baseline/step_graphs.md: by net the first and the last loss, the largest relative difference of
a loss over 100 steps, and the size of the library, by default and with `--profile smallest`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

STEPS, WITHIN, RATE = 100, 1e-6, {"sgd": 0.05, "adagrad": 0.05}
TABLE = Path(__file__).resolve().parents[2] / "reports" / "baseline" / "step_graphs.md"
HEAD = """# Whole training steps as plain ONNX graphs

Trainers against ONNX Runtime running the same graph on the same batches, 100 steps each. Made by
`tests/slow/step_graph_losses.py`; the nets are in `tests/support/step_graphs.py`.

| net and optimizer | first loss | last loss | largest relative difference | library, x86-64 | `--profile smallest` |
|---|--:|--:|--:|--:|--:|"""


def rate(name: str) -> np.ndarray:
    return np.array(RATE.get(name.rpartition("-")[2], 0.005), np.float32)


def write(folder: Path) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
    from step_graphs import NETS, OPTIMIZERS, batches, step

    x, t = (np.stack(arrays) for arrays in zip(*batches(STEPS), strict=True))
    np.savez(folder / "batches.npz", x=x, t=t)
    for net in NETS:
        for optimizer in OPTIMIZERS:
            whole, name = step(net, optimizer), f"{net}-{optimizer}"
            (folder / f"{name}.onnx").write_bytes(whole.model().SerializeToString())
            (folder / f"{name}.json").write_text(json.dumps(whole.following))


def run(folder: Path) -> None:
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    data = np.load(folder / "batches.npz")
    for path in sorted(folder.glob("*.onnx")):
        following = json.loads(path.with_suffix(".json").read_text())
        session = onnxruntime.InferenceSession(path)
        state, losses = {}, []  # first values are defaults of the inputs
        for x, t in zip(data["x"], data["t"], strict=True):
            feeds = {"x": x, "t": t, "lr": rate(path.stem), **state}
            needed = {i.name for i in session.get_inputs()} | set(state)
            feeds = {n: a for n, a in feeds.items() if n in needed}
            loss, *values = session.run(["loss", *following.values()], feeds)
            state = dict(zip(following, values, strict=True))
            losses.append(float(loss))
        np.save(path.with_suffix(".npy"), losses)


def _library(package: str) -> int:
    """Bytes of the library in a package."""
    return sum(f.stat().st_size for f in Path(package).rglob("*.so"))


def compare(folder: Path) -> int:
    from minbuild.cli.main import app
    from minbuild.training.api import CheckpointState, Module

    data, failed, rows = np.load(folder / "batches.npz"), 0, []
    for path in sorted(folder.glob("*.onnx")):
        with tempfile.TemporaryDirectory() as out:
            try:
                app(
                    ["reduce", str(path), "--out", out, "--force", "--no-analysis", "--json"],
                    standalone_mode=False,
                )
            except SystemExit as leaving:
                if leaving.code:
                    raise
            module = Module(out, CheckpointState.load_checkpoint(Path(out) / "model" / "checkpoint"))
            found = [float(module(x, t, rate(path.stem))) for x, t in zip(data["x"], data["t"], strict=True)]
            sizes = [_library(out)]
            command = [
                "reduce",
                str(path),
                "--out",
                out,
                "--force",
                "--no-analysis",
                "--json",
                "--profile",
                "smallest",
            ]
            try:
                app(command, standalone_mode=False)
            except SystemExit as leaving:
                if leaving.code:
                    raise
            sizes.append(_library(out))
        wanted = np.load(path.with_suffix(".npy"))
        worst = np.max(np.abs(np.array(found) - wanted) / np.abs(wanted))
        failed += not worst <= WITHIN
        rows.append(
            f"| {path.stem} | {wanted[0]:.4f} | {wanted[-1]:.4f} | {worst:.1e} | {sizes[0]:,} B | {sizes[1]:,} B |"
        )
    TABLE.write_text("\n".join((HEAD, *rows, "")), encoding="utf-8")
    print(f"{len(rows)} nets, {failed} beyond {WITHIN}: {TABLE}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    command, where = sys.argv[1:]
    sys.exit({"write": write, "run": run, "compare": compare}[command](Path(where)))
