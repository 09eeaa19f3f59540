"""MaxPool over one to three spatial axes, and its gradient."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product as combinations
from typing import Any

import numpy as np

from minbuild.dims import Dim, ceil_div, dim_max, dim_min, evaluate, product
from minbuild.model import ElementType, Shape, TensorType
from minbuild.ops.definition import FLOATS, INT64, Case, KernelFunction, Launch, Op, Site, Unknown

_PARAMS = tuple(f"{name}_{axis}" for axis in "dhw" for name in ("taps", "stride", "pad", "dilation"))
# Indices are a byte, the tap in the window, or as ONNX has them: the place in the whole input.
_TYPES = {"T": FLOATS, "I": (ElementType.UINT8, INT64)}
_FEATURES = {"volumes": "three spatial axes"}
_EXTENTS = ("in:extent", "out:extent")  # what is pooled and the result, as [planes,D,H,W]
pool_kernel = KernelFunction(
    "max_pool", ("y:T=", "indices:I=?", "x:T", *_EXTENTS), _PARAMS, _TYPES, _FEATURES
)
grad_kernel = KernelFunction(
    "max_pool_grad", ("dx:T=", "dy:T", "indices:I", *_EXTENTS), _PARAMS, _TYPES, _FEATURES
)


@dataclass(frozen=True)
class Window:
    """The window along one axis; `after` is the padding behind the input."""

    taps: int
    stride: int
    before: int
    after: int
    dilation: int

    def outputs(self, size: Dim, ceil: bool) -> Dim:
        """How many windows an axis of `size` has. With `ceil` the last one may reach over the end, but not
        start there, as in torch."""
        room = size + (self.before + self.after - self.dilation * (self.taps - 1) - 1)
        if not ceil:
            return room // self.stride + 1
        return dim_min(ceil_div(room, self.stride) + 1, ceil_div(size + self.before, self.stride))


def windows(attributes: Mapping[str, Any], sizes: Shape) -> tuple[Window, ...]:
    """The windows over spatial axes of these sizes, with `auto_pad` worked out."""
    taps = tuple(attributes["kernel_shape"])
    strides = tuple(attributes.get("strides", (1,) * len(taps)))
    dilations = tuple(attributes.get("dilations", (1,) * len(taps)))
    mode = attributes.get("auto_pad", "NOTSET")
    if mode in ("NOTSET", "VALID"):
        pads = tuple(attributes.get("pads", ())) if mode == "NOTSET" else ()
        pads = pads or (0,) * (2 * len(taps))
    else:
        each = [_same_pads(*axis, mode) for axis in zip(sizes, taps, strides, dilations, strict=True)]
        pads = tuple(p[0] for p in each) + tuple(p[1] for p in each)
    half = len(taps)
    return tuple(map(Window, taps, strides, pads[:half], pads[half:], dilations))


def _same_pads(size: Dim, taps: int, stride: int, dilation: int, mode: str) -> tuple[int, int]:
    """Padding that gives ceil(size / stride) outputs; an odd one goes to the end with SAME_UPPER."""
    total = dim_max((ceil_div(size, stride) - 1) * stride + dilation * (taps - 1) + 1 - size, 0)
    if not isinstance(total, int):
        raise Unknown(f"auto_pad {mode} needs spatial sizes that are known when the trainer is built")
    small, large = total // 2, total - total // 2
    return (small, large) if mode == "SAME_UPPER" else (large, small)


def _infer(site: Site) -> Sequence[TensorType]:
    shape, ceil = site.shape(), bool(site.attribute("ceil_mode", 0))
    if not 3 <= len(shape) <= 5:
        raise Unknown(f"pools {len(shape) - 2} spatial axes; only one to three are supported")
    axes = windows(site.attributes, shape[2:])
    pooled = shape[:2] + tuple(w.outputs(d, ceil) for w, d in zip(axes, shape[2:], strict=True))
    return TensorType(site.element(), pooled), TensorType(INT64, pooled)


def _as_volumes(shape: Shape) -> TensorType:
    """[N,C,...] as [planes,D,H,W]; axes that are missing count as D or H of one."""
    planes, *rest = product(shape[:2]), *shape[2:]
    return TensorType(ElementType.UINT8, (planes, *(1,) * (3 - len(rest)), *rest))


def _launch(
    site: Site, kernel: KernelFunction, args: Sequence[str | TensorType], sizes: Shape, pooled: Shape
) -> Launch:
    if site.attribute("storage_order", 0):
        raise Unknown("indices in column-major order (storage_order 1) are not supported")
    axes = windows(site.attributes, sizes[2:])
    words = [(w.taps, w.stride, w.before, w.dilation) for w in axes]
    words = [(1, 1, 0, 1)] * (3 - len(axes)) + words
    return kernel.launch(
        *args,
        _as_volumes(sizes),
        _as_volumes(pooled),
        types=(site.element(0), _index_type(site)),
        params=[word for axis in words for word in axis],
        features=("volumes",) * (len(axes) == 3),
    )


def _index_type(site: Site) -> ElementType:
    """What the indices were narrowed to; MaxPool without any takes the kernel that other pools use."""
    marks = site.results[1] if len(site.results) > 1 else site.inputs[1] if site.has(1) else None
    return marks.element if marks else ElementType.UINT8


def _select(site: Site) -> Sequence[Launch]:
    pooled = site.result_shape(0 if site.result(0) else 1)
    # Where only the indices are read, the maxima need a place all the same.
    args = (site.result(0) or TensorType(site.element(), pooled), site.result(1), site.name(0))
    return (_launch(site, pool_kernel, args, site.shape(0), pooled),)


def _taps(attributes: Mapping[str, Any], x: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For every tap: the padded input seen through it (-inf outside), and the flat index of what it sees."""
    axes = windows(attributes, x.shape[2:])
    ceil = bool(attributes.get("ceil_mode", 0))
    counts = [evaluate(w.outputs(d, ceil), {}) for w, d in zip(axes, x.shape[2:], strict=True)]
    reach = [(c - 1) * w.stride + w.dilation * (w.taps - 1) + 1 for c, w in zip(counts, axes, strict=True)]
    pads = [(0, 0), (0, 0)] + [
        (w.before, max(0, r - w.before - d)) for w, r, d in zip(axes, reach, x.shape[2:], strict=True)
    ]
    padded = np.pad(x, pads, constant_values=-np.inf)
    places = np.pad(np.arange(x.size).reshape(x.shape), pads)
    for tap in combinations(*(range(w.taps) for w in axes)):
        seen: tuple[Any, ...] = (slice(None), slice(None)) + tuple(
            slice(t * w.dilation, t * w.dilation + (c - 1) * w.stride + 1, w.stride)
            for t, w, c in zip(tap, axes, counts, strict=True)
        )
        yield padded[seen], places[seen]


def _reference(attributes: Mapping[str, Any], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    views, places = zip(*_taps(attributes, x), strict=True)
    stacked = np.stack(views)
    first = stacked.argmax(0)[None]
    return stacked.max(0), np.take_along_axis(np.stack(places), first, 0)[0]


VARIANTS: tuple[tuple[tuple[int, ...], Mapping[str, Any]], ...] = (
    ((1, 1, 2, 2), {"kernel_shape": (2, 2)}),
    ((2, 3, 8, 10), {"kernel_shape": (2, 2), "strides": (2, 2)}),
    ((1, 2, 7, 9), {"kernel_shape": (2, 2), "strides": (2, 2)}),
    ((2, 2, 9, 7), {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}),
    ((2, 2, 6, 7), {"kernel_shape": (3, 2), "strides": (2, 3), "pads": (0, 1, 1, 0), "ceil_mode": 1}),
    ((1, 2, 9, 9), {"kernel_shape": (3, 3), "dilations": (2, 2)}),
    ((1, 1, 5, 6), {"kernel_shape": (3, 3), "strides": (2, 2), "auto_pad": "SAME_UPPER"}),
    ((1, 1, 5, 6), {"kernel_shape": (2, 3), "strides": (1, 2), "auto_pad": "SAME_LOWER"}),
    ((1, 3, 5, 5), {"kernel_shape": (5, 5)}),
    ((2, 3, 11), {"kernel_shape": (3,), "strides": (2,)}),
    ((2, 3, 10), {"kernel_shape": (3,), "strides": (3,), "pads": (1, 1)}),
    ((1, 2, 4, 6, 5), {"kernel_shape": (2, 3, 2), "strides": (2, 1, 2)}),
    ((1, 2, 4, 6, 5), {"kernel_shape": (3, 3, 3), "strides": (2, 2, 1), "pads": (1, 1, 1, 1, 1, 1)}),
)


def _cases(random: np.random.Generator) -> Iterable[Case]:
    for shape, attributes in VARIANTS:
        x = random.standard_normal(shape)
        yield Case(f"{list(shape)} {dict(attributes)}", (x,), attributes, ulps=0)
        # Few different numbers, so that maxima tie.
        yield Case(f"{list(shape)} ties", (x.round(),), attributes, outputs=2, ulps=0)


max_pool = Op(
    "MaxPool", since=(8, 10, 11, 12, 22), infer=_infer, reference=_reference, select=_select, cases=_cases
)


def _grad_infer(site: Site) -> Sequence[TensorType]:
    maker = site.makers[1] if len(site.makers) > 1 else None
    if maker is None or "kernel_shape" not in maker.attributes:
        raise Unknown("its indices are not the output of a MaxPool, which alone knows the result's shape")
    return (TensorType(site.element(0), maker.shape(0)),)


def _grad_select(site: Site) -> Sequence[Launch]:
    args = (site.result(0), site.name(0), site.name(1))
    return (_launch(site, grad_kernel, args, site.result_shape(0), site.shape(0)),)


max_pool_grad = Op("MaxPoolGrad", since=(9,), infer=_grad_infer, select=_grad_select)
