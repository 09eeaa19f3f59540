"""Convolution in numpy: what every tap of the window sees, and their sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ops.convolution.sliding_window import ArrayIndex, axes, padding_of, taps_of


def receptive_fields(
    attributes: Mapping[str, Any], x: np.ndarray, taps: Sequence[int]
) -> tuple[list[tuple[int, int]], list[tuple[ArrayIndex, ArrayIndex]]]:
    """The padding of x, and for every tap where its weights stand and what it sees of the padded x. `attributes` are
    the operator's, `x` is [N,C,in...], `taps` the window's size per axis."""
    window = axes(attributes, x.shape[2:], taps)
    return padding_of(window), list(taps_of(window))


def grouped(x: np.ndarray, groups: int) -> np.ndarray:
    """[N,C,...] as [N,G,C/G,S]."""
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, int(np.prod(x.shape[2:])))


def filters_of(w: np.ndarray, tap: ArrayIndex, groups: int) -> np.ndarray:
    """The weights of one tap as [G,M/G,C/G]. `w` is [G*M/G,C/G,taps...] in `groups` groups, `tap` a place in the
    window."""
    return w[tap].reshape(groups, w.shape[0] // groups, w.shape[1])


def reference(
    attributes: Mapping[str, Any], x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None
) -> np.ndarray:
    """The convolution of `x` [N,G*C,in...] with weights `w` [G*M,C,taps...] and bias `b` [G*M], under the operator's
    `attributes`."""
    groups = attributes.get("group", 1)
    pads, views = receptive_fields(attributes, x, w.shape[2:])
    padded = np.pad(x, pads)
    spatial = padded[views[0][1]].shape[2:]
    parts = [
        np.einsum("gmc,ngcs->ngms", filters_of(w, tap, groups), grouped(padded[field], groups))
        for tap, field in views
    ]
    y = np.sum(parts, 0).reshape(x.shape[0], w.shape[0], *spatial)
    return y if b is None else y + b.reshape((-1,) + (1,) * len(spatial))


OPS = ()
