"""Trainers of models with quantized weights, beside the same with weights dequantized beforehand: shared by tests."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import trainers
from planned_models import compiled

from minbuild.authoring import Recipe, artifacts_of, read_source
from minbuild.ops import registry
from minbuild.ops.quantization.dequantize import DEQUANTIZE
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.kernel_selection import contents_of
from minbuild.training.library import EVAL, TRAIN, Library, Session

REGISTRY = registry()


@contextmanager
def folded_weights() -> Iterator[None]:
    """Dequantize is folded to real numbers, as other operators on constants are."""
    op = REGISTRY.ops[DEQUANTIZE]
    object.__setattr__(op, "folds", True)
    try:
        yield
    finally:
        object.__setattr__(op, "folds", False)


@dataclass
class Pair:
    """A model with weights in their bits, and with float weights."""

    packed: CompiledModel
    floats: CompiledModel

    @classmethod
    def of(cls, model: Path, recipe: Recipe, batch: int = 32) -> Pair:
        artifacts = artifacts_of(read_source(model), recipe, REGISTRY)
        packed = compiled(artifacts, REGISTRY, batch=batch)
        with folded_weights():
            floats = compiled(artifacts, REGISTRY, batch=batch)
        return cls(packed, floats)

    def libraries(self, folder: Path) -> tuple[Library, Library]:
        """A library for each of the two."""
        packed, floats = (
            trainers.library_of(contents_of([model]), REGISTRY, folder)
            for model in (self.packed, self.floats)
        )
        return packed, floats


def library_of(pairs: Iterable[Pair], folder: Path) -> Library:
    """A library for all of these."""
    models = [model for pair in pairs for model in (pair.packed, pair.floats)]
    return trainers.library_of(contents_of(models), REGISTRY, folder)


def paths(libraries: Iterable[Library]) -> list[Path]:
    """The files of libraries."""
    return [Path(library.handle._name) for library in libraries]


def session(model: CompiledModel, library: Library, batch: int) -> Session:
    return Session(library, model.plan_bytes, model.checkpoint, [batch] * len(model.plan.symbols))


def batches(
    shape: Sequence[int], classes: int, count: int, rows: int = 0
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Inputs and labels, the same ones every time; of a table, numbers of its `rows`."""
    random = np.random.default_rng(5)
    return [
        (
            random.integers(0, rows, shape) if rows else random.standard_normal(shape).astype(np.float32),
            random.integers(0, classes, shape[0]),
        )
        for _ in range(count)
    ]


def outputs(model: Path, recipe: Recipe, x: np.ndarray, folder: Path) -> np.ndarray:
    """The first output of a model for a batch `x`, by a library made in `folder`."""
    return next(iter(all_outputs(model, recipe, x, folder, 1).values()))


def all_outputs(
    model: Path, recipe: Recipe, x: np.ndarray, folder: Path, count: int | None = None
) -> dict[str, np.ndarray]:
    """The first `count` outputs of a model, or all, by name, for a batch `x`, by a library made in `folder`."""
    source = read_source(model)
    names = source.graph.outputs[:count]
    artifacts = artifacts_of(source, replace(recipe, outputs=names), REGISTRY)
    evaluated = compiled(artifacts, REGISTRY, batch=len(x))
    library = trainers.library_of(contents_of([evaluated]), REGISTRY, folder)
    found = session(evaluated, library, len(x)).run(EVAL, (x, np.zeros(len(x), np.int64)))
    return dict(zip(names, found[1:], strict=True))


def trained(trainer: Session, data: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, bytes]:
    """The bits of losses and of trained parameters after a step for each batch."""
    losses = []
    for batch in data:
        losses.append(trainer.run(TRAIN, batch)[0])
        trainer.optimizer_step()
        trainer.lazy_reset_grad()
    found = {name: trainer.parameter(name).tobytes() for name in trainer.parameters}
    return found | {"losses": np.array(losses).tobytes()}


def step_ratio(
    ours: Sequence[Session], others: Sequence[Session], batch: tuple[np.ndarray, np.ndarray], rounds: int
) -> float:
    """The time of a training step of `ours` as part of that of `others`, sessions of one model each: least processor
    times of interleaved steps."""
    times: tuple[list[float], list[float]] = ([], [])
    for pair in zip(ours, others, strict=True):
        for _ in range(rounds):
            for trainer, found in zip(pair, times, strict=True):
                start = time.process_time()
                trainer.run(TRAIN, batch)
                found.append(time.process_time() - start)
    return min(times[0]) / min(times[1])
