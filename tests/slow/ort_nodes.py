"""Runs models in ONNX Runtime. Runs in an environment with onnxruntime-training-cpu 1.19.2.

    python tests/slow/ort_nodes.py FOLDER

Every `<name>.onnx` in the folder is fed with the arrays of `<name>.npz`; its outputs go to `<name>.out.npz`. Where ONNX
Runtime cannot, `<name>.txt` says why.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnxruntime


def main(folder: Path) -> None:
    onnxruntime.set_default_logger_severity(4)
    for path in sorted(folder.glob("*.onnx")):
        try:
            session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
            answers = session.run(None, dict(np.load(path.with_suffix(".npz"))))
        except Exception as error:  # whatever its classes are
            path.with_suffix(".txt").write_text(str(error))
            continue
        names = [output.name for output in session.get_outputs()]
        np.savez(path.with_suffix(".out.npz"), **dict(zip(names, answers, strict=True)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
