"""AffineGrid: places of an image's pixels moved by a matrix. What ONNX makes of it loses the axis of a batch of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ops.core.definition import Op, TestCase, UnsupportedUse
from minbuild.ops.core.graph_builder import GraphBuilder
from minbuild.ops.core.value import Results


def _grid(sizes: Sequence[int], align_corners: int) -> np.ndarray:
    """[pixels, axes + 1]: where pixels lie, from -1 to 1 along every axis of the image, the last axis first; then
    ones. A single pixel lies in the middle."""
    axes = []
    for size in sizes:
        ends = 1.0 if align_corners and size > 1 else 1 - 1 / size
        axes.append(np.linspace(-ends, ends, size) if size > 1 else np.zeros(1))
    places = np.meshgrid(*axes, indexing="ij")
    return np.stack([p.ravel() for p in (*reversed(places), np.ones(tuple(sizes)))], 1)


def _body(b: GraphBuilder) -> Results:
    """grid = places theta^T"""
    batch, _, *sizes = b.ctx.dims(1)
    matrix = b.ctx.shape()
    if len(sizes) not in (2, 3) or matrix[1:] != (len(sizes), len(sizes) + 1):
        needed = "[N, 2, 3] for images, [N, 3, 4] for volumes"
        raise UnsupportedUse(f"takes matrices {list(matrix)} to a grid of {list(sizes)}; needs {needed}")
    whole = [size for size in sizes if isinstance(size, int)]
    if len(whole) != len(sizes):
        free = ", ".join(str(size) for size in sizes if not isinstance(size, int))
        raise UnsupportedUse(f"the size of its grid must be known; fix it with --dim for {free}")
    places = b.constant(_grid(whole, int(b.ctx.attribute("align_corners", 0))))
    moved = places @ b.x[0].transpose((0, 2, 1))
    return moved.reshape((batch, *whole, len(whole)))


def _reference(attributes: Mapping[str, Any], theta: np.ndarray, size: np.ndarray) -> np.ndarray:
    sizes = size.tolist()[2:]
    moved = _grid(sizes, attributes.get("align_corners", 0)) @ theta.transpose(0, 2, 1)
    return moved.reshape(len(theta), *sizes, len(sizes))


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for sizes in ((1, 2, 4, 5), (3, 1, 2, 1), (2, 2, 3, 4, 5), (1, 1, 1, 2, 3)):
        axes = len(sizes) - 2
        theta, size = random.standard_normal((sizes[0], axes, axes + 1)), np.array(sizes, np.int64)
        for corners in (0, 1):
            name = f"{list(sizes)}, align_corners {corners}"
            yield TestCase(name, (theta, size), {"align_corners": corners}, frozenset({1}))


affine_grid = Op(
    "AffineGrid",
    since=(20,),
    reference=_reference,
    decompose=_body,
    decomposes_to=("MatMul", "Transpose"),
    cases=_cases,
)

OPS = (affine_grid,)
