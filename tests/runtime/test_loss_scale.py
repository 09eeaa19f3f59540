"""Dynamic loss scales in libraries: with threads, compiled in, and beside models that have none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import trainers
from authored import source
from shared_library import shared_library

from minbuild.authoring import Recipe, artifacts_of
from minbuild.authoring.optimizers import OptimizerOptions
from minbuild.authoring.recipe import LossScale
from minbuild.codegen.sources import emit_sources
from minbuild.frontend.checkpoint import write_checkpoint
from minbuild.ir import Plan, TrainingArtifacts
from minbuild.ops import registry
from minbuild.passes.lowering.lower import lower
from minbuild.passes.manager import optimize
from minbuild.passes.rewrite.native_products import take_native_products
from minbuild.planning.plan import build_plan
from minbuild.planning.plan_encoding import encode_plan
from minbuild.training.library import TRAIN, Library, Session, TrainerError

THREADS = 4
WIDE = 192  # features: products of a batch of 64 with 192 x 192 are worth dividing
RANDOM = np.random.default_rng(4)
X = RANDOM.standard_normal((64, WIDE)).astype(np.float32)
T = 100 * RANDOM.standard_normal((64, WIDE)).astype(np.float32)
NET = f"""m (float[64,{WIDE}] x) => (float[64,{WIDE}] y) {{
    xh = Cast <to=10> (x) ah = Cast <to=10> (a) bh = Cast <to=10> (b)
    p = MatMul (xh, ah) h = Tanh (p) q = MatMul (h, bh) y = Cast <to=1> (q) }}"""
WEIGHTS = {n: (RANDOM.standard_normal((WIDE, WIDE)) * 0.1).astype(np.float32) for n in "ab"}
# A running mean with the name of a loss scale.
PLAIN = """m (float[4,1] x) => (float[4,1] y) {
    p = Mul (x, w) y, m, v = BatchNormalization <training_mode=1> (p, g, b, loss_scale, var) }"""
NUMBERS = {n: np.ones(1, np.float32) for n in ("w", "g", "b", "loss_scale", "var")}


def scaled() -> TrainingArtifacts:
    options = OptimizerOptions(epsilon=1e-6)
    recipe = Recipe(
        loss="mse",
        optimizer_options=options,
        train=("a", "b"),
        loss_scale=LossScale(2.0**24, growth_interval=3),
    )
    return artifacts_of(source(NET, WEIGHTS), recipe, registry())


def plan_of(artifacts: TrainingArtifacts, threads: int = 1, native: bool = False) -> Plan:
    operators = registry()
    program = lower(artifacts, operators, {})
    if native:
        program = take_native_products(program, operators)
    return build_plan(optimize(program, operators), operators, threads)


def trained(session: Session) -> tuple[list[bytes], list[tuple[float, float, int]], bytes]:
    """Losses, states of the scale with the steps that count, and what is saved at the end."""
    losses, scales = [], []
    for x in (X, X, X * np.float32(np.inf), X, X * 8, X, X, X, X, X):
        losses.append(session.run(TRAIN, [x, T])[0].tobytes())
        session.optimizer_step()
        session.lazy_reset_grad()
        scale, good = (float(session.parameter(f"loss_scale{n}")[0]) for n in ("", ".good_steps"))
        scales.append((scale, good, session.step_count))
    return losses, scales, session.checkpoint(True)


@pytest.fixture(scope="module")
def one_thread(tmp_path_factory: pytest.TempPathFactory):
    artifacts = scaled()
    library = trainers.library_of(
        trainers.contents_of([plan_of(artifacts)]), registry(), tmp_path_factory.mktemp("one")
    )
    return trained(
        Session(library, encode_plan(plan_of(artifacts), {}), write_checkpoint(artifacts.checkpoint))
    )


def test_steps_are_skipped_and_counted(one_thread):
    _, scales, _ = one_thread
    steps = [s[2] for s in scales]
    assert steps[0] == 0 and 0 < steps[-1] < len(steps)  # some overflow, some do not
    assert {later[0] / earlier[0] for earlier, later in zip(scales, scales[1:], strict=False)} == {0.5, 1, 2}


@pytest.mark.parametrize("compiled", [False, True])
def test_any_number_of_threads_skips_the_same_steps(one_thread, compiled, tmp_path):
    artifacts = scaled()
    plan, checkpoint = plan_of(artifacts, THREADS), write_checkpoint(artifacts.checkpoint)
    data = encode_plan(plan, {})
    contents = replace(trainers.contents_of([plan]), threads=THREADS, compiled_plan=data if compiled else b"")
    shared = shared_library(emit_sources(contents, registry()))
    (tmp_path / "library.so").write_bytes(shared)
    library = Library(tmp_path / "library.so")
    calls: list[int] = []

    def in_turn(task, count: int) -> None:
        calls.append(count)
        for index in range(count):
            task(index)

    for threads in (1, 2, 4):
        session = Session(library, b"" if compiled else data, checkpoint, threads=threads)
        assert trained(session) == one_thread
        session.close()
    session = Session(library, b"" if compiled else data, checkpoint, threads=3, parallel=in_turn)
    assert trained(session) == one_thread and set(calls) <= {2, 3} and calls


def test_a_state_of_that_name_is_no_scale(tmp_path):
    """In a library for both models, the one without a scale still refuses gradients that are not finite."""
    plain = artifacts_of(source(PLAIN, NUMBERS), Recipe(loss="mse", train=("w", "g", "b")), registry())
    assert any(p.name == "loss_scale" for p in plain.checkpoint.parameters)
    plans = [plan_of(a) for a in (scaled(), plain)]
    library = trainers.library_of(trainers.contents_of(plans), registry(), tmp_path)
    session = Session(library, encode_plan(plans[1], {}), write_checkpoint(plain.checkpoint))
    session.run(TRAIN, [np.arange(4, dtype=np.float32)[:, None], np.zeros((4, 1), np.float32)])
    session.gradient("w")[:] = np.nan
    with pytest.raises(TrainerError, match="not finite"):
        session.optimizer_step()


def test_native_arithmetic_trains_with_a_scale(one_thread, tmp_path):
    """The same for any number of threads; and losses are those of float but for the roundings of chains."""
    artifacts = scaled()
    plan, checkpoint = plan_of(artifacts, THREADS, native=True), write_checkpoint(artifacts.checkpoint)
    contents = replace(trainers.contents_of([plan]), threads=THREADS)
    library = trainers.library_of(contents, registry(), tmp_path)
    found = [
        trained(Session(library, encode_plan(plan, {}), checkpoint, threads=threads)) for threads in (1, 2, 4)
    ]
    assert found[0] == found[1] == found[2] != one_thread
    losses, as_float = (np.frombuffer(b"".join(run[0]), np.float32) for run in (found[0], one_thread))
    finite = np.isfinite(as_float)
    assert (np.isfinite(losses) == finite).all()
    # A sum of a chain is off by 16 roundings of 2^-11 of its terms at most, of random signs.
    assert np.abs(losses[finite] / as_float[finite] - 1).max() < 16 * 2.0**-11
    steps = [s[2] for s in found[0][1]]
    assert 0 == steps[0] < steps[-1] < len(steps)
