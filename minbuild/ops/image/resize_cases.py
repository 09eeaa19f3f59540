"""Test cases of Resize and its gradient: modes, sizes and scales, regions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from minbuild.ops.core.definition import TestCase

Resized = Callable[[Mapping[str, Any], np.ndarray, None, np.ndarray], np.ndarray]

_MODES: tuple[Mapping[str, Any], ...] = (
    {},
    {"nearest_mode": "ceil"},
    {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"},
    {"nearest_mode": "round_prefer_ceil", "coordinate_transformation_mode": "align_corners"},
    {"mode": "linear"},
    {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
    {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"},
    {"mode": "linear", "antialias": 1},
    {"mode": "cubic", "cubic_coeff_a": -0.5},
    {"mode": "cubic", "exclude_outside": 1, "coordinate_transformation_mode": "asymmetric"},
    {"mode": "cubic", "antialias": 1, "exclude_outside": 1},
)
SHAPES = (((2, 3, 4, 5), (1, 1, 2, 2)), ((1, 2, 7, 6), (1, 1, 0.6, 1.5)), ((2, 3, 9), (1, 1, 0.34)))


def resize_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, factors in SHAPES:
        x, scales = random.standard_normal(shape), np.array(factors, np.float64)
        sizes = np.floor(np.array(shape) * scales).astype(np.int64)
        for mode in _MODES:
            name, known = f"{list(shape)} {dict(mode)}", frozenset({2, 3})
            yield TestCase(f"{name} scales", (x, None, scales), mode, known, ulps=16)
            yield TestCase(f"{name} sizes", (x, None, None, sizes), mode, known, ulps=16)
    x = random.standard_normal((1, 2, 5, 7))
    yield TestCase("opset 10", (x, np.array([1, 1, 1.5, 0.5])), {}, frozenset({1}), ulps=0)
    sizes = np.array([8, 9], np.int64)
    for policy in ("not_larger", "not_smaller"):
        attributes = {"axes": (3, 2), "keep_aspect_ratio_policy": policy, "mode": "linear"}
        yield TestCase(policy, (x, None, None, sizes), attributes, frozenset({3}), ulps=16)
    crop = {
        "mode": "linear",
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "extrapolation_value": 2.5,
    }
    roi = np.array([0, 0, 0.4, -0.25, 1, 1, 0.6, 1.25])
    yield TestCase("crop", (x, roi, None, np.array([1, 2, 3, 6], np.int64)), crop, frozenset({1, 3}), ulps=16)
    yield TestCase(
        "crop axes", (x, roi[[2, 6]], None, sizes[:1]), {**crop, "axes": (2,)}, frozenset({1, 3}), ulps=16
    )
    none = (np.zeros((0, 2, 3, 4)), None, np.array([1, 1, 2, 0.5]))
    yield TestCase("no images", none, {"mode": "linear"}, frozenset({2}))
    yield TestCase("nothing changes", (x, None, np.ones(4)), {}, frozenset({2}), ulps=0)
    for dtype in (np.uint8, np.int8, np.int32):
        whole = random.integers(0, 100, (1, 2, 3, 4)).astype(dtype)
        yield TestCase(f"{np.dtype(dtype)}", (whole, None, np.array([1, 1, 2, 1.5])), {}, frozenset({2}))


def resize_grad_cases(random: np.random.Generator, resized: Resized) -> Iterable[TestCase]:
    """Those of the gradient; `resized` is the reference of Resize, for the shapes of its results."""
    for shape, factors in SHAPES:
        x, scales = random.standard_normal(shape), np.array(factors, np.float64)
        for mode in _MODES:
            dy = random.standard_normal(resized(mode, x, None, scales).shape)
            yield TestCase(
                f"{list(shape)} {dict(mode)}", (dy, x, None, scales), mode, frozenset({3}), ulps=32
            )
            yield TestCase(f"{list(shape)} {dict(mode)} sizes", (dy, x), mode, ulps=32)


OPS: tuple[()] = ()
