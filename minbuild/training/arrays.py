"""What callers hand over as a tensor, as numpy arrays of the same memory."""

from __future__ import annotations

from typing import Any

import numpy as np


class Buffer(np.ndarray):
    """Parameters one after the other. Scripts written for onnxruntime, which hands out an OrtValue, call `numpy`."""

    def numpy(self) -> np.ndarray:
        """The plain array of the same memory."""
        return self.view(np.ndarray)


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
