"""Features of samples, computed once each: what a frozen backbone makes of data, for a trainer of the tail.

cache = FeatureCache(lambda images: backbone.run(None, {"image": images}), images)
loss = trainer.step(*cache[chosen], labels[chosen])
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minbuild.errors import BadInput


class FeatureCache:
    """The features of each sample of a data set. Indexing with sample numbers gives them as a tuple of arrays, one row
    per sample, and runs `backbone` on samples that are asked for the first time.

    - `backbone`: called with the rows of `data` for these samples; returns an array or a sequence of them
    - `data`: arrays, or anything that numbers index, with one row per sample
    - `folder`: where features are kept as .npy files and found by later programs; in memory without one. It belongs to
      one backbone and one data set

    Raises BadInput where the backbone returns no row per sample, or a folder holds other features."""

    def __init__(
        self,
        backbone: Callable[..., Any],
        *data: Any,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        counts = {len(each) for each in data}
        if len(counts) != 1:
            raise BadInput(
                "the arrays of a FeatureCache hold different numbers of samples, or there is none."
            )
        (self._count,) = counts
        self._backbone, self._data = backbone, data
        self._folder = None if folder is None else Path(folder)
        self._features: tuple[np.ndarray, ...] = ()
        self._known = np.zeros(self._count, bool)
        if self._folder is not None and (self._folder / _KNOWN).is_file():
            self._reopen(self._folder)

    def __len__(self) -> int:
        return self._count

    @property
    def computed(self) -> int:
        """Number of samples whose features are there."""
        return int(np.count_nonzero(self._known))

    def __getitem__(self, samples: Any) -> tuple[np.ndarray, ...]:
        chosen = np.atleast_1d(np.arange(self._count)[samples])
        missing = np.unique(chosen[~self._known[chosen]])
        if missing.size:
            self._fill(missing)
        return tuple(each[chosen] for each in self._features)

    def _fill(self, missing: np.ndarray) -> None:
        found = self._backbone(*(each[missing] for each in self._data))
        arrays = [np.asarray(each) for each in (found if isinstance(found, Sequence) else (found,))]
        for each in arrays:
            if each.ndim == 0 or len(each) != missing.size:
                raise BadInput(
                    f"the backbone made {list(each.shape)} of {missing.size} samples: one row each is wanted."
                )
        if not self._features:
            self._features = tuple(self._room(number, each) for number, each in enumerate(arrays))
        for kept, each in zip(self._features, arrays, strict=True):
            if kept.shape[1:] != each.shape[1:]:
                raise BadInput(
                    f"the backbone made rows of {list(each.shape[1:])}, before they were {list(kept.shape[1:])}."
                )
            kept[missing] = each
            if isinstance(kept, np.memmap):
                kept.flush()
        self._known[missing] = True
        if isinstance(self._known, np.memmap):
            self._known.flush()  # after the features: what it names is there, whenever a program ends

    def _room(self, number: int, rows: np.ndarray) -> np.ndarray:
        shape = (self._count, *rows.shape[1:])
        if self._folder is None:
            return np.empty(shape, rows.dtype)
        self._folder.mkdir(parents=True, exist_ok=True)
        if number == 0:
            self._known = np.lib.format.open_memmap(self._folder / _KNOWN, "w+", bool, (self._count,))
        return np.lib.format.open_memmap(self._folder / f"features{number}.npy", "w+", rows.dtype, shape)

    def _reopen(self, folder: Path) -> None:
        try:
            self._known = np.lib.format.open_memmap(folder / _KNOWN, "r+")
            if not self._known.any():  # a program ended before it had any
                return
            paths = sorted(folder.glob("features*.npy"), key=lambda p: int(p.stem.removeprefix("features")))
            self._features = tuple(np.lib.format.open_memmap(path, "r+") for path in paths)
        except (OSError, ValueError) as error:
            raise BadInput(f"{folder}: cannot be read as features: {error}. Delete it.") from error
        if not self._features or {len(a) for a in (self._known, *self._features)} != {self._count}:
            raise BadInput(
                f"{folder}: holds features of another data set. Delete it, or give another folder."
            )


_KNOWN = "known.npy"
