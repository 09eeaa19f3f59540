"""Proves a trainer of MobileNetV2 for images of 224x224 on another machine: 52 convolutions in a chain, each with a
BatchNormalization behind it that magnifies the rounding of all before it.

    python tests/slow/prove_mobilenet.py [--target aarch64-linux-musl]... [--size 224] [--width 1.0] [--keep FOLDER]

Makes the forward model (Sandler et al., 2018, with initial weights as PyTorch draws them), reduces it with
`--require-proof`, and prints how long that took, and what the proof says. Ends with the exit code of `minbuild reduce`.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent / "golden")]

from forward import FLOAT, Net  # noqa: E402

# Factor of expansion, channels, how often, stride of the first.
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def channels_of(channels: int, width: float) -> int:
    """A multiple of 8 near to `channels * width`, at most a tenth below."""
    wide = channels * width
    near = max(8, int(wide + 4) // 8 * 8)
    return near + 8 if near < 0.9 * wide else near


def block(
    net: Net, x: str, name: str, channels: tuple[int, int], kernel: int, stride: int, groups: int
) -> str:
    """A convolution without bias, and its normalization."""
    x = net.conv(x, f"{name}.0", channels, kernel, stride, groups, bias=False)
    weight = net.weights[f"{name}.0.weight"]
    deviation = np.sqrt(2 / (channels[1] // groups * kernel * kernel))  # He's, by outputs
    net.weights[f"{name}.0.weight"] = net.rng.normal(0, deviation, weight.shape).astype(np.float32)
    return net.norm(x, f"{name}.1", channels[1])


def mobilenet(size: int, width: float, classes: int = 1000) -> onnx.ModelProto:
    """The forward model, in training mode, with a free batch."""
    net, wide = Net(224), channels_of(32, width)
    x = net.relu6(block(net, "input", "stem", (3, wide), 3, 2, 1))
    number = 0
    for factor, channels, count, first in STAGES:
        for i in range(count):
            name, before, out = f"block{number}", x, channels_of(channels, width)
            inner, stride = wide * factor, first if i == 0 else 1
            if factor > 1:
                x = net.relu6(block(net, x, f"{name}.expand", (wide, inner), 1, 1, 1))
            x = net.relu6(block(net, x, f"{name}.depthwise", (inner, inner), 3, stride, inner))
            x = block(net, x, f"{name}.project", (inner, out), 1, 1, 1)
            x = net.add("Add", [before, x]) if stride == 1 and wide == out else x
            wide, number = out, number + 1
    last = channels_of(1280, max(width, 1.0))
    x = net.relu6(block(net, x, "head", (wide, last), 1, 1, 1))
    x = net.add("Flatten", [net.add("GlobalAveragePool", [x])], axis=1)
    net.linear(x, "classifier", last, classes, "output")
    outputs = {"output": (FLOAT, ("batch", classes))}
    return net.model({"input": (FLOAT, ("batch", 3, size, size))}, outputs)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", action="append", help="default: aarch64-linux-musl; repeatable")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--keep", type=Path, help="folder for model and package")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = options.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "mobilenet.onnx"
        onnx.save(mobilenet(options.size, options.width), path)
        command = [sys.executable, "-m", "minbuild", "reduce", str(path), "--loss", "cross-entropy"]
        command += [f"--target={t}" for t in options.target or ["aarch64-linux-musl"]]
        command += ["--out", str(folder / "dist"), "--no-analysis", "--require-proof", "--force"]
        began = time.monotonic()
        done = subprocess.run(command, cwd=HERE.parents[1], check=False)
        taken = time.monotonic() - began
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print(f"exit code {done.returncode} after {taken:.0f} s; the largest process took {memory:,.0f} MB")
        report = folder / "dist" / "report.json"
        if report.is_file():
            for library in json.loads(report.read_text()).get("libraries", []):
                print(json.dumps(library.get("verification", {}), indent=1))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
