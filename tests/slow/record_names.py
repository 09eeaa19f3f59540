"""Records the public names of ONNX Runtime's artifact tools and what they take: tests/golden/onnxblock.json.

    python tests/slow/record_names.py [--ort-python PYTHON]

Runs ONNX Runtime 1.19.2; without --ort-python an environment with onnxruntime-training-cpu 1.19.2 is made.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve()
GOLDEN = HERE.parents[1] / "golden"
sys.path.insert(0, str(GOLDEN))

from make_artifacts import prepare  # noqa: E402

ASK = """
import inspect, json
from onnxruntime.training import artifacts, onnxblock

def takes(thing):
    signature = inspect.signature(thing).parameters.values()
    return [p.name for p in signature if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]

def told(module, names):
    return {
        n: {"takes": takes(getattr(module, n)), "build": takes(getattr(module, n).build)[1:]}
        if inspect.isclass(getattr(module, n)) and issubclass(getattr(module, n), onnxblock.Block)
        else {"takes": takes(getattr(module, n))}
        for n in names
        if callable(getattr(module, n))
    }

blocks = [n for n, c in vars(onnxblock.blocks).items()
          if inspect.isclass(c) and issubclass(c, onnxblock.Block) and n[0] != "_"]
print(json.dumps({
    "onnxblock": told(onnxblock, sorted(onnxblock.__all__)),
    "onnxblock.blocks": told(onnxblock.blocks, sorted(blocks)),
    "onnxblock.loss": told(onnxblock.loss, sorted(onnxblock.loss.__all__)),
    "onnxblock.optim": told(onnxblock.optim, sorted(onnxblock.optim.__all__)),
    "artifacts": {"generate_artifacts": {"takes": takes(artifacts.generate_artifacts)}},
    "LossType": {m.name: m.value for m in artifacts.LossType},
    "OptimType": {m.name: m.value for m in artifacts.OptimType},
}, indent=1, sort_keys=True))
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ort-python", type=Path, help="Python with onnxruntime-training-cpu 1.19.2")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        python = options.ort_python or prepare(Path(scratch) / "env", "python3.11")
        done = subprocess.run([str(python), "-c", ASK], check=True, capture_output=True, text=True)
    (GOLDEN / "onnxblock.json").write_text(done.stdout, "utf-8")


if __name__ == "__main__":
    main()
