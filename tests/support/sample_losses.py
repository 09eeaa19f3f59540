"""The losses that sample programs of packages print, from the package's own library."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from minbuild.training.library import TRAIN, Library, Session


def expected_losses(dist: Path, steps: int) -> list[float]:
    """The losses of the batches that the sketch makes, seen from Python."""
    state = 1

    def bits() -> int:
        nonlocal state
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        return state >> 8

    def normal() -> np.float32:
        total = np.float32(-6)
        for _ in range(12):
            total = np.float32(total + np.float32(bits()) / np.float32(16777216))
        return total

    sketch = (dist / "integrations/arduino/examples/Train/Train.ino").read_text()
    batch, dim = (int(n) for n in re.search(r"MB_FLOAT, 2, \{(\d+), (\d+)\}", sketch).groups())  # type: ignore[union-attr]
    limit = int(re.search(r"random_bits\(\) % (\d+)u", sketch)[1])  # type: ignore[index]
    library = next((dist / "lib").glob("*/libminbuild.so"))
    file = dist / "model/trainer.plan"
    plan = file.read_bytes() if file.exists() else b""
    session = Session(Library(library), plan, (dist / "model/checkpoint").read_bytes())
    losses = []
    for _ in range(steps):
        inputs = np.array([normal() for _ in range(batch * dim)], np.float32).reshape(batch, dim)
        labels = np.array([bits() % limit for _ in range(batch)], np.int64)
        losses.append(float(session.run(TRAIN, [inputs, labels])[0]))
        session.optimizer_step()
        session.lazy_reset_grad()
    return losses
