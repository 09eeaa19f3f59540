"""Reading the user's files, with an error of its own for every way that can fail."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from minbuild.errors import BadInput
from minbuild.ir.mapped import FileBytes, map_large


def read_file(path: Path, cure: str = "Give the folder that generate_artifacts wrote.") -> bytes:
    """All bytes of `path`. Raises BadInput when it is missing, for which `cure` is the remedy, a directory, unreadable
    or empty."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file. {cure}") from None
    except IsADirectoryError:
        raise BadInput(f"{path}: this is a directory, but a file of that name is expected.") from None
    except PermissionError:
        raise BadInput(f"{path}: no permission to read it. Change its mode or its owner.") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}.") from error
    if not data:
        raise BadInput(f"{path}: the file is empty. Write or copy it again.")
    return data


def read_shared(path: Path) -> FileBytes:
    """`read_file` of a file that several readers take one after the other: it is in memory once. A large one is mapped.
    Raises as that."""
    try:
        about = path.stat()
    except OSError:
        return read_file(path)
    return _read_version(path, (about.st_dev, about.st_ino, about.st_mtime_ns, about.st_size))


@lru_cache(maxsize=1)
def _read_version(path: Path, _version: tuple[int, ...]) -> FileBytes:
    try:
        mapped = map_large(path)
    except (OSError, ValueError):
        mapped = None
    return mapped or read_file(path)


def map_array(path: Path, dtype: np.dtype, shape: tuple[int, ...], offset: int, what: str) -> np.ndarray:
    """A read-only memory-mapped array: `shape` elements of `dtype` from byte `offset` of `path`. `what` names
    the tensor and the file that asks for it. Raises BadInput when the file is missing or too short."""
    end = offset + prod(shape) * dtype.itemsize
    try:
        size = path.stat().st_size
        if offset < 0 or end > size:
            raise BadInput(
                f"{path}: {what} needs bytes {offset} to {end}, but the file has {size}. "
                "It is cut off or belongs to another model."
            )
        if end == offset:
            return np.empty(shape, dtype)
        return np.memmap(path, dtype, "r", offset, shape)
    except FileNotFoundError:
        raise BadInput(
            f"{path}: no such file, but {what} is stored in it. Copy it beside the model."
        ) from None
    except OSError as error:
        raise BadInput(
            f"{path}: cannot be read, but {what} is stored in it: {error.strerror or error}."
        ) from error


def read_array(path: Path) -> np.ndarray:
    """The array in .npy file `path`. Raises BadInput."""
    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file. Save an array there with numpy.save.") from None
    except (OSError, ValueError, EOFError) as error:
        raise BadInput(f"{path}: cannot be read as .npy: {error}. Save it again with numpy.save.") from error


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays in .npz file `path`, by name. Raises BadInput."""
    try:
        with np.load(path, allow_pickle=False) as found:
            if isinstance(found, np.ndarray):
                raise BadInput(f"{path}: holds one array without a name. Save several with numpy.savez.")
            return {name: np.asarray(found[name]) for name in found.files}
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file. Save arrays there with numpy.savez.") from None
    except (OSError, ValueError, EOFError, BadZipFile, AttributeError) as error:
        raise BadInput(f"{path}: cannot be read as .npz: {error}. Save it again with numpy.savez.") from error
