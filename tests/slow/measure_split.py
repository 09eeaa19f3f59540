"""A training step of the tail of MobileNetV2 on cached features, beside one of the whole network with the same
parameters trained: time per sample, and losses.

    python tests/slow/measure_split.py [--train last:2] [--size 224] [--classes 1000] [--batch 8] [--keep FOLDER]

Makes the network in inference mode with initial weights as PyTorch draws them, reduces the whole and the tail, and
trains both on the same samples: the whole on images, the tail on features, which the backbone computes once in
onnxruntime.
Ends with 1 if losses differ by more than rounding, or if a sample costs more than 1/20 from the second epoch on.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

from prove_mobilenet import mobilenet  # noqa: E402

from minbuild.training.feature_cache import FeatureCache  # noqa: E402
from minbuild.training.trainer import Trainer  # noqa: E402

SAMPLES, EPOCHS, WANTED = 16, 3, 1 / 20
# The backbone runs in onnxruntime, whose convolutions round otherwise, in a network of 52 of them.
CLOSE = {"rtol": 2e-4}


def inferring(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with batch normalisation in inference mode."""
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            del node.output[1:]
            kept = [a for a in node.attribute if a.name != "training_mode"]
            del node.attribute[:]
            node.attribute.extend(kept)
    return model


def minbuild(*arguments: str) -> None:
    subprocess.run((sys.executable, "-m", "minbuild", *arguments), check=True, cwd=HERE.parents[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", default="last:2")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        return measured(asked, asked.keep or Path(made))


def measured(asked: argparse.Namespace, folder: Path) -> int:
    model, batch = folder / "model.onnx", asked.batch
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(inferring(mobilenet(asked.size, 1.0, asked.classes)), model)
    common = ("--train", asked.train, "--max-dim", f"batch={batch}", "--force")
    minbuild("split", str(model), *common, "--out", str(folder / "split"))
    minbuild(
        "reduce",
        str(model),
        *common,
        "--loss",
        "cross-entropy",
        "--no-analysis",
        "--out",
        str(folder / "whole"),
    )

    random = np.random.default_rng(0)
    images = random.standard_normal((SAMPLES, 3, asked.size, asked.size)).astype(np.float32)
    labels = random.integers(0, asked.classes, SAMPLES)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        folder / "split/backbone.onnx", options, providers=["CPUExecutionProvider"]
    )
    name = session.get_inputs()[0].name
    cache = FeatureCache(lambda x: session.run(None, {name: x}), images)
    whole, tail = (
        Trainer(folder / "whole", learning_rate=1e-4),
        Trainer(folder / "split/dist", learning_rate=1e-4),
    )
    times: dict[str, list[float]] = {"whole": [], "tail": []}
    losses: dict[str, list[float]] = {"whole": [], "tail": []}
    for _ in range(EPOCHS):
        for first in range(0, SAMPLES, batch):
            chosen = slice(first, first + batch)
            for kind in times:
                start = time.perf_counter()
                if kind == "whole":
                    losses[kind].append(whole.step(images[chosen], labels[chosen]))
                else:
                    losses[kind].append(tail.step(*cache[chosen], labels[chosen]))
                times[kind].append((time.perf_counter() - start) / batch)
    first_epoch = SAMPLES // batch
    each = {kind: float(np.median(found[first_epoch:])) for kind, found in times.items()}
    first = float(np.median(times["tail"][:first_epoch]))
    apart = float(np.max(np.abs(np.subtract(losses["tail"], losses["whole"])) / np.abs(losses["whole"])))
    print(
        f"{asked.train}, {asked.size}x{asked.size}, {asked.classes} classes, batch {batch}: milliseconds of a sample"
    )
    print(f"whole {1e3 * each['whole']:.2f}; first epoch with the backbone in onnxruntime {1e3 * first:.2f}; then "
          f"{1e3 * each['tail']:.3f}, 1/{each['whole'] / each['tail']:.0f} of the whole")  # fmt: skip
    print(
        f"features of a sample: {sum(a.nbytes for a in cache[:1]):,} bytes; losses apart by {apart:.1e} of them"
    )
    for kind, path in (("whole", folder / "whole"), ("tail", folder / "split/dist")):
        library = next((path / "lib").glob("*/libminbuild.so"))
        print(f"library of the {kind}: {library.stat().st_size:,} bytes")
    close = np.allclose(losses["tail"], losses["whole"], **CLOSE)
    return 0 if close and each["tail"] <= WANTED * each["whole"] else 1


if __name__ == "__main__":
    sys.exit(main())
