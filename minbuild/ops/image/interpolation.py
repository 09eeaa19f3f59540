"""Where the elements of a resized axis come from: the coordinates and weights of Resize, as tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from minbuild.ops.core.definition import UnsupportedUse
from minbuild.ops.image.resample import Table


@dataclass(frozen=True)
class Stretch:
    """One axis being resized: sizes, the scale that was asked for, and the region of the input that is sampled (in
    units of the axis, for tf_crop_and_resize)."""

    axis: int
    size: int
    outputs: int
    scale: float
    region: tuple[float, float] = (0.0, 1.0)

    def coordinates(self, mode: str) -> np.ndarray:
        """Where every output stands on the input's axis; formulas of the ONNX specification."""
        o, width = np.arange(self.outputs, dtype=np.float64), self.scale * self.size
        last = self.size - 1
        if mode == "asymmetric":
            return o / self.scale
        if mode == "align_corners":
            return o * 0 if width == 1 else o * last / (width - 1)
        if mode == "tf_crop_and_resize":
            start, end = self.region
            middle = o * 0 + 0.5 * (start + end) * last
            return middle if width == 1 else start * last + o * (end - start) * last / (width - 1)
        half = (o + 0.5) / self.scale - 0.5
        if mode == "half_pixel_symmetric":
            return half + self.size / 2 * (1 - self.outputs / width)
        if mode == "pytorch_half_pixel" and width <= 1:
            return o * 0
        if mode in ("half_pixel", "pytorch_half_pixel"):
            return half
        raise UnsupportedUse(f"coordinate_transformation_mode {mode} is not known")

    def table(self, attributes: Mapping[str, Any]) -> Table:
        """The weights by which Resize with these attributes makes every output."""
        coordinates = self.coordinates(_coordinate_mode(attributes))
        mode = attributes.get("mode", "nearest")
        if mode == "nearest":
            rounding = attributes.get("nearest_mode", "round_prefer_floor")
            if rounding not in _ROUNDINGS:
                raise UnsupportedUse(f"nearest_mode {rounding} is not known")
            indices = _ROUNDINGS[rounding](coordinates, self.scale)[:, None]
            weights = np.ones(indices.shape)
        elif mode in ("linear", "cubic"):
            narrowing = min(self.scale, 1.0) if attributes.get("antialias", 0) else 1.0
            indices, weights = _taps(coordinates, mode, narrowing, attributes.get("cubic_coeff_a", -0.75))
        else:
            raise UnsupportedUse(f"mode {mode} is not known; there are nearest, linear and cubic")
        if attributes.get("exclude_outside", 0) and mode != "nearest":
            weights = weights * ((indices >= 0) & (indices < self.size))
        totals = weights.sum(1, keepdims=True)
        weights = weights / np.where(totals == 0, 1, totals)
        weights[self.outside(attributes)] = 0
        return Table(self.size, np.clip(indices, 0, self.size - 1).astype(np.int64), weights)

    def outside(self, attributes: Mapping[str, Any]) -> np.ndarray:
        """Which outputs get the extrapolation value."""
        mode = _coordinate_mode(attributes)
        if mode != "tf_crop_and_resize":
            return np.zeros(self.outputs, bool)
        coordinates = self.coordinates(mode)
        return (coordinates < 0) | (coordinates > self.size - 1)


def _coordinate_mode(attributes: Mapping[str, Any]) -> str:
    return str(attributes.get("coordinate_transformation_mode", "half_pixel"))


# "simple" is the rounding of Resize in opset 10, which ONNX leaves open and ONNX Runtime does so.
_ROUNDINGS: Mapping[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "round_prefer_floor": lambda x, scale: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x, scale: np.floor(x + 0.5),
    "floor": lambda x, scale: np.floor(x),
    "ceil": lambda x, scale: np.ceil(x),
    "simple": lambda x, scale: np.ceil(x) if scale < 1 else np.floor(x),
}


def _taps(x: np.ndarray, mode: str, narrowing: float, a: float) -> tuple[np.ndarray, np.ndarray]:
    """The neighbours of every coordinate and their weights: a filter of half-width 1 (linear) or 2 (cubic), stretched
    by 1 / narrowing."""
    width = int(np.ceil((1 if mode == "linear" else 2) / narrowing))
    indices = np.floor(x)[:, None] + np.arange(1 - width, width + 1)
    distance = np.abs(indices - x[:, None]) * narrowing
    if mode == "linear":
        return indices, np.maximum(0, 1 - distance)
    # Keys' kernel, in two pieces.
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return indices, np.where(distance <= 1, near, np.where(distance < 2, far, 0))


OPS: tuple[()] = ()
