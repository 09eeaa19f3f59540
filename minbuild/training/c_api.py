"""The C API of trainer.h for ctypes: its structs and functions, and its tensors as numpy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from minbuild.errors import BadInput
from minbuild.ir import ElementType

MAX_RANK = 8  # of tensors


class CTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("type", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("dims", ctypes.c_int32 * MAX_RANK),
    )


class CParameter(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("value", CTensor),
        ("gradient", ctypes.c_void_p),
        ("kind", ctypes.c_int32),
    )


TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32)
PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, TASK, ctypes.c_void_p, ctypes.c_int32)


class COptions(ctypes.Structure):
    _fields_ = (
        ("arena", ctypes.c_void_p),
        ("arena_size", ctypes.c_size_t),
        ("symbols", ctypes.POINTER(ctypes.c_int32)),
        ("symbol_count", ctypes.c_size_t),
        ("error", ctypes.c_char * 160),
        ("accept_any_checkpoint", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("parallel", PARALLEL),
        ("parallel_user", ctypes.c_void_p),
    )


class CProgress(ctypes.Structure):
    _fields_ = (
        ("seed", ctypes.c_int64),
        ("step", ctypes.c_int64),
        ("learning_rate", ctypes.c_float),
        ("unused", ctypes.c_float),
    )


class CSession(ctypes.Structure):
    """The part of mb_session that is declared in trainer.h."""

    _fields_ = (
        ("progress", ctypes.POINTER(CProgress)),
        ("error", ctypes.c_char_p),
        ("replaces_gradients", ctypes.c_int32),
        ("accepts_any_checkpoint", ctypes.c_int32),
    )


class CProperty(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("text", ctypes.c_char_p),
        ("integer", ctypes.c_int64),
        ("real", ctypes.c_float),
        ("type", ctypes.c_int32),
    )


SINK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_P, _Z, _I = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_S, _O = ctypes.POINTER(CSession), ctypes.POINTER(COptions)
PROTOTYPES: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "mb_create": (ctypes.c_uint8, (_P, _Z, _P, _Z, _O, ctypes.POINTER(_S))),
    "mb_destroy": (None, (_S,)),
    "mb_run": (ctypes.c_uint8, (_S, _I, ctypes.POINTER(CTensor), _Z)),
    "mb_get": (ctypes.c_uint8, (_S, _I, _Z, ctypes.POINTER(CParameter))),
    "mb_load_checkpoint": (ctypes.c_uint8, (_S, _P, _Z)),
}
# Functions of optional components, and of those that a build option leaves out.
OPTIONAL_FUNCTIONS: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "mb_create_from_files": ("file-io", (ctypes.c_char_p, ctypes.c_char_p, _O, ctypes.POINTER(_S))),
    "mb_write_checkpoint": ("checkpoint-writing", (_S, _I, SINK, _P)),
    "mb_save_checkpoint": ("checkpoint-writing", (_S, ctypes.c_char_p, _I)),
    "mb_get_property": ("properties", (_S, _Z, ctypes.POINTER(CProperty))),
    "mb_set_property": ("properties", (_S, ctypes.POINTER(CProperty))),
    "mb_parameter_buffer": ("buffers", (_S, _I, _I, _P, ctypes.POINTER(_Z))),
    "mb_export_model": ("export", (_S, _P, _Z, SINK, _P)),
    "mb_export_to_file": ("export", (_S, ctypes.c_char_p, ctypes.c_char_p)),
}


def to_tensor(array: np.ndarray) -> CTensor:
    element = ElementType.of(array.dtype)
    if element is None or array.ndim > MAX_RANK:
        raise BadInput(f"a tensor of {array.dtype} with {array.ndim} dimensions cannot be an input.")
    dims = (ctypes.c_int32 * MAX_RANK)(*array.shape)
    return CTensor(array.ctypes.data, int(element), array.ndim, dims)


def to_array(tensor: CTensor, owner: object = None) -> np.ndarray:
    """The tensor's elements where they are; `owner` lives as long as the array and all views of it."""
    element = ElementType(tensor.type)
    shape = tuple(tensor.dims[: tensor.rank])
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0 or not tensor.data:
        return np.zeros(shape, element.dtype)
    raw = (ctypes.c_uint8 * (count * element.size)).from_address(tensor.data)
    raw.owner = owner  # type: ignore[attr-defined]
    return np.ctypeslib.as_array(raw).view(element.dtype).reshape(shape)
