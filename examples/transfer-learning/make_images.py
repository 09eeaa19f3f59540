"""Makes images of a red disc, a green square, blue stripes and a yellow cross, on noise: python make_images.py FOLDER

Writes train.bin, a few images per class, and held.bin, others to judge by. A file is three int32, how many images, the
number of classes and the side, then for each image its class as int32 and float32[3,side,side] from -1 to 1.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

SIDE, CLASSES = 48, 4
COLOURS = ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0))
PER_CLASS = {"train.bin": 8, "held.bin": 10}


def shape_of(kind: int, random: np.random.Generator) -> np.ndarray:
    """Where the shape is, bool[SIDE,SIDE], at a place and of a size that vary."""
    center, radius = random.uniform(0.4, 0.6, 2) * SIDE, random.uniform(0.3, 0.35) * SIDE
    y, x = np.indices((SIDE, SIDE)) - center[:, None, None]
    inside = np.maximum(abs(x), abs(y)) < radius
    if kind == 0:
        return x * x + y * y < radius * radius
    if kind == 1:
        return inside
    if kind == 2:
        return inside & (y % 6 < 3)
    return inside & (np.minimum(abs(x), abs(y)) < 0.4 * radius)


def image(kind: int, random: np.random.Generator) -> np.ndarray:
    """float32[3,SIDE,SIDE]."""
    colour = (COLOURS[kind] + random.uniform(-0.15, 0.15, 3))[:, None, None]
    noise = random.normal(0, 0.05, (3, SIDE, SIDE))
    return (np.where(shape_of(kind, random), colour, -0.5) + noise).clip(-1, 1).astype(np.float32)


def make(folder: Path) -> None:
    """Writes both files, the same bytes each time."""
    random = np.random.default_rng(3)
    folder.mkdir(parents=True, exist_ok=True)
    for name, per_class in PER_CLASS.items():
        kinds = random.permutation(np.repeat(np.arange(CLASSES), per_class))
        pieces = [np.array([len(kinds), CLASSES, SIDE], "<i4").tobytes()]
        for kind in kinds:
            pieces += [np.array(kind, "<i4").tobytes(), image(kind, random).tobytes()]
        (folder / name).write_bytes(b"".join(pieces))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
