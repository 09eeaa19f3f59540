"""Batches of data that ranges are taken of, from .npz files: one array for each input of the model in each file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from minbuild.errors import BadInput
from minbuild.frontend.files import read_arrays
from minbuild.ir import TensorType
from minbuild.options.did_you_mean import listed


def read_batches(paths: Sequence[Path], inputs: Mapping[str, TensorType]) -> list[dict[str, np.ndarray]]:
    """The batches in .npz files, or in folders of them, for a model with `inputs`. Raises BadInput with everything that
    is wrong."""
    read = {file: read_arrays(file) for path in paths for file in _files(path)}
    findings = [finding for file, arrays in read.items() for finding in _findings(file, arrays, inputs)]
    if findings:
        raise BadInput("\n".join(findings))
    return [{n: arrays[n].astype(t.element.dtype) for n, t in inputs.items()} for arrays in read.values()]


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.npz"))
    if not found:
        raise BadInput(
            f"--batches {path}: the folder holds no .npz file. Save batches there with numpy.savez."
        )
    return found


def _findings(
    file: Path, arrays: Mapping[str, np.ndarray], inputs: Mapping[str, TensorType]
) -> Iterator[str]:
    where = f"--batches {file}"
    if lacking := [n for n in inputs if n not in arrays]:
        there = listed(arrays) or "nothing"
        yield f"{where}: lacks {listed(lacking)}. It has {there}; the model takes {listed(inputs)}."
    sizes: dict[str, int] = {}
    for name, tensor in inputs.items():
        if name not in arrays:
            continue
        array, wanted = arrays[name], list(tensor.shape or ())
        told = "[" + ", ".join(map(str, wanted)) + "]"
        fits = array.ndim == len(wanted) and all(
            d == size if isinstance(d, int) else sizes.setdefault(str(d), size) == size
            for d, size in zip(wanted, array.shape, strict=True)
        )
        if tensor.shape is not None and not fits:
            known = "".join(f", {n} is {size}" for n, size in sizes.items() if n in told)
            yield f"{where}: '{name}' is of shape {list(array.shape)}; the model takes {told}{known}."
        elif array.size == 0:
            yield f"{where}: '{name}' has no elements. Give at least one sample."
        elif array.dtype.kind not in "biuf" or (array.dtype.kind == "f" and not tensor.element.is_real):
            yield f"{where}: '{name}' is {array.dtype}; the model takes {tensor.element.label}."
        elif not np.isfinite(array).all():
            yield f"{where}: '{name}' has NaN or infinite elements, of which no range can be taken."
