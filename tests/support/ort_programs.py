"""Programs for ONNX Runtime's C interface: their data, and a header of our own in place of its."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from places import TESTS

from minbuild.codegen.ort_abi import ort_functions

PROGRAMS = TESTS / "compat" / "ort_abi"
_TYPES = {"float32": 1, "int32": 6, "int64": 7, "float64": 11}  # as ONNX numbers them
_OPAQUE = ("Status", "Env", "SessionOptions", "MemoryInfo", "Allocator", "Value", "TensorTypeAndShapeInfo") + (
    "CheckpointState", "TrainingSession", "RunOptions"
)  # fmt: skip
# The functions that train.c calls, with their arguments, and what they return unless that is a status; those that are
# left out are places in the table.
_PROTOTYPES = {
    "GetErrorCode": "int|const OrtStatus*",
    "GetErrorMessage": "const char*|const OrtStatus*",
    "CreateEnv": "int, const char*, OrtEnv**",
    "CreateSessionOptions": "OrtSessionOptions**",
    "SetIntraOpNumThreads": "OrtSessionOptions*, int",
    "SetOptimizedModelFilePath": "OrtSessionOptions*, const char*",
    "GetAllocatorWithDefaultOptions": "OrtAllocator**",
    "AllocatorFree": "OrtAllocator*, void*",
    "CreateCpuMemoryInfo": "int, int, OrtMemoryInfo**",
    "CreateTensorWithDataAsOrtValue": "const OrtMemoryInfo*, void*, size_t, const int64_t*, size_t, int, OrtValue**",
    "CreateTensorAsOrtValue": "OrtAllocator*, const int64_t*, size_t, int, OrtValue**",
    "GetTensorMutableData": "OrtValue*, void**",
    "GetTensorTypeAndShape": "const OrtValue*, OrtTensorTypeAndShapeInfo**",
    "GetDimensionsCount": "const OrtTensorTypeAndShapeInfo*, size_t*",
    "GetTrainingApi": "const struct OrtTrainingApi*|uint32_t",
    "LoadCheckpoint": "const char*, OrtCheckpointState**",
    "SaveCheckpoint": "OrtCheckpointState*, const char*, bool",
    "CreateTrainingSession": "const OrtEnv*, const OrtSessionOptions*, OrtCheckpointState*, const char*, "
    "const char*, const char*, OrtTrainingSession**",
    "GetLearningRate": "OrtTrainingSession*, float*",
    "SetLearningRate": "OrtTrainingSession*, float",
    "TrainingSessionGetTrainingModelInputCount": "const OrtTrainingSession*, size_t*",
    "TrainingSessionGetTrainingModelInputName": "const OrtTrainingSession*, size_t, OrtAllocator*, char**",
    "TrainStep": "OrtTrainingSession*, const OrtRunOptions*, size_t, const OrtValue* const*, size_t, OrtValue**",
    "EvalStep": "const OrtTrainingSession*, const OrtRunOptions*, size_t, const OrtValue* const*, size_t, "
    "OrtValue**",
    "OptimizerStep": "OrtTrainingSession*, const OrtRunOptions*",
    "LazyResetGrad": "OrtTrainingSession*",
    "AddProperty": "OrtCheckpointState*, const char*, enum OrtPropertyType, void*",
    "GetProperty": "const OrtCheckpointState*, const char*, OrtAllocator*, enum OrtPropertyType*, void**",
    "GetParametersSize": "OrtTrainingSession*, size_t*, bool",
    "CopyParametersToBuffer": "OrtTrainingSession*, OrtValue*, bool",
    "CopyBufferToParameters": "OrtTrainingSession*, OrtValue*, bool",
    "RegisterLinearLRScheduler": "OrtTrainingSession*, int64_t, int64_t, float",
    "SchedulerStep": "OrtTrainingSession*",
}


def mini_header() -> str:
    """A header with the tables of ONNX Runtime's interface, as far as train.c needs them."""
    lines = ["#include <stdbool.h>", "#include <stddef.h>", "#include <stdint.h>"]
    lines += [f"typedef struct Ort{name} Ort{name};" for name in _OPAQUE]
    lines.append("enum OrtPropertyType { OrtIntProperty, OrtFloatProperty, OrtStringProperty };")
    for table, functions in ort_functions().items():
        lines.append(f"typedef struct {table} {{")
        lines += [f"  {_member(name)};" for name in functions]
        lines.append(f"}} {table};")
    base = "const OrtApi* (*GetApi)(uint32_t); const char* (*GetVersionString)(void);"
    lines.append(f"struct OrtApiBase {{ {base} }};\nconst struct OrtApiBase* OrtGetApiBase(void);")
    return "\n".join(lines) + "\n"


def _member(name: str) -> str:
    if name.startswith("Release") and name.removeprefix("Release") in _OPAQUE:
        return f"void (*{name})(Ort{name.removeprefix('Release')}*)"
    result, _, arguments = ("OrtStatus*|" + _PROTOTYPES.get(name, "void")).rpartition("|")
    return f"{result.rpartition('|')[2]} (*{name})({arguments})"


def write_batches(path: Path, inputs: Sequence[np.ndarray]) -> int:
    """The file that the programs read, of inputs [batches, ...]; returns how many batches there are."""
    with path.open("wb") as file:
        file.write(struct.pack("<i", len(inputs[0])))
        for array in inputs:
            shape = array.shape[1:]
            file.write(struct.pack(f"<ii{len(shape)}q", _TYPES[array.dtype.name], len(shape), *shape))
            file.write(np.ascontiguousarray(array).tobytes())
    return len(inputs[0])
