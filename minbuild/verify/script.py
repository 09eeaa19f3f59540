"""Test scripts: actions on a trainer, and what to record of them. As a program, this module runs one with a library
in a process of its own, because a library under test may crash.

The folder of a script holds `library`, `plan`, `script.json`, `arrays.npz`; the run leaves `results.npz`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from minbuild.errors import MinbuildError
from minbuild.training.library import (
    EVAL,
    TRAIN,
    TRAIN_AND_UPDATE,
    Library,
    Session,
    aligned_copy,
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
    checkpoints: Mapping[str, bytes]
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


def perform(script: TestScript, library: Library, plan: bytes, garbage: int) -> dict[str, np.ndarray]:
    """Performs the actions of `script` in this process and returns the results, in order. `library` is the loaded one,
    `plan` holds the bytes of its plan, and `garbage` is the byte the arena is full of beforehand. Raises TrainerError
    where the library refuses."""
    results: dict[str, np.ndarray] = {}
    session: Session | None = None
    for action in script.actions:
        if action.verb == "create":
            arena = aligned_copy(bytes([garbage]) * arena_size(library, plan, script.sizes))
            session = Session(library, plan, script.checkpoints[action.operand], script.sizes, arena)
            continue
        assert session is not None
        for name, array in _act(session, action, script):
            if action.label:
                results[name] = array
    return results


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
    elif action.verb == "save":
        yield action.label, np.frombuffer(session.checkpoint(True), np.uint8)
    else:
        for name in session.parameters:
            tensor = session.gradient(name) if action.verb == "gradients" else session.parameter(name)
            if tensor is not None:
                yield f"{action.label}/{name}", tensor.copy()


# --------------------------------------------------------------------------- the same, as files of a folder


def _script(script: TestScript, garbage: int) -> dict[str, object]:
    """A script as plain data, its arrays replaced by their number in `_arrays`."""
    numbers = iter(range(len(_arrays(script))))
    return {
        "garbage": garbage,
        "sizes": list(script.sizes),
        "batches": {name: [next(numbers) for _ in arrays] for name, arrays in script.batches.items()},
        "checkpoints": {name: next(numbers) for name in script.checkpoints},
        "actions": [[a.verb, a.operand, a.label] for a in script.actions],
    }


def _arrays(script: TestScript) -> list[np.ndarray]:
    """Batches, then checkpoints as bytes."""
    batches = [array for arrays in script.batches.values() for array in arrays]
    return batches + [np.frombuffer(data, np.uint8) for data in script.checkpoints.values()]


def write_script(folder: Path, script: TestScript, library: bytes, plan: bytes, garbage: int) -> None:
    """Everything that the worker needs, as files in `folder`: the actions of `script` with the byte `garbage` that
    memory is filled with, and the bytes of `library` and `plan`."""
    (folder / "library").write_bytes(library)
    (folder / "plan").write_bytes(plan)
    (folder / "script.json").write_text(json.dumps(_script(script, garbage)), encoding="utf-8")
    # Names in an archive must be plain, those of models are anything: so numbers here, names in the results.
    _save(folder / "arrays.npz", _arrays(script))


def read_script(folder: Path) -> tuple[TestScript, int]:
    """The script in `folder` and its garbage byte."""
    stored = json.loads((folder / "script.json").read_text(encoding="utf-8"))
    arrays = _load(folder / "arrays.npz")
    batches = {name: tuple(arrays[i] for i in numbers) for name, numbers in stored["batches"].items()}
    checkpoints = {name: arrays[i].tobytes() for name, i in stored["checkpoints"].items()}
    actions = tuple(Action(*fields) for fields in stored["actions"])
    return TestScript(tuple(stored["sizes"]), batches, checkpoints, actions), int(stored["garbage"])


def read_results(folder: Path) -> dict[str, np.ndarray]:
    """The results of the worker, in order."""
    names = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return dict(zip(names, _load(folder / "results.npz"), strict=True))


def _save(path: Path, arrays: Sequence[np.ndarray]) -> None:
    np.savez(path, **{f"a{i}": array for i, array in enumerate(arrays)})  # type: ignore[arg-type]


def _load(path: Path) -> list[np.ndarray]:
    with np.load(path, allow_pickle=False) as stored:
        return [stored[f"a{i}"] for i in range(len(stored.files))]


def main(folder: Path) -> int:
    """Run the script in `folder`; the exit code."""
    script, garbage = read_script(folder)
    try:
        results = perform(script, Library(folder / "library"), (folder / "plan").read_bytes(), garbage)
    except MinbuildError as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_VALUE if getattr(error, "status", None) == _BAD_VALUE else _EXIT_REFUSED
    _save(folder / "results.npz", list(results.values()))
    (folder / "results.json").write_text(json.dumps(list(results)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path.cwd()))
