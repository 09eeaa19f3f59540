"""One build of a fleet as a value: what it reads, how it is called, and what comes of it."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path

import minbuild
from minbuild import assets
from minbuild.errors import BadInput
from minbuild.toolchain.process import Processes

OUT, SETTINGS = "package", "fleet-settings.toml"  # names in the folder of a job
_NO_SETTINGS = b"# All settings of this build are arguments.\n"  # else those beside the artifacts would count
_KEPT_VARIABLES = ("MINBUILD_CACHE", "MINBUILD_CACHE_LIMIT")
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Job:
    """`minbuild reduce` with `arguments`, in a folder where the files `inputs` stand by their relative paths. What
    comes of it depends on nothing else but minbuild itself."""

    name: str
    inputs: Mapping[str, Path]
    arguments: tuple[str, ...]

    def key(self) -> str:
        """The digest of everything that the package follows from. Raises BadInput when an input cannot be read."""
        digest = hashlib.sha256(json.dumps([fingerprint(), self.arguments]).encode())
        for name, path in sorted(self.inputs.items()):
            digest.update(f"\0{name}\0{_digest(path)}".encode())
        return digest.hexdigest()

    def contents(self) -> dict[str, bytes]:
        """The inputs with their bytes, for a machine that has no such files. Raises BadInput."""
        try:
            return {name: path.read_bytes() for name, path in self.inputs.items()}
        except OSError as error:
            raise BadInput(f"{error.filename}: cannot be read: {error.strerror}.") from error


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a job: the exit code of `minbuild reduce`, what it said, who did it in how many seconds, with which
    minbuild (`fingerprint`), and the files of the package, none unless the code is 0."""

    exit_code: int
    messages: str
    worker: str
    seconds: float = 0.0
    minbuild: str = ""
    package: Mapping[str, bytes] = field(default_factory=dict)


def run_here(job: Job, worker: str, processes: Processes) -> Outcome:
    """Do the job on this machine, on its own files. `job` names its files, `worker` is the name in the record,
    `processes` stops all it started."""
    with tempfile.TemporaryDirectory(prefix="minbuild-fleet-") as folder:
        for name, path in job.inputs.items():
            _place(folder, name).symlink_to(path.resolve())
        return _run(Path(folder), job.arguments, worker, processes)


def run_there(contents: Mapping[str, bytes], arguments: tuple[str, ...], worker: str) -> Outcome:
    """Do a job on a machine that has nothing of it: `contents` are the bytes of its inputs. `arguments` are those of
    the command, `worker` the name in the record."""
    with tempfile.TemporaryDirectory(prefix="minbuild-fleet-") as folder:
        for name, data in contents.items():
            _place(folder, name).write_bytes(data)
        return _run(Path(folder), arguments, worker, Processes(1, politely=True))


def _place(folder: str, name: str) -> Path:
    place = Path(folder) / name
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _run(folder: Path, arguments: tuple[str, ...], worker: str, processes: Processes) -> Outcome:
    (folder / SETTINGS).write_bytes(_NO_SETTINGS)
    command = (sys.executable, "-m", "minbuild", "reduce", *arguments, "--out", OUT, "--settings", SETTINGS)
    start = time.monotonic()
    result = processes.run(command, folder, _environment())
    seconds = time.monotonic() - start
    package = _files(folder / OUT) if result.code == 0 else {}
    return Outcome(result.code, result.err, worker, seconds, minbuild=fingerprint(), package=package)


def _environment() -> dict[str, str]:
    """That of this process, without options of minbuild in it, and with this minbuild first."""
    others = {n: v for n, v in os.environ.items() if not n.startswith("MINBUILD_") or n in _KEPT_VARIABLES}
    paths = (str(Path(minbuild.__file__).parents[1]), os.environ.get("PYTHONPATH", ""))
    return {**others, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def _files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@cache
def fingerprint() -> str:
    """The digest of this minbuild: its modules, kernels, templates and schemas, and the compiler that comes with it.
    Two machines that have the same one make the same bytes."""
    digest = hashlib.sha256(f"ziglang {version('ziglang')}".encode())
    package = Path(minbuild.__file__).parent
    for folder in (package, *(assets.root(kind) for kind in assets.KINDS)):
        for path in sorted(folder.rglob("*")):
            if (
                path.is_file()
                and "__pycache__" not in path.parts
                and "_assets" not in path.relative_to(folder).parts
            ):
                digest.update(f"{path.relative_to(folder).as_posix()}\0{_digest(path)}\0".encode())
    return digest.hexdigest()[:16]


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while data := stream.read(_CHUNK):
                digest.update(data)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}.") from error
    return digest.hexdigest()
