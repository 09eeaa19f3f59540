"""ONNX Runtime's training checkpoint: read into a Checkpoint, and written so that ORT loads it again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from math import prod
from pathlib import Path
from sys import intern
from typing import Any

import numpy as np

from minbuild import assets
from minbuild.errors import BadInput
from minbuild.frontend.files import map_array, read_shared
from minbuild.frontend.seal import read_seal, sealed
from minbuild.ir import Checkpoint, ElementType, OptimizerGroup, Parameter
from minbuild.ir.flatbuffers.codec import Schema, decode, encode_pieces, parse_schema
from minbuild.ir.mapped import FileBytes
from minbuild.ir.pages import drop_pages
from minbuild.ir.pieces import LEAST_IN_PIECES, FileContent, Pieces

VERSION = 2
MOST_STEPS = 2**48  # no training gets there
LARGEST_FILE = 2**31 - 2**20  # the format's limit, with room for what is not tensors
COMPACT = b"MBCP"  # identifies a compact checkpoint, which devices alone read
_LEAST_OUTSIDE = 64  # bytes of a parameter that is worth a place outside of the file
GROUP = "group0"  # the only group ONNX Runtime restores
_NOT_STORED = frozenset({ElementType.FLOAT16, ElementType.BFLOAT16})


@lru_cache(maxsize=1)
def schema() -> Schema:
    """The checkpoint's wire format."""
    return parse_schema((assets.root("schemas") / "ort_training_checkpoint.fbs").read_text(encoding="utf-8"))


def read_checkpoint(source: Path | FileBytes, name: str = "checkpoint") -> Checkpoint:
    """The checkpoint in file `source`, or in bytes which messages call `name`. Parameters outside the file
    are mapped lazily from `<source>.data`, which bytes cannot have. Parameters of a nominal checkpoint have
    shape () and no data. Raises BadInput with all findings."""
    path = source if isinstance(source, Path) else None
    data = read_shared(source) if isinstance(source, Path) else source
    where = name if path is None else str(path)
    if data[4:8] == COMPACT:
        raise BadInput(
            f"{where}: a compact checkpoint, which has no names: it is for the device. Give the checkpoint that the "
            "package was made of, such as that of the artifacts."
        )
    try:
        seal = read_seal(data)
        drop_pages(data)
        root = decode(schema(), data)
    except ValueError as error:
        raise BadInput(f"{where}: not a readable checkpoint: {error}. Save or copy it again.") from error
    if root["version"] != VERSION:
        raise BadInput(
            f"{where}: checkpoint version {root['version']} is not supported, only version {VERSION}. "
            "Write it with ONNX Runtime 1.17 to 1.19.2."
        )
    found = _Reader(where, path).checkpoint(root)
    return replace(found, seal=seal)


class _Reader:
    """Turns the decoded root table into nouns and collects everything that is wrong on the way."""

    def __init__(self, where: str, path: Path | None) -> None:
        self.where = where
        self.outside = None if path is None else path.with_name(path.name + ".data")
        self.findings: list[str] = []

    def checkpoint(self, root: Mapping[str, Any]) -> Checkpoint:
        module = root["module"] or {"trainable": [], "frozen": [], "nominal": False, "external": False}
        nominal = bool(module["nominal"])
        parameters = tuple(
            self.parameter(tensor, trainable, nominal)
            for trainable, key in ((True, "trainable"), (False, "frozen"))
            for tensor in module[key]
        )
        if not parameters:
            self.findings.append("it holds no parameters")
        self.unique((p.name for p in parameters), "parameter")
        groups = tuple(self.group(group) for group in root["groups"] or ())
        bag = root["properties"] or {}
        entries = [e for key in ("ints", "floats", "strings") for e in bag.get(key) or ()]
        self.unique((e["name"] or "" for e in entries), "property")
        if self.findings:
            raise BadInput("\n".join(f"{self.where}: {finding}." for finding in self.findings))
        properties = {e["name"] or "": "" if e["value"] is None else e["value"] for e in entries}
        return Checkpoint(parameters, groups, properties, nominal)

    def unique(self, names: Iterable[str], kind: str) -> None:
        doubled = sorted(n for n, count in Counter(names).items() if count > 1)
        self.findings += [f"{kind} '{n}' stands in it more than once" for n in doubled]

    def parameter(self, tensor: Mapping[str, Any], trainable: bool, nominal: bool) -> Parameter:
        name = intern(tensor["name"] or "")  # as the graphs have it
        label = f"parameter '{name}'"
        if not name:
            self.findings.append("a parameter has no name")
        if nominal:
            return Parameter(name, self.element(tensor, label), (), trainable, None)
        data = self.array(tensor, label)
        return Parameter(name, self.element(tensor, ""), data.shape, trainable, data)

    def element(self, tensor: Mapping[str, Any], label: str) -> ElementType:
        """The element type; FLOAT after a finding (`label` empty: it is already reported)."""
        number = tensor["element"]
        known = number in ElementType._value2member_map_ and ElementType(number) not in _NOT_STORED
        if label and number in _NOT_STORED:
            self.findings.append(
                f"{label} is {ElementType(number).label}, which checkpoints cannot hold. Keep it in float and cast it "
                "where it is read: the arithmetic may be in half precision, updates may not"
            )
        elif not known and label:
            self.findings.append(f"{label} has element type {number}, which checkpoints cannot hold")
        return ElementType(number) if known else ElementType.FLOAT

    def array(self, tensor: Mapping[str, Any], label: str) -> np.ndarray:
        """The elements of `tensor`; an empty array after a finding."""
        before = len(self.findings)
        dtype = self.element(tensor, label).dtype
        if len(self.findings) > before:
            return np.empty(0, dtype)
        shape = tuple(int(d) for d in (tensor["dims"] if tensor["dims"] is not None else ()))
        size = prod(shape) * dtype.itemsize
        raw, offset = tensor["data"], tensor["external_offset"]
        if any(d < 0 for d in shape) or len(shape) > 32:
            self.findings.append(f"{label} has the impossible shape {list(shape)}")
        elif offset >= 0 and raw is None:
            return self.external(dtype, shape, offset, label)
        elif raw is None:
            self.findings.append(f"{label} has no data")
        elif len(raw) != size:
            self.findings.append(f"{label} has {len(raw)} bytes, but {dtype.name}{list(shape)} takes {size}")
        else:
            # The file aligns data to 4 bytes only: wider elements are copied where the address demands it.
            return np.require(raw.view(dtype), requirements="A").reshape(shape)
        return np.empty(0, dtype)

    def external(self, dtype: np.dtype, shape: tuple[int, ...], offset: int, label: str) -> np.ndarray:
        if self.outside is None:
            self.findings.append(
                f"{label} is stored in a separate data file, which needs the checkpoint's path"
            )
            return np.empty(0, dtype)
        return map_array(self.outside, dtype, shape, offset, f"{label} of {self.where}")

    def group(self, group: Mapping[str, Any]) -> OptimizerGroup:
        moments: dict[str, dict[str, np.ndarray]] = {}
        for state in group["states"] or ():
            name = state["parameter"] or ""
            if name in moments:
                self.findings.append(f"optimizer state of parameter '{name}' stands in it more than once")
            label = f"of parameter '{name}'"
            moments[name] = {
                t["name"] or "": self.array(t, f"optimizer state '{t['name'] or ''}' {label}")
                for t in state["moments"] or ()
            }
        if not 0 <= group["step"] < MOST_STEPS:
            self.findings.append(f"it counts {group['step']} optimizer steps, which no training takes")
        return OptimizerGroup(group["name"] or "", group["step"], group["initial_learning_rate"], moments)


def write_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The file of `checkpoint`, all data inside, sealed if it was. Reading it gives the same names, types and bits,
    trainable parameters first. Raises BadInput beyond the format's 2 GiB and for values it cannot hold."""
    size = parameter_bytes(checkpoint) + _moment_bytes(checkpoint)
    if size >= LARGEST_FILE:
        raise BadInput(
            f"checkpoint: {size:,} bytes of tensors do not fit into the format, which ends at 2 GiB. Save "
            "fewer, such as parameters without optimizer state."
        )
    return bytes(_encoded(checkpoint, None))


def write_checkpoint_files(
    checkpoint: Checkpoint, name: str, largest: int = LARGEST_FILE
) -> dict[str, FileContent]:
    """The file of `checkpoint` under `name`; parameters of more than `largest` bytes together stand in a second file,
    `<name>.data`. Large files come in pieces. Raises BadInput for values that the format cannot hold, and moments
    beyond 2 GiB."""
    size = parameter_bytes(checkpoint) + _moment_bytes(checkpoint)
    if checkpoint.nominal or size < min(largest, LEAST_IN_PIECES):
        return {name: write_checkpoint(checkpoint)}
    if size < largest:
        return {name: _encoded(checkpoint, None)}
    if (size := _moment_bytes(checkpoint)) >= LARGEST_FILE:
        raise BadInput(
            f"checkpoint: {size:,} bytes of moments do not fit into the format, which ends at 2 GiB. Save it without "
            "optimizer state."
        )
    outside = Pieces()
    data = bytes(_encoded(checkpoint, outside))
    return {name: data, f"{name}.data": bytes(outside) if len(outside) < LEAST_IN_PIECES else outside}


def parameter_bytes(checkpoint: Checkpoint) -> int:
    """Bytes of all parameters."""
    return sum(p.data.nbytes for p in checkpoint.parameters if p.data is not None)


def _moment_bytes(checkpoint: Checkpoint) -> int:
    return sum(a.nbytes for g in checkpoint.groups for m in g.moments.values() for a in m.values())


def _encoded(checkpoint: Checkpoint, outside: Pieces | None) -> FileContent:
    """The file; elements of parameters go to `outside` where there is one."""
    tensors = [(_tensor(p, checkpoint.nominal, outside), p.trainable) for p in checkpoint.parameters]
    root = {
        "version": VERSION,
        "module": {
            "trainable": [tensor for tensor, trainable in tensors if trainable],
            "frozen": [tensor for tensor, trainable in tensors if not trainable],
            "nominal": checkpoint.nominal,
            "external": outside is not None,
        },
        "groups": [_group(g) for g in checkpoint.groups] or None,
        "properties": _properties(checkpoint.properties),
    }
    try:
        data = encode_pieces(schema(), root)
        if checkpoint.seal is None:
            return data
        group = next((g for g in checkpoint.groups if g.name == GROUP), OptimizerGroup(GROUP, 0, 0.001, {}))
        return sealed(bytes(data), checkpoint.seal, group)
    except ValueError as error:
        raise BadInput(f"checkpoint: cannot be written: {error}.") from error


def _tensor(parameter: Parameter, nominal: bool, outside: Pieces | None) -> dict[str, Any]:
    if nominal:
        return {"name": parameter.name, "dims": [], "element": int(parameter.element), "data": b""}
    if parameter.data is None or parameter.element in _NOT_STORED:
        why = "no data" if parameter.data is None else f"element type {parameter.element.label}"
        raise BadInput(f"checkpoint: parameter '{parameter.name}' has {why} and cannot be written.")
    tensor = _array_tensor(parameter.name, parameter.element, parameter.data)
    if outside is None or parameter.data.nbytes < _LEAST_OUTSIDE:
        return tensor
    outside.align(8)
    offset = len(outside)
    outside.append(tensor.pop("data"))
    return {**tensor, "external_offset": offset}


def _array_tensor(name: str, element: ElementType, data: np.ndarray) -> dict[str, Any]:
    raw = np.ascontiguousarray(data, element.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)
    return {"name": name, "dims": list(data.shape), "element": int(element), "data": raw}


def _group(group: OptimizerGroup) -> dict[str, Any]:
    states = [
        {"parameter": p, "moments": [_array_tensor(n, _element_of(a), a) for n, a in moments.items()]}
        for p, moments in group.moments.items()
    ]
    return {
        "name": group.name,
        "step": group.step,
        "initial_learning_rate": group.initial_learning_rate,
        "states": states,
    }


def _element_of(array: np.ndarray) -> ElementType:
    found = [e for e in ElementType if e not in _NOT_STORED and e.dtype == array.dtype]
    if not found:
        raise BadInput(f"checkpoint: optimizer state of type {array.dtype} cannot be written.")
    return found[0]


def _properties(properties: Mapping[str, int | float | str]) -> dict[str, Any] | None:
    if not properties:
        return None
    kinds = {"ints": int, "floats": float, "strings": str}
    return {
        key: [{"name": n, "value": v} for n, v in properties.items() if isinstance(v, kind)] or None
        for key, kind in kinds.items()
    }
