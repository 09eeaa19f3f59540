"""Models of several element types in one library: bits and refusals are those of each model's own default library."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from authored import source, uniform
from planned_models import compiled
from trainers import library_of

from minbuild.authoring import Recipe, artifacts_of
from minbuild.authoring.optimizers import OptimizerOptions
from minbuild.ops import registry
from minbuild.options.build_options import CODES, DENSE, OFF, BuildOptions
from minbuild.planning.compiled_model import CompiledModel, with_dense_plans
from minbuild.planning.kernel_selection import contents_of
from minbuild.training.library import TRAIN, Library, Session, TrainerError

REGISTRY = registry()
KINDS = {"float": np.float32, "double": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
# An element type, one of labels, an optimizer, and how it goes on from the first layer `a`.
MODELS = (
    ("float", "int64", "adamw", "b = Relu (a)"),
    ("double", "int32", "momentum", "r = Constant <value_float = 0.5> () t = Constant <value = bool {1}> () "
     "b = Dropout <seed = 7> (a, r, t)"),
    ("float16", "int32", "sgd", "b = Tanh (a)"),
    ("bfloat16", "int64", "adam", "b = Sigmoid (a)"),
)  # fmt: skip
OPTIONS = {
    "default": BuildOptions(kernel_features="all", shape_ops="all"),
    "dense": BuildOptions(plan_encoding=DENSE, error_messages=CODES, avx512=OFF),
}


def planned(kind: str, label: str, optimizer: str, middle: str) -> CompiledModel:
    text = f"""m ({kind}[n,4] x, {label}[n] labels) => ({kind} loss) {{
        a = MatMul (x, w) {middle} y = Gemm (b, v, c) loss = SoftmaxCrossEntropyLoss (y, labels)
    }}"""
    weights = zip("wvc", (w.astype(KINDS[kind]) for w in uniform((4, 5), (5, 3), (3,))), strict=True)
    options = OptimizerOptions(max_norm=1.0)
    train = ("v", "c") if kind == "bfloat16" else ("w", "v", "c")
    recipe = Recipe(loss_output="loss", optimizer=optimizer, optimizer_options=options, train=train)
    return compiled(artifacts_of(source(text, dict(weights)), recipe, REGISTRY), REGISTRY)


def history(library: Library, model: CompiledModel, kind: str, label: str) -> list[object]:
    """Everything that steps, refusals, and a saved and loaded checkpoint leave behind; of refusals the status."""
    session, found = Session(library, model.plan_bytes, model.checkpoint), []

    def call(function: object, *arguments: object) -> None:
        try:
            result = function(*arguments)  # type: ignore[operator]
            found.append([array.tobytes() for array in result] if result else result)
        except TrainerError as error:
            found.append(error.status)
        found.extend(session.parameter(name).tobytes() for name in session.parameters)

    batch = [uniform((6, 4))[0].astype(KINDS[kind]), np.arange(6).astype(label) % 3]
    session.learning_rate = 0.125
    for _ in range(2):
        call(session.run, TRAIN, batch)
        call(session.optimizer_step)
    for name in session.parameters:
        gradient = session.gradient(name)
        for at in () if gradient is None else (0, -1):
            for value in (np.nan, -np.inf):
                kept, gradient.flat[at] = gradient.flat[at], value
                call(session.optimizer_step)
                assert found[-1 - len(session.parameters)] == 7
                gradient.flat[at] = kept
    progress = session._session.contents.progress.contents
    progress.learning_rate = np.nan
    call(session.optimizer_step)
    progress.learning_rate = 0.125
    for wrong in (-1, 3):
        call(session.run, TRAIN, [batch[0], np.full(6, wrong, label)])
    call(session.run, TRAIN, [np.repeat(batch[0], 9, 0), np.repeat(batch[1], 9)])
    saved = session.checkpoint(True)
    call(session.load, saved[:-9])
    call(session.load, saved)
    call(session.run, TRAIN, batch)
    return found


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[CompiledModel, list[object]]]:
    models, folder = [planned(*each) for each in MODELS], tmp_path_factory.mktemp("own")
    libraries = [library_of(contents_of([model]), REGISTRY, folder) for model in models]
    return [
        (model, history(library, model, *each[:2]))
        for model, library, each in zip(models, libraries, MODELS, strict=True)
    ]


@pytest.mark.parametrize("name", OPTIONS)
def test_each_trains_as_alone(
    name: str, own: list[tuple[CompiledModel, list[object]]], tmp_path: Path
) -> None:
    options, models = OPTIONS[name], tuple(model for model, _ in own)
    if options.plan_encoding == DENSE:
        models = with_dense_plans(models) or models
    library = library_of(contents_of(models, build_options=options), REGISTRY, tmp_path)
    for each, model, (_, alone) in zip(MODELS, models, own, strict=True):
        assert history(library, model, *each[:2]) == alone, each
