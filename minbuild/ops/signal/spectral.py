"""DFT and STFT: products with a constant matrix of sines and cosines; and MelWeightMatrix, which is a constant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from string import ascii_lowercase
from typing import Any

import numpy as np

from minbuild.ir import ElementType, TensorType
from minbuild.ir.dims import Dim
from minbuild.ops.core.definition import Op, OpContext, TestCase, UnsupportedUse
from minbuild.ops.core.graph_builder import GraphBuilder
from minbuild.ops.core.value import Results, Value

# ----------------------------------------------------------------------------------------------------- a transform


def _transformed(x: np.ndarray, axis: int, length: int, inverse: bool, onesided: bool) -> np.ndarray:
    """The Fourier transform of real or complex numbers (last axis: 1 or 2) along an axis, cut or filled with zeros to
    `length`. One-sided: half of the spectrum of real numbers, or back from it to real numbers."""
    axis = axis % x.ndim
    numbers = x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]
    if inverse and onesided:
        return np.fft.irfft(numbers, length, axis)[..., None]
    y = np.fft.ifft(numbers, length, axis) if inverse else np.fft.fft(numbers, length, axis)
    if onesided:
        y = y.take(range(length // 2 + 1), axis)
    return np.stack([y.real, y.imag], -1)


def _reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    return _transformed(x, **attributes)


def _body(b: GraphBuilder) -> Results:
    """The transform of every unit vector makes a matrix, and that times the input is its transform."""
    shape, flags = b.ctx.shape(), dict(b.ctx.attributes)
    axis = flags.pop("axis") % len(shape)
    size, parts = shape[axis], shape[-1]
    if not isinstance(size, int) or not isinstance(parts, int):
        raise UnsupportedUse(f"axis {axis} of {list(shape)} must be a number. Fix it with --dim")
    units = np.eye(size * parts).reshape(size * parts, size, parts)
    matrix = _transformed(units, axis=1, **flags)
    matrix = matrix.reshape(size, parts, *matrix.shape[1:])
    letters = ascii_lowercase[: len(shape)]
    time, part = letters[axis], letters[-1]
    result = letters[:-1].replace(time, "Y") + "Z"
    return b.add("Einsum", b.x[0], b.constant(matrix), equation=f"{letters},{time}{part}YZ->{result}")


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for parts in (1, 2):
        for axis, length in ((1, 8), (1, 5), (-2, 9), (0, 3)):
            x = random.standard_normal((3, 8, 6, parts))
            for inverse, onesided in ((False, False), (True, False)) + ((False, True),) * (parts == 1):
                flags = {"axis": axis, "length": length, "inverse": inverse, "onesided": onesided}
                yield TestCase(f"{parts} parts, {flags}", (x,), flags, ulps=32)
    for length in (8, 9):
        flags = {"axis": 1, "length": length, "inverse": True, "onesided": True}
        yield TestCase(f"half a spectrum, {length}", (random.standard_normal((2, 5, 2)),), flags, ulps=32)


transform = Op(
    "FourierTransform",
    domain="minbuild",
    reference=_reference,
    decompose=_body,
    decomposes_to=("Einsum",),
    cases=_cases,
)

# ------------------------------------------------------------------------------------------------------- DFT, STFT


def _number(ctx: OpContext, i: int) -> int:
    """A scalar input."""
    (value,) = ctx.dims(i)
    if not isinstance(value, int):
        raise UnsupportedUse(f"input {i} is the free dimension {value}. Fix it with --dim")
    return value


def _dft_body(b: GraphBuilder) -> Results:
    """The axis is an attribute until opset 19, an input since."""
    ctx = b.ctx
    axis = int(ctx.attribute("axis", 1)) if ctx.version < 20 else -2
    axis = _number(ctx, 2) if ctx.version >= 20 and ctx.has(2) else axis
    inverse, onesided = (bool(ctx.attribute(name, 0)) for name in ("inverse", "onesided"))
    length: Dim = ctx.shape()[axis]
    if ctx.has(1):
        length = _number(ctx, 1)
    elif inverse and onesided:
        length = 2 * (length - 1)
    return _transform(b, b.x[0], axis=axis, length=length, inverse=inverse, onesided=onesided)


def _transform(b: GraphBuilder, x: Value, axis: int, length: Dim, inverse: bool, onesided: bool) -> Value:
    flags = {"axis": axis, "length": length, "inverse": inverse, "onesided": onesided}
    return b.add("FourierTransform", x, domain="minbuild", **flags)


def _stft_body(b: GraphBuilder) -> Results:
    """Frames of the signal, times the window, transformed."""
    ctx = b.ctx
    _, size, _ = ctx.shape()
    if not isinstance(size, int):
        raise UnsupportedUse(f"the signal's length is the free dimension {size}. Fix it with --dim")
    step = _number(ctx, 1)
    length: Dim = ctx.shape(2)[0] if ctx.has(2) else size
    length = _number(ctx, 3) if ctx.has(3) else length
    if not isinstance(length, int) or step < 1 or not 0 < length <= size:
        raise UnsupportedUse(f"frames of {length} every {step} do not fit a signal of {size}")
    starts = np.arange((size - length) // step + 1) * step
    indices = b.constant(starts[:, None] + np.arange(length), ElementType.INT64)
    frames = b.add("Gather", b.x[0], indices, axis=1)
    if b.has(2):
        frames = frames * b.x[2].unsqueeze([1])
    return _transform(
        b, frames, axis=2, length=length, inverse=False, onesided=bool(ctx.attribute("onesided", 1))
    )


def _stft_reference(
    attributes: Mapping[str, Any],
    signal: np.ndarray,
    step: np.ndarray,
    window: np.ndarray | None = None,
    length: np.ndarray | None = None,
) -> np.ndarray:
    given = window.size if window is not None else signal.shape[1]
    size = given if length is None else int(length)
    weights = np.ones(size) if window is None else window
    starts = range(0, signal.shape[1] - size + 1, int(step))
    frames = np.stack([signal[:, s : s + size] * weights[:, None] for s in starts], 1)
    return _transformed(frames, 2, size, False, bool(attributes.get("onesided", 1)))


def _stft_cases(random: np.random.Generator) -> Iterable[TestCase]:
    signal, step, length = random.standard_normal((2, 20, 1)), np.array(4), np.array(8)
    window = random.uniform(0.1, 1, 8)
    for onesided in (0, 1):
        flags = {"onesided": onesided}
        yield TestCase(f"window {onesided}", (signal, step, window), flags, frozenset({1}), ulps=32)
        both = (signal, step, window, length)
        yield TestCase(f"window, length {onesided}", both, flags, frozenset({1, 3}), ulps=32)
        inputs = (signal, step, None, length)
        yield TestCase(f"length {onesided}", inputs, flags, frozenset({1, 3}), ulps=32)
    pair = random.standard_normal((1, 9, 2))
    yield TestCase(
        "complex", (pair, np.array(3), None, np.array(5)), {"onesided": 0}, frozenset({1, 3}), ulps=32
    )


dft = Op("DFT", since=(17, 20), decompose=_dft_body)
stft = Op(
    "STFT",
    since=(17,),
    reference=_stft_reference,
    decompose=_stft_body,
    decomposes_to=("Gather", "Mul", "minbuild:FourierTransform"),
    cases=_stft_cases,
)

# -------------------------------------------------------------------------------------------------- MelWeightMatrix


def _mel_element(attributes: Mapping[str, Any]) -> ElementType:
    return ElementType(attributes.get("output_datatype", ElementType.FLOAT))


def _mel_infer(ctx: OpContext) -> Sequence[TensorType]:
    bands, length = _number(ctx, 0), _number(ctx, 1)
    return (TensorType(_mel_element(ctx.attributes), (length // 2 + 1, bands)),)


def _mel_reference(attributes: Mapping[str, Any], *inputs: np.ndarray) -> np.ndarray:
    """One triangle per band, from the center of the band below to that of the band above; centers lie evenly on the mel
    scale, 2595 log10(1 + f / 700), and are rounded down to bins of the spectrum."""
    bands, length, rate, low, high = (x.reshape(()).item() for x in inputs)
    lowest, highest = (2595 * np.log10(1 + f / 700) for f in (low, high))
    mels = lowest + np.arange(bands + 2) * (highest - lowest) / (bands + 2)
    bins = ((length + 1) * (700 * (10 ** (mels / 2595) - 1)) // rate).astype(int)
    weights = np.zeros((length // 2 + 1, bands))
    for band, (left, center, right) in enumerate(zip(bins, bins[1:], bins[2:], strict=False)):
        rise, fall = np.arange(left, center), np.arange(center, right)
        weights[rise, band] = (rise - left) / max(1, center - left)
        weights[fall, band] = (right - fall) / max(1, right - center)
        weights[center, band] = 1
    return weights.astype(_mel_element(attributes).dtype)


mel_weight_matrix = Op("MelWeightMatrix", since=(17,), infer=_mel_infer, reference=_mel_reference)

OPS = (transform, dft, stft, mel_weight_matrix)
