"""Test scripts: actions on a trainer, and what to record of them. As a program, this module runs one with a library
in a process of its own, because a library under test may crash.

The folder of a script holds `library`, `plan`, `script.json`, `arrays.npz`; the run leaves `results.npz`."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from minbuild.errors import MinbuildError
from minbuild.ir import ElementType
from minbuild.ir.mapped import FileBytes, write_bytes
from minbuild.ir.pages import dropping
from minbuild.training.library import (
    EVAL,
    TRAIN,
    TRAIN_AND_UPDATE,
    Library,
    Session,
    aligned_room,
    arena_size,
)

# The library returned an error, which is on standard error: that a value is out of range, or another.
EXIT_BAD_VALUE, _EXIT_REFUSED = 4, 3
_BAD_VALUE = 7  # MB_BAD_VALUE
GRAPH_OF = {"train": TRAIN, "eval": EVAL, "train_and_update": TRAIN_AND_UPDATE}  # verbs that take a batch


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do. What it yields is recorded under names that begin with `label`, nothing without a
    label.

    verb        operand
    create      checkpoint: a new session from it, in memory full of garbage
    rate        the learning rate, as text
    train eval  batch; records every output as `label/name`
    train_and_update  the same, of libraries with fused updates
    optimizer   takes an optimizer step
    reset       lazy reset of the gradients
    copy        values of parameters become their gradients
    gradients   records every gradient as `label/name`
    parameters  records every parameter as `label/name`
    save        records the checkpoint with optimizer state, as bytes, under `label`
    """

    verb: str
    operand: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True)
class TestScript:
    """Actions with what they refer to. `sizes` are the largest sizes of the free dimensions, in plan
    order."""

    __test__ = False  # no test class of pytest

    sizes: tuple[int, ...]
    batches: Mapping[str, tuple[np.ndarray, ...]]
    checkpoints: Mapping[str, FileBytes]
    actions: tuple[Action, ...]


Results = Mapping[str, np.ndarray]


def separated(script: TestScript) -> TestScript:
    """The same with a training step, an optimizer step and a reset of the gradients for each step of fused updates."""
    actions: list[Action] = []
    for action in script.actions:
        if action.verb == "train_and_update":
            actions += [replace(action, verb="train"), Action("optimizer"), Action("reset")]
        else:
            actions.append(action)
    return replace(script, actions=tuple(actions))


@dataclass(frozen=True, slots=True)
class Digest:
    """The stand-in for the elements of a recorded tensor where these would take too much memory."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str
    finite: bool


Digests = Mapping[str, Digest]
_PIECE = 1 << 20  # elements that are examined at a time


def digest_of(array: np.ndarray) -> Digest:
    """The digest of all elements of `array`."""
    data = np.ascontiguousarray(array).reshape(-1)
    return Digest(
        array.dtype.name, array.shape, hashlib.sha256(data.view(np.uint8).data).hexdigest(), is_finite(data)
    )


def is_finite(array: np.ndarray) -> bool:
    """False where a real element is NaN or infinite. Pieces of the array are widened, never all of it."""
    if array.dtype.kind not in "fV":
        return True
    widens = array.dtype.kind == "V"
    data = array.reshape(-1)
    pieces = (data[i : i + _PIECE] for i in range(0, data.size, _PIECE))
    return all(bool(np.isfinite(p.astype(np.float32) if widens else p).all()) for p in pieces)


class _Recorder:
    """Results in order: arrays, or digests of all but what `kept` names, where that is not None."""

    def __init__(self, kept: Sequence[str] | None) -> None:
        self.kept = None if kept is None else frozenset(kept)
        self.arrays: dict[str, np.ndarray] = {}
        self.digests: dict[str, Digest] = {}

    def add(self, name: str, array: np.ndarray) -> None:
        if self.kept is None or name in self.kept:
            self.arrays[name] = array.copy()
        else:
            self.digests[name] = digest_of(array)

    def save(self, name: str, session: Session) -> None:
        """The checkpoint with optimizer state, never as a whole in memory where its digest is enough."""
        if self.kept is None or name in self.kept:
            self.arrays[name] = np.frombuffer(session.checkpoint(True), np.uint8)
            return
        digest, size = hashlib.sha256(), 0

        def take(piece: memoryview) -> None:
            nonlocal size
            digest.update(piece)
            size += len(piece)

        session.stream_checkpoint(True, take)
        self.digests[name] = Digest("uint8", (size,), digest.hexdigest(), True)


def perform(
    script: TestScript,
    library: Library,
    plan: FileBytes | np.ndarray,
    garbage: int,
    kept: Sequence[str] | None = None,
) -> tuple[Results, Digests]:
    """Performs the actions of `script` in this process and returns the results, in order. `library` is the loaded one,
    `plan` holds the bytes of its plan, and `garbage` is the byte the arena is full of beforehand. Of results that
    `kept` does not name, unless it is None, there are digests in place of elements. Raises TrainerError where the
    library refuses."""
    results = _Recorder(kept)
    session: Session | None = None
    for action in script.actions:
        if action.verb == "create":
            session = None  # frees the memory of the one before
            arena = aligned_room(arena_size(library, plan, script.sizes))
            arena.fill(garbage)
            start = script.checkpoints[action.operand]
            with dropping(start):  # frozen parameters come back where they are read
                session = Session(library, plan, start, script.sizes, arena)
            continue
        assert session is not None
        if action.verb == "save":
            results.save(action.label, session)
            continue
        for name, array in _act(session, action, script):
            if action.label:
                results.add(name, array)
    return results.arrays, results.digests


def _act(session: Session, action: Action, script: TestScript) -> Iterator[tuple[str, np.ndarray]]:
    if action.verb == "rate":
        session.learning_rate = float(action.operand)
    elif action.verb in GRAPH_OF:
        graph = GRAPH_OF[action.verb]
        outputs = session.run(graph, script.batches[action.operand])
        for name, array in zip(session.names(graph, True), outputs, strict=True):
            yield f"{action.label}/{name}", array
    elif action.verb == "optimizer":
        session.optimizer_step()
    elif action.verb == "initialize":
        session.initialize()
    elif action.verb == "reset":
        session.lazy_reset_grad()
    elif action.verb == "copy":
        for name in session.parameters:
            gradient = session.gradient(name)
            if gradient is not None:
                gradient[...] = session.parameter(name)
    else:
        for name in session.parameters:
            tensor = session.gradient(name) if action.verb == "gradients" else session.parameter(name)
            if tensor is not None:
                yield f"{action.label}/{name}", tensor


# --------------------------------------------------------------------------- the same, as files of a folder


def _script(script: TestScript, garbage: int, kept: Sequence[str] | None) -> dict[str, object]:
    """A script as plain data, its arrays replaced by their number in `_arrays`, checkpoints by that of their file."""
    numbers = iter(range(len(_arrays(script))))
    return {
        "garbage": garbage,
        "kept": None if kept is None else list(kept),
        "sizes": list(script.sizes),
        "batches": {name: [next(numbers) for _ in arrays] for name, arrays in script.batches.items()},
        "checkpoints": {name: _CHECKPOINT.format(i) for i, name in enumerate(script.checkpoints)},
        "actions": [[a.verb, a.operand, a.label] for a in script.actions],
    }


_CHECKPOINT = "checkpoint.{}"


def _arrays(script: TestScript) -> list[np.ndarray]:
    return [array for arrays in script.batches.values() for array in arrays]


def write_script(
    folder: Path,
    script: TestScript,
    library: bytes,
    plan: FileBytes,
    garbage: int,
    kept: Sequence[str] | None = None,
) -> None:
    """Everything that the worker needs, as files in `folder`: the actions of `script` with the byte `garbage` that
    memory is filled with, the bytes of `library` and `plan`, and the names of results whose elements are `kept`."""
    (folder / "library").write_bytes(library)
    write_bytes(folder / "plan", plan)
    (folder / "script.json").write_text(json.dumps(_script(script, garbage, kept)), encoding="utf-8")
    # Names in an archive must be plain, those of models are anything: so numbers here, names in the results.
    _save(folder / "arrays.npz", _arrays(script))
    for i, checkpoint in enumerate(script.checkpoints.values()):
        write_bytes(folder / _CHECKPOINT.format(i), checkpoint)


def read_script(folder: Path) -> tuple[TestScript, int, list[str] | None]:
    """The script in `folder`, with mapped checkpoints, its garbage byte, and the names of results that are kept."""
    stored = json.loads((folder / "script.json").read_text(encoding="utf-8"))
    arrays = _load(folder / "arrays.npz")
    batches = {name: tuple(arrays[i] for i in numbers) for name, numbers in stored["batches"].items()}
    checkpoints = {name: _mapped(folder / file) for name, file in stored["checkpoints"].items()}
    actions = tuple(Action(*fields) for fields in stored["actions"])
    script = TestScript(tuple(stored["sizes"]), batches, checkpoints, actions)
    return script, int(stored["garbage"]), stored["kept"]


def _mapped(path: Path) -> Any:
    """The bytes of a file, which come into memory as they are read."""
    return np.memmap(path, np.uint8, "r") if path.stat().st_size else b""


def read_results(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Digest]]:
    """The results of the worker, in order: those with elements, and digests."""
    found = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    digests = {
        name: Digest(each["dtype"], tuple(each["shape"]), each["sha256"], each["finite"])
        for name, each in found["digests"].items()
    }
    return dict(zip(found["names"], _load(folder / "results.npz"), strict=True)), digests


def _save(path: Path, arrays: Sequence[np.ndarray]) -> None:
    """Element types stand beside the arrays: of those that numpy has not itself, such as bfloat16, archives keep only
    the size."""
    types = np.array([int(ElementType.of(array.dtype) or 0) for array in arrays], np.int32)
    np.savez(path, types=types, **{f"a{i}": array for i, array in enumerate(arrays)})  # type: ignore[arg-type]


def _load(path: Path) -> list[np.ndarray]:
    with np.load(path, allow_pickle=False) as stored:
        arrays = [(stored[f"a{i}"], number) for i, number in enumerate(stored["types"])]
        return [array.view(ElementType(number).dtype) if number else array for array, number in arrays]


def main(folder: Path) -> int:
    """Run the script in `folder`; the exit code."""
    script, garbage, kept = read_script(folder)
    try:
        plan = _mapped(folder / "plan")
        results, digests = perform(script, Library(folder / "library"), plan, garbage, kept)
    except MinbuildError as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_VALUE if getattr(error, "status", None) == _BAD_VALUE else _EXIT_REFUSED
    _save(folder / "results.npz", list(results.values()))
    about = {"names": list(results), "digests": {name: asdict(each) for name, each in digests.items()}}
    (folder / "results.json").write_text(json.dumps(about), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path.cwd()))
