"""Writes windows.bin, what an accelerometer on a motor would record: 64 samples of int16 to a window.

The first 400 windows are the motor as it was installed: three harmonics of its rotation and noise, at phases and loads
that vary. Of the last 100, every second one has the knocks of a damaged bearing as well. Data of your own has the same
form: numbers of an analog-to-digital converter, nothing else.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

NORMAL, TESTED, SAMPLES = 400, 100, 64

random = np.random.default_rng(7)
time = np.arange(SAMPLES) / SAMPLES


def motor() -> np.ndarray:
    """Four turns in a window, at a phase and a load of its own."""
    phase, load = random.uniform(0, 2 * np.pi), random.uniform(0.7, 1.0)
    turns = [(4, 1.0), (8, 0.4), (12, 0.2)]
    wave = sum(size * np.sin(2 * np.pi * n * time + k * phase) for k, (n, size) in enumerate(turns, 1))
    return load * wave + 0.03 * random.standard_normal(SAMPLES)


def knocks() -> np.ndarray:
    """A resonance that rings after each knock, at a rate that is no multiple of the rotation."""
    struck, wave = random.uniform(0, 9), np.zeros(SAMPLES)
    for start in np.arange(struck, SAMPLES, 9.3):
        after = np.arange(SAMPLES) - start
        wave += np.where(after >= 0, np.exp(-np.maximum(after, 0) / 2) * np.sin(2.2 * after), 0)
    return wave


windows = [motor() for _ in range(NORMAL)] + [motor() + (i % 2) * knocks() for i in range(TESTED)]
Path("windows.bin").write_bytes((8000 * np.stack(windows)).clip(-32768, 32767).astype("<i2").tobytes())
