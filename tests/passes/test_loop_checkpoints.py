"""Checkpoints of loops: the bits of loops that keep all of their states, in less memory, for any number of rounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trainers
from authored import source
from loop_models import MODELS, REGISTRY, artifacts, batch

from minbuild.authoring import Recipe, artifacts_of
from minbuild.frontend.checkpoint import write_checkpoint
from minbuild.ir import Plan, TrainingArtifacts
from minbuild.ops.recurrent.loop_rows import NEXT_ROWS
from minbuild.passes.lowering.lower import lower
from minbuild.passes.manager import optimize
from minbuild.passes.rewrite import checkpoint_loops
from minbuild.planning.plan import peak_bytes
from minbuild.planning.plan_encoding import encode_plan
from minbuild.training.library import TRAIN, Library, Session

MOVES = ("next_rows", "move_row")


def forced(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    """Has all loops keep every so many states."""
    monkeypatch.setattr(checkpoint_loops, "LEAST_ROUNDS", 1)
    monkeypatch.setattr(checkpoint_loops, "is_worth", lambda saved, ram: True)
    monkeypatch.setattr(checkpoint_loops._Rewriting, "rounds_of_chunk", lambda self: every)


def usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_loops, "is_worth", lambda saved, ram: False)


def kernels_of(plan: Plan) -> set[str]:
    return {kernel.function for kernel in plan.kernels}


def library_of(plans: list[Plan], folder: Path) -> Library:
    contents = replace(trainers.contents_of(plans), loops=max(plan.loops for plan in plans))
    return trainers.library_of(contents, REGISTRY, folder)


def bits(library: Library, plan: Plan, made: TrainingArtifacts, lengths: tuple[int, ...]) -> list[bytes]:
    """Losses and gradients of two steps at each length, the second added to the first."""
    sizes = dict.fromkeys(plan.symbols, 32)
    session = Session(library, encode_plan(plan, sizes), write_checkpoint(made.checkpoint))
    found = []
    for length in lengths:
        session.lazy_reset_grad()
        for _ in range(2):
            found.append(session.run(TRAIN, list(batch(length)))[0].tobytes())
            found += [session.gradient(p.name).tobytes() for p in made.checkpoint.parameters]
    return found


@pytest.mark.parametrize("rounds", [23, 24, "T"])
@pytest.mark.parametrize("name", MODELS)
def test_bits_are_those_of_loops_that_keep_everything(name, rounds, tmp_path, monkeypatch):
    made = artifacts(name, rounds)
    usual(monkeypatch)
    plans = [trainers.plan_of(made, REGISTRY)]
    for every in (1, 4, 5, 40) if rounds == 23 else (4,):
        forced(monkeypatch, every)
        plans.append(trainers.plan_of(made, REGISTRY))
    assert kernels_of(plans[0]).isdisjoint(MOVES)
    assert all(kernels_of(plan).issuperset(MOVES) for plan in plans[1:])
    library = library_of(plans, tmp_path)
    lengths = (1, 3, 4, 5, 8, 9, 23, 32, 2) if rounds == "T" else (rounds,)
    expected = bits(library, plans[0], made, lengths)
    assert len(set(expected)) > len(lengths)
    for plan in plans[1:]:
        assert bits(library, plan, made, lengths) == expected


# A state of 64 numbers and slices of 8, as in Mamba; all slices of y are read by others, too.
WIDE = """
    m (float[T,1,8] u, float[1,8] away) => (float[1,8] out) {
        last, y = Scan <num_scan_inputs = 1, body = round (float[8,8] h, float[1,8] u_t) =>
                (float[8,8] n, float[1,8] y_t) {
            s = Sigmoid (u_t)
            kept = Mul (h, s)
            all = Add (kept, A)
            n = Tanh (all)
            y_t = MatMul (u_t, n)
        }> (start, u)
        mean = ReduceMean <axes = [0], keepdims = 0> (y)
        out = Add (mean, away)
    }"""


def wide(rounds: int | str) -> TrainingArtifacts:
    random = np.random.default_rng(3)
    weights = {n: random.standard_normal((8, 8)).astype(np.float32) for n in ("A", "start")}
    model = source(WIDE.replace("T,", f"{rounds},"), weights)
    return artifacts_of(model, Recipe(loss="mse", optimizer="sgd"), REGISTRY)


def test_long_loops_keep_some_states_where_that_is_most_of_the_memory():
    peaks = {}
    for rounds in (64, 256, 1024):
        plan = trainers.plan_of(wide(rounds), REGISTRY)
        assert kernels_of(plan).issuperset(MOVES)
        peaks[rounds] = peak_bytes(plan, {})[0]
    state, slices = 256, 3 * 32  # bytes a round: all states, and what there is of every round anyway
    assert peaks[1024] < 1024 * slices + 70 * state + 4096
    assert peaks[1024] < 4.2 * peaks[256]


def test_memory_of_a_free_length_is_that_of_a_fixed_one():
    plan = trainers.plan_of(wide("T"), REGISTRY)
    fixed = peak_bytes(trainers.plan_of(wide(256), REGISTRY), {})[0]
    assert fixed <= peak_bytes(plan, {"T": 256})[0] < fixed + 2048


def test_short_loops_keep_all_states():
    program = optimize(lower(wide(63), REGISTRY, {}), REGISTRY)
    assert not any(call.op == NEXT_ROWS for p in program.procedures for call in p.calls)
