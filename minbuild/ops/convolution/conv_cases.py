"""Test cases of Conv and ConvGrad: shapes, windows, groups, and sizes that are packed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from minbuild.ops.convolution.sliding_window import axes
from minbuild.ops.core.definition import TestCase

# Shape of x, of w, attributes. The first and the last are what tests of trimmed builds run.
VARIANTS: tuple[tuple[tuple[int, ...], tuple[int, ...], Mapping[str, Any]], ...] = (
    ((2, 3, 9, 9), (5, 3, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((1, 1, 28, 28), (6, 1, 5, 5), {"pads": (2, 2, 2, 2)}),
    ((2, 6, 14, 14), (16, 6, 5, 5), {}),
    ((2, 16, 16, 16), (16, 16, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((3, 4, 9, 11), (7, 4, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ((1, 4, 10, 8), (9, 4, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ((2, 3, 13, 10), (4, 3, 3, 2), {"pads": (0, 1, 2, 3), "strides": (3, 2)}),
    ((1, 2, 5, 6), (3, 2, 2, 3), {"strides": (1, 4)}),
    ((2, 2, 11, 12), (3, 2, 3, 3), {"dilations": (2, 3), "pads": (2, 3, 1, 4)}),
    ((1, 2, 15, 13), (3, 2, 3, 2), {"dilations": (2, 2), "strides": (2, 3), "pads": (2, 1, 2, 1)}),
    ((1, 2, 12, 12), (3, 2, 3, 3), {"dilations": (3, 2), "strides": (2, 4), "pads": (3, 3, 3, 3)}),
    ((2, 6, 7, 7), (4, 3, 3, 3), {"group": 2, "pads": (1, 1, 1, 1)}),
    ((2, 6, 8, 7), (9, 2, 3, 3), {"group": 3, "strides": (2, 2), "pads": (1, 0, 1, 2)}),
    ((2, 8, 6, 6), (16, 1, 3, 3), {"group": 8, "pads": (1, 1, 1, 1)}),
    ((2, 8, 6, 6), (4, 2, 3, 3), {"group": 4, "pads": (1, 1, 1, 1)}),
    ((2, 5, 9, 10), (5, 1, 3, 3), {"group": 5, "pads": (1, 1, 1, 1)}),
    ((2, 5, 9, 10), (5, 1, 3, 3), {"group": 5, "pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ((1, 7, 2, 2), (7, 1, 3, 3), {"group": 7, "pads": (1, 1, 1, 1)}),
    ((3, 4, 1, 1), (4, 1, 3, 3), {"group": 4, "pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ((1, 3, 20, 17), (3, 1, 5, 4), {"group": 3, "pads": (2, 0, 1, 3), "strides": (3, 1)}),
    ((2, 3, 16, 9), (3, 1, 3, 3), {"group": 3, "dilations": (2, 2), "strides": (2, 1), "pads": (2, 2, 2, 2)}),
    ((1, 3, 4, 5), (3, 1, 1, 1), {"group": 3}),
    ((2, 3, 11), (3, 1, 4), {"group": 3, "strides": (2,), "pads": (1, 3)}),
    ((2, 8, 4, 4), (24, 8, 1, 1), {}),
    ((1, 24, 7, 5), (5, 24, 1, 1), {}),
    ((3, 30, 2, 2), (7, 30, 1, 1), {}),
    ((2, 6, 5, 5), (4, 3, 1, 1), {"group": 2}),
    ((2, 8, 9, 8), (12, 8, 1, 1), {"strides": (2, 2)}),
    ((1, 2, 4, 4), (3, 2, 1, 1), {"pads": (1, 0, 0, 2)}),
    ((2, 1, 9, 9), (3, 1, 3, 3), {"auto_pad": "VALID"}),
    ((2, 2, 10, 7), (3, 2, 3, 2), {"auto_pad": "SAME_UPPER", "strides": (2, 2)}),
    ((2, 2, 10, 7), (3, 2, 4, 2), {"auto_pad": "SAME_LOWER", "strides": (1, 3)}),
    ((1, 2, 10, 9), (3, 2, 3, 3), {"auto_pad": "SAME_UPPER", "dilations": (2, 2)}),
    ((1, 1, 49, 10), (8, 1, 10, 4), {"pads": (5, 1, 5, 1), "strides": (2, 2)}),
    ((2, 4, 17), (6, 4, 5), {"pads": (2, 2)}),
    ((2, 3, 40), (5, 3, 3), {"strides": (2,), "dilations": (2,)}),
    ((2, 2, 5, 6, 7), (3, 2, 2, 3, 3), {"pads": (0, 1, 1, 1, 1, 0)}),
    ((1, 3, 7, 6, 5), (4, 3, 3, 2, 3), {"strides": (2, 1, 2), "pads": (1, 0, 1, 1, 1, 1)}),
    ((2, 3, 5, 6, 4), (3, 1, 3, 3, 3), {"group": 3, "strides": (1, 2, 1), "pads": (1, 1, 1, 1, 1, 1)}),
    ((2, 3, 3, 4, 4), (5, 3, 1, 1, 1), {}),
    ((1, 3, 12, 12), (8, 3, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
)  # fmt: skip

# Sizes that are packed: several small images a pass, odd remainders, every feature.
LARGE_VARIANTS: tuple[tuple[tuple[int, ...], tuple[int, ...], Mapping[str, Any]], ...] = (
    ((5, 65, 11, 11), (67, 65, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((1, 65, 20, 18), (34, 65, 3, 3), {"pads": (1, 0, 2, 1), "strides": (1, 2), "dilations": (2, 1)}),
    ((2, 3, 64, 66), (32, 3, 7, 7), {"pads": (3, 3, 3, 3), "strides": (2, 2)}),
    ((2, 128, 17, 16), (130, 128, 1, 1), {}),
    ((13, 401, 5, 5), (423, 401, 1, 1), {}),
    ((3, 270, 13, 13), (330, 270, 1, 1), {"strides": (2, 2)}),
    ((8, 130, 7, 7), (80, 130, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((2, 128, 12, 12), (130, 64, 3, 3), {"group": 2, "pads": (1, 1, 1, 1)}),
    ((2, 32, 6, 7, 8), (40, 32, 3, 3, 3), {"pads": (1, 1, 1, 1, 1, 1), "strides": (1, 1, 2)}),
    ((3, 64, 1101), (32, 64, 3), {"pads": (1, 1)}),
    ((1, 20, 30, 28), (29, 20, 3, 3), {"pads": (3, 0, 2, 1), "dilations": (2, 1)}),
    ((1, 18, 20, 20), (30, 18, 2, 5), {"pads": (1, 5, 1, 5)}),
    ((1, 16, 6, 9, 10), (24, 16, 3, 3, 3), {"pads": (1, 1, 1, 1, 1, 1)}),
    ((2, 44, 40, 38), (44, 1, 3, 3), {"group": 44, "pads": (1, 1, 1, 1)}),
    ((2, 35, 31, 29), (41, 35, 3, 3), {"pads": (0, 2, 2, 1)}),
    ((2, 130, 21, 20), (140, 130, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((1, 50, 61, 60), (50, 1, 5, 5), {"group": 50, "pads": (2, 2, 2, 2), "strides": (2, 2)}),
    ((3, 900, 7, 7), (900, 1, 3, 3), {"group": 900, "pads": (1, 1, 1, 1)}),
    ((2, 900, 13, 13), (900, 1, 3, 3), {"group": 900, "pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ((1, 140, 20, 19), (140, 1, 2, 4), {"group": 140, "pads": (0, 1, 2, 0)}),
    ((1, 64, 56, 57), (64, 1, 3, 3), {"group": 64, "pads": (0, 0, 1, 1), "strides": (2, 2)}),
    ((2, 64, 13, 13), (96, 8, 3, 3), {"group": 8, "pads": (1, 1, 1, 1)}),
    ((3, 40, 23, 20), (56, 5, 3, 3), {"group": 8, "pads": (1, 1, 0, 1), "strides": (2, 2)}),
    ((2, 36, 20, 19), (48, 6, 3, 3), {"group": 6, "pads": (2, 2, 2, 2), "dilations": (2, 2)}),
)


def large_cases(random: np.random.Generator, gradient: bool) -> Iterable[TestCase]:
    """Of Conv, or of ConvGrad."""
    for x, w, given in LARGE_VARIANTS:
        attributes = {"kernel_shape": w[2:], **given}
        inputs = random.standard_normal(x), random.standard_normal(w)
        sizes = tuple(a.outputs for a in axes(given, x[2:], w[2:]))
        name, terms = f"{list(x)} {list(w)} {dict(given)}", int(np.prod(w[1:]))
        if gradient:
            dy = random.standard_normal((x[0], w[0], *map(int, sizes)))  # type: ignore[arg-type]
            ulps = max(terms, dy.size // w[0]) // 8
            yield TestCase(name, (dy, *inputs), attributes, outputs=3, ulps=ulps, smooth=False)
        else:
            given_all = (*inputs, random.standard_normal(w[0]))
            ulps = max(terms // 8, min(terms, 16))  # a rounding for each of few terms
            yield TestCase(name, given_all, attributes, ulps=ulps, smooth=False)


def conv_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for x, w, given in VARIANTS:
        attributes = {"kernel_shape": w[2:], **given}
        inputs = random.standard_normal(x), random.standard_normal(w)
        name = f"{list(x)} {list(w)} {dict(given)}"
        yield TestCase(name, inputs, attributes, ulps=16)
        yield TestCase(f"{name} bias", (*inputs, random.standard_normal(w[0])), attributes, ulps=16)
    weights, b = random.standard_normal((4, 3, 3, 3)), random.standard_normal(4)
    yield TestCase("no images", (np.zeros((0, 3, 5, 5)), weights, b), {"pads": (1, 1, 1, 1)})
    yield TestCase("no channels", (np.zeros((2, 0, 5, 5)), np.zeros((4, 0, 3, 3)), b), {"pads": (1, 1, 1, 1)})
    yield from large_cases(random, gradient=False)


OPS: tuple[()] = ()
