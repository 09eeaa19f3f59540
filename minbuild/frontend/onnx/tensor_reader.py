"""Tensors of ONNX files as arrays: typed fields, raw bytes, and data in files beside the model."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
from onnx import SparseTensorProto, TensorProto, numpy_helper

from minbuild.frontend.files import map_array
from minbuild.frontend.onnx.float8 import FLOAT8, Float8
from minbuild.frontend.onnx.four_bits import FourBits
from minbuild.ir import ElementType

_FLOAT8_CURE = (
    "Weights in it are read as initializers, behind DequantizeLinear or a Cast to float; convert others to "
    "float."
)
_MOST_DENSE = 1 << 30  # bytes of a sparse initializer in dense form: far more than its file has


class TensorReader:
    """Tensors of the file `path`. Damage is appended to `damage`, types without support to `missing`."""

    def __init__(self, path: Path, damage: list[str], missing: list[str]) -> None:
        self.path, self.file = path, path.name
        self.damage, self.missing = damage, missing

    def element(self, number: int, label: str) -> ElementType:
        """The element type; FLOAT after a finding."""
        if number in ElementType._value2member_map_:
            return ElementType(number)
        if number in TensorProto.DataType.values() and number != TensorProto.UNDEFINED:
            name = TensorProto.DataType.Name(number).lower()
            self.missing.append(
                f"{self.file}: {label} has element type {name}, which is not supported. "
                f"{_FLOAT8_CURE if number in FLOAT8 else 'Convert it.'}"
            )
        else:
            self.damage.append(f"{label} has the unknown element type {number}")
        return ElementType.FLOAT

    def read(self, proto: TensorProto, label: str) -> np.ndarray:
        """The elements of `proto`; an empty array after a finding."""
        found = len(self.damage) + len(self.missing)
        dtype, shape = self.element(proto.data_type, label).dtype, tuple(int(d) for d in proto.dims)
        if any(d < 0 for d in shape) or len(shape) > 32:
            self.damage.append(f"{label} has the impossible shape {list(shape)}")
        if len(self.damage) + len(self.missing) > found:
            return np.empty(0, dtype)
        if proto.data_location == TensorProto.EXTERNAL:
            return self._external(proto, dtype, shape, label)
        if proto.HasField("raw_data"):
            size = prod(shape) * dtype.itemsize
            if len(proto.raw_data) != size:
                self.damage.append(
                    f"{label} has {len(proto.raw_data)} bytes, but {dtype.name}{list(shape)} takes {size}"
                )
                return np.empty(0, dtype)
            return np.frombuffer(proto.raw_data, dtype.newbyteorder("<")).reshape(shape)
        try:
            if proto.data_type == TensorProto.BFLOAT16:
                # Versions of onnx differ in what they make of it.
                bits = np.array(proto.int32_data, np.int64).astype(np.uint16)
                return bits.view(dtype).reshape(shape)
            return np.ascontiguousarray(numpy_helper.to_array(proto), dtype).reshape(shape)
        except (ValueError, TypeError) as error:
            self.damage.append(f"{label} does not hold {dtype.name}{list(shape)}: {error}")
            return np.empty(0, dtype)

    def dense(self, proto: SparseTensorProto) -> TensorProto:
        """The tensor that `proto` gives in coordinates, flat or one an axis, its other elements zeros; an empty
        one after a finding."""
        nothing = numpy_helper.from_array(np.empty(0, np.float32), proto.values.name)
        label = f"sparse initializer '{proto.values.name}'"
        found = len(self.damage) + len(self.missing)
        values, places = self.read(proto.values, label), self.read(proto.indices, f"{label}: indices")
        shape = tuple(int(d) for d in proto.dims)
        if len(self.damage) + len(self.missing) > found:
            return nothing
        if any(d < 1 for d in shape) or prod(shape) * values.itemsize > _MOST_DENSE:
            self.missing.append(f"{self.file}: {label} takes too much memory in dense form, {list(shape)}.")
            return nothing
        flat = places.reshape(-1, 1) if places.ndim < 2 else places
        sizes = np.array(shape if flat.shape[1] == len(shape) else (prod(shape),))
        if flat.shape != (values.size, sizes.size) or ((flat < 0) | (flat >= sizes)).any():
            self.damage.append(f"{label} has indices outside of {list(shape)}, or not one for each value")
            return nothing
        array = np.zeros(shape, values.dtype)
        array.reshape(tuple(sizes))[tuple(flat.T)] = values.ravel()
        return numpy_helper.from_array(array, proto.values.name)

    def _external(
        self, proto: TensorProto, dtype: np.dtype, shape: tuple[int, ...], label: str
    ) -> np.ndarray:
        entries = {e.key: e.value for e in proto.external_data}
        folder = self.path.parent.resolve()
        try:
            target = (folder / entries["location"]).resolve()
            offset = int(entries.get("offset", "0"))
            inside = target.is_relative_to(folder)
            if entries["location"] == self.file:  # the model itself, which may be a link to anywhere
                target, inside = self.path, True
        except (KeyError, ValueError, OSError):
            inside = False
        if not inside:
            self.damage.append(f"{label} is stored at {entries}, which is not a place beside the model")
            return np.empty(0, dtype)
        return map_array(target, dtype, shape, offset, f"{label} of {self.file}")

    def float8(self, proto: TensorProto, label: str) -> Float8:
        """A tensor of eight-bit real numbers, as the bytes that hold them."""
        kind, bytes_of = int(proto.data_type), TensorProto()
        bytes_of.CopyFrom(proto)
        bytes_of.data_type = TensorProto.UINT8
        return Float8(self.read(bytes_of, label), kind)

    def four_bits(self, proto: TensorProto, label: str) -> FourBits:
        """A tensor of four-bit numbers, as the bytes that hold two of them each."""
        shape, signed = tuple(int(d) for d in proto.dims), proto.data_type == TensorProto.INT4
        count = (max(0, prod(shape)) + 1) // 2
        if proto.data_location == TensorProto.EXTERNAL:
            data = self._external(proto, np.dtype(np.uint8), (count,), label)
        elif proto.HasField("raw_data"):
            data = np.frombuffer(proto.raw_data, np.uint8)
        else:
            data = np.array(proto.int32_data, np.int64).astype(np.uint8)
        if any(d < 1 for d in shape) or data.size != count:
            self.damage.append(
                f"{label} has {data.size} bytes, but {list(shape)} four-bit numbers take {count}"
            )
            return FourBits(np.zeros(1, np.uint8), (1,), signed)
        return FourBits(data, shape, signed)
