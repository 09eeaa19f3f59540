"""Element types and tensor types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import ml_dtypes
import numpy as np

from minbuild.ir.dims import Dim, substitute


class ElementType(IntEnum):
    """Element types, numbered as ONNX `TensorProto.DataType` numbers them."""

    FLOAT = 1
    UINT8 = 2
    INT8 = 3
    UINT16 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    BOOL = 9
    FLOAT16 = 10
    DOUBLE = 11
    UINT32 = 12
    UINT64 = 13
    BFLOAT16 = 16

    __hash__ = int.__hash__  # that of enumerations is a function in Python

    @property
    def label(self) -> str:
        """The name users know: `float`, `int64`, ..."""
        return self.name.lower()

    @property
    def size(self) -> int:
        """Bytes of one element."""
        return _ELEMENTS[self][0]

    @property
    def ctype(self) -> str:
        """The C++ type a kernel is instantiated with."""
        return _ELEMENTS[self][1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type of the same elements."""
        return _DTYPES[self]

    @property
    def is_real(self) -> bool:
        """True if it holds real numbers."""
        return self in (ElementType.FLOAT, ElementType.DOUBLE, ElementType.FLOAT16, ElementType.BFLOAT16)

    @classmethod
    def of(cls, dtype: np.dtype[Any]) -> ElementType | None:
        """The element type of a numpy type; None where there is none."""
        return _BY_DTYPE.get(dtype)


_ELEMENTS: Mapping[ElementType, tuple[int, str, Any]] = {
    ElementType.FLOAT: (4, "float", "float32"),
    ElementType.UINT8: (1, "uint8_t", "uint8"),
    ElementType.INT8: (1, "int8_t", "int8"),
    ElementType.UINT16: (2, "uint16_t", "uint16"),
    ElementType.INT16: (2, "int16_t", "int16"),
    ElementType.INT32: (4, "int32_t", "int32"),
    ElementType.INT64: (8, "int64_t", "int64"),
    ElementType.BOOL: (1, "bool", "bool"),
    ElementType.FLOAT16: (2, "half", "float16"),
    ElementType.DOUBLE: (8, "double", "float64"),
    ElementType.UINT32: (4, "uint32_t", "uint32"),
    ElementType.UINT64: (8, "uint64_t", "uint64"),
    ElementType.BFLOAT16: (2, "bfloat16", ml_dtypes.bfloat16),
}
_DTYPES = {element: np.dtype(kind) for element, (_, _, kind) in _ELEMENTS.items()}
_BY_DTYPE = {dtype: element for element, dtype in _DTYPES.items()}

Shape = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and symbolic shape. `shape` is None only in what a file says, never after lowering."""

    element: ElementType
    shape: Shape | None

    def substituted(self, sizes: Mapping[str, Dim]) -> TensorType:
        """The type with free dimensions in `sizes` replaced."""
        if self.shape is None:
            return self
        return TensorType(self.element, tuple(substitute(d, sizes) for d in self.shape))
