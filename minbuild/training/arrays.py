"""Tensors of callers as numpy arrays of the same memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class Buffer(np.ndarray):
    """Parameters one after the other. Scripts written for onnxruntime, which hands out an OrtValue, call `numpy`."""

    def numpy(self) -> np.ndarray:
        """The plain array of the same memory."""
        return self.view(np.ndarray)

    def device_name(self) -> str:
        """Where the memory is, as onnxruntime says it."""
        return "Cpu"


def wrapped_like(inputs: Sequence[Any], outputs: Sequence[np.ndarray]) -> list[Any]:
    """The outputs as values of onnxruntime (OrtValue) where an input is one, else as they are."""
    for value in inputs:
        make = getattr(type(value), "ortvalue_from_numpy", None)
        if make is not None:
            return [make(np.asarray(output)) for output in outputs]
    return list(outputs)


def as_array(tensor: Any) -> np.ndarray:
    """The array of a tensor without copying where that can be: of an array or what numpy takes for one, of anything
    that speaks DLPack, and of what has a method `numpy`, as onnxruntime's OrtValue."""
    if isinstance(tensor, np.ndarray):
        return tensor
    if hasattr(tensor, "__dlpack__"):
        try:
            return np.from_dlpack(tensor)
        except (BufferError, RuntimeError, TypeError, ValueError):
            pass  # a type or a device that DLPack or this numpy does not have
    if hasattr(tensor, "numpy") and not hasattr(tensor, "__array__"):
        return np.asarray(tensor.numpy())
    return np.asarray(tensor)
